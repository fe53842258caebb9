//! Sessions and executions: nx_session, nx_execution.
//!
//! Owns what the calls' arguments must be. Knows nothing of what becomes of them.

use std::sync::Arc;

use nervix_client::{Cancel, Credentials, Execution, Options, Session};
use nervix_engine::{recognise, Given, Origin, Statement};
use nervix_wire::types::{Fingerprint, TransactionPreviewIdentity};

use crate::arguments::{
    bytes, contained, free, guarded, invalid, may_block, object, optional_text, put, put_buffer,
    required_text, text, Outcome, Place,
};
use crate::cancel::{token, CancelObject};
use crate::errors::ErrorObject;
use crate::event::EventObject;
use crate::options::OptionsObject;
use crate::outcome::OutcomeObject;
use crate::process;
use crate::suggestions::SuggestionsObject;

/// NXX_STATEMENT_OTHER.
const STATEMENT_OTHER: i32 = 0;

/// nx_session.
pub struct SessionObject {
    pub(crate) session: Session,
}

/// nx_execution.
pub struct ExecutionObject {
    execution: Execution,
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_connect(
    server: *const u8,
    server_len: usize,
    domain: *const u8,
    domain_len: usize,
    username: *const u8,
    username_len: usize,
    password: *const u8,
    password_len: usize,
    cancel: *const CancelObject,
    out: *mut *mut SessionObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host's buffers are readable during the call.
        let opening = unsafe {
            Opening {
                server: required_text("server", server, server_len)?,
                domain: optional_text("domain", domain, domain_len)?,
                username: optional_text("username", username, username_len)?,
                password: optional_text("password", password, password_len)?,
            }
        };
        // SAFETY: the host passes a token of this library, or NULL, and the place can be written to.
        unsafe { opening.open(&Options::default(), cancel, out) }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_session_connect(
    server: *const u8,
    server_len: usize,
    domain: *const u8,
    domain_len: usize,
    username: *const u8,
    username_len: usize,
    password: *const u8,
    password_len: usize,
    options: *const OptionsObject,
    cancel: *const CancelObject,
    out: *mut *mut SessionObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host's buffers are readable during the call.
        let opening = unsafe {
            Opening {
                server: required_text("server", server, server_len)?,
                domain: optional_text("domain", domain, domain_len)?,
                username: optional_text("username", username, username_len)?,
                password: optional_text("password", password, password_len)?,
            }
        };
        // SAFETY: the host passes options of this library, or NULL.
        let options = unsafe { options.as_ref() }
            .map(|object| object.options.clone())
            .unwrap_or_default();
        // SAFETY: the host passes a token of this library, or NULL, and the place can be written to.
        unsafe { opening.open(&options, cancel, out) }
    })
}

struct Opening<'a> {
    server: &'a str,
    domain: Option<&'a str>,
    username: Option<&'a str>,
    password: Option<&'a str>,
}

impl Opening<'_> {
    /// # Safety
    /// `cancel` is NULL or a token of this library, and `out` can be written to.
    unsafe fn open(
        self,
        options: &Options,
        cancel: *const CancelObject,
        out: Place<*mut SessionObject>,
    ) -> Outcome {
        may_block()?;
        let server = Origin::parse(self.server).map_err(invalid)?;
        if let Some(seed) = options.seeds.iter().find(|seed| !server.may_lead_to(seed)) {
            return Err(invalid(format!(
                "the seed {seed} is not https, and a session that begins with https stays with it"
            )));
        }
        if self.domain == Some("") {
            return Err(invalid("domain is empty: name a domain, or leave it out"));
        }
        let credentials = match (self.username, self.password) {
            (None, None) => None,
            (Some(username), Some(password)) => Some(Credentials {
                username: username.to_owned(),
                password: password.to_owned(),
            }),
            (Some(_), None) => {
                return Err(invalid(
                    "username comes without a password: pass both, or neither",
                ))
            }
            (None, Some(_)) => {
                return Err(invalid(
                    "password comes without a username: pass both, or neither",
                ))
            }
        };
        // SAFETY: the caller's promise.
        let cancel = unsafe { token(cancel) };
        process::watch();
        process::start()?;
        let session = Session::connect(
            &server,
            self.domain,
            credentials.as_ref(),
            options,
            cancel.as_ref(),
        )?;
        // SAFETY: the caller's promise.
        unsafe { out.write(Box::into_raw(Box::new(SessionObject { session }))) };
        Ok(())
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_free(session: *mut SessionObject) {
    // SAFETY: the host passes a session of this library that it has not freed, or NULL.
    unsafe { free(session) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_prepare(
    session: *mut SessionObject,
    query: *const u8,
    query_len: usize,
    cancel: *const CancelObject,
    out: *mut *mut ExecutionObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL, and buffers that are readable during the call.
        let (session, query) = unsafe {
            (
                &object("session", session)?.session,
                required_text("query", query, query_len)?,
            )
        };
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let execution = session.prepare(query, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(ExecutionObject { execution }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_session_prepare(
    session: *mut SessionObject,
    query: *const u8,
    query_len: usize,
    reference: *const u8,
    reference_len: usize,
    position: *const u64,
    preview_transaction: *const u8,
    preview_transaction_len: usize,
    preview_position: u64,
    preview_basis: *const u8,
    preview_basis_len: usize,
    cancel: *const CancelObject,
    out: *mut *mut ExecutionObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL, and buffers that are readable during the call.
        let (session, query, reference, transaction, basis) = unsafe {
            (
                &object("session", session)?.session,
                required_text("query", query, query_len)?,
                optional_text("reference", reference, reference_len)?,
                optional_text(
                    "preview_transaction",
                    preview_transaction,
                    preview_transaction_len,
                )?,
                bytes("preview_basis", preview_basis, preview_basis_len)?,
            )
        };
        let preview = match (transaction, basis) {
            (None, None) => None,
            (Some(transaction), Some(basis)) => {
                let bytes = basis
                    .try_into()
                    .map_err(|_| invalid("preview_basis has another length than 32 bytes"))?;
                Some(TransactionPreviewIdentity {
                    transaction_id: transaction.to_owned(),
                    position: preview_position,
                    planning_basis: Fingerprint { bytes },
                })
            }
            _ => {
                return Err(invalid(
                    "a preview is its transaction and its basis: pass both, or neither",
                ))
            }
        };
        let position = match position.is_null() {
            true => None,
            // SAFETY: the host's place holds a number; it need not be aligned for us.
            false => Some(unsafe { position.read_unaligned() }),
        };
        let given = Given {
            reference: reference.map(str::to_owned),
            position,
            preview,
            ..Given::default()
        };
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let execution = session.prepare_with(query, given, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(ExecutionObject { execution }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_session_prepare_in(
    session: *mut SessionObject,
    domain: *const u8,
    domain_len: usize,
    transaction: *const u8,
    transaction_len: usize,
    query: *const u8,
    query_len: usize,
    cancel: *const CancelObject,
    out: *mut *mut ExecutionObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL, and buffers that are readable during the call.
        let (session, domain, transaction, query) = unsafe {
            (
                &object("session", session)?.session,
                optional_text("domain", domain, domain_len)?,
                optional_text("transaction", transaction, transaction_len)?,
                required_text("query", query, query_len)?,
            )
        };
        let given = Given {
            domain: domain.map(str::to_owned),
            transaction: transaction.map(str::to_owned),
            ..Given::default()
        };
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let execution = session.prepare_with(query, given, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(ExecutionObject { execution }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_execution_reference(
    execution: *const ExecutionObject,
    reference: *mut *const u8,
    reference_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes an execution of this library, or NULL.
        let text = unsafe { execution.as_ref() }.map_or("", |object| object.execution.reference());
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(reference, reference_len, text.as_bytes()) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_execution_sent(execution: *const ExecutionObject) -> bool {
    contained(false, || {
        // SAFETY: the host passes an execution of this library, or NULL.
        unsafe { execution.as_ref() }.is_some_and(|object| object.execution.sent().is_some())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_execution_position(
    execution: *const ExecutionObject,
    position: *mut u64,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an execution of this library, or NULL.
        let sent = unsafe { execution.as_ref() }.and_then(|object| object.execution.sent());
        let Some(first) = sent.and_then(|sent| sent.position) else {
            return false;
        };
        // SAFETY: the host's place can be written to.
        unsafe { put(position, first) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_execution_preview(
    execution: *const ExecutionObject,
    transaction: *mut *const u8,
    transaction_len: *mut usize,
    position: *mut u64,
    basis: *mut *const u8,
    basis_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an execution of this library, or NULL.
        let sent = unsafe { execution.as_ref() }.and_then(|object| object.execution.sent());
        let Some(preview) = sent.and_then(|sent| sent.preview.as_ref()) else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put_buffer(
                transaction,
                transaction_len,
                preview.transaction_id.as_bytes(),
            );
            put(position, preview.position);
            put_buffer(basis, basis_len, &preview.planning_basis.bytes);
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_statement(
    query: *const u8,
    query_len: usize,
    begins: *mut bool,
    name: *mut *const u8,
    name_len: *mut usize,
) -> i32 {
    contained(STATEMENT_OTHER, || {
        // SAFETY: the host's buffer is readable during the call.
        let query = unsafe { required_text("query", query, query_len) }.unwrap_or("");
        let (statement, begun) = recognise(query);
        let (number, named) = match statement {
            Statement::Other => (STATEMENT_OTHER, ""),
            Statement::Begin => (1, ""),
            Statement::Commit => (2, ""),
            Statement::Revert => (3, ""),
            Statement::Use(domain) => (4, domain),
            Statement::Subscribe => (5, ""),
            Statement::Unsubscribe(name) => (6, name),
            Statement::AttachClock => (7, ""),
            Statement::DetachClock => (8, ""),
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put(begins, begun);
            put_buffer(name, name_len, named.as_bytes());
        }
        number
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_execution_free(execution: *mut ExecutionObject) {
    // SAFETY: the host passes an execution of this library that it has not freed, or NULL.
    unsafe { free(execution) }
}

type Run = fn(&Session, &Execution, Option<&Cancel>) -> Outcome<Arc<nervix_engine::Outcome>>;

/// # Safety
/// As the header says of `nx_session_execute`.
unsafe fn execute(
    session: *mut SessionObject,
    execution: *const ExecutionObject,
    cancel: *const CancelObject,
    out: *mut *mut OutcomeObject,
    run: Run,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an execution of this library, or NULL.
        let execution = &unsafe { object("execution", execution) }?.execution;
        let run = || {
            let out = Place::new("out", out)?;
            // SAFETY: the host passes a session of this library, or NULL.
            let session = &unsafe { object("session", session) }?.session;
            may_block()?;
            // SAFETY: the host passes a token of this library, or NULL.
            let cancel = unsafe { token(cancel) };
            let outcome = run(session, execution, cancel.as_ref())?;
            // SAFETY: the host's place can be written to.
            unsafe { out.write(Box::into_raw(Box::new(OutcomeObject { outcome }))) };
            Ok(())
        };
        // Every failure of an execute names its command, those of its arguments included.
        run().map_err(|mut error: nervix_engine::Error| {
            error
                .reference
                .get_or_insert_with(|| execution.reference().to_owned());
            error
        })
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_execute(
    session: *mut SessionObject,
    execution: *const ExecutionObject,
    cancel: *const CancelObject,
    out: *mut *mut OutcomeObject,
) -> *mut ErrorObject {
    // SAFETY: the caller's promise.
    unsafe { execute(session, execution, cancel, out, Session::execute) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_session_execute_outside(
    session: *mut SessionObject,
    execution: *const ExecutionObject,
    cancel: *const CancelObject,
    out: *mut *mut OutcomeObject,
) -> *mut ErrorObject {
    // SAFETY: the caller's promise.
    unsafe { execute(session, execution, cancel, out, Session::execute_outside) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_next_event(
    session: *mut SessionObject,
    cancel: *const CancelObject,
    out: *mut *mut EventObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL.
        let session = &unsafe { object("session", session) }?.session;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let event = session.next_event(cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(EventObject::hand_out(event).cast_mut()) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_suggest(
    session: *const SessionObject,
    input: *const u8,
    input_len: usize,
    cursor: usize,
    page_size: u16,
    continuation: *const u8,
    continuation_len: usize,
    cancel: *const CancelObject,
    out: *mut *mut SuggestionsObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL, and buffers that are readable during the call.
        let (session, input, continuation) = unsafe {
            (
                &object("session", session)?.session,
                text("input", input, input_len)?,
                optional_text("continuation", continuation, continuation_len)?,
            )
        };
        let Some(place) = u32::try_from(cursor)
            .ok()
            .filter(|_| input.is_char_boundary(cursor))
        else {
            let len = input.len();
            return Err(invalid(format!(
                "cursor {cursor} is no character boundary of the input, which has {len} bytes"
            )));
        };
        if !(1..=100).contains(&page_size) {
            return Err(invalid(format!("page_size is {page_size}: it is 1 to 100")));
        }
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let page = session.suggest(input, place, page_size, continuation, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(SuggestionsObject { page }))) };
        Ok(())
    })
}
