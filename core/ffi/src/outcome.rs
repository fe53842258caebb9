//! Outcomes: nx_outcome.
//!
//! Owns the numbers of dispositions and origins, and which part of an outcome each accessor reads.

use std::sync::Arc;

use nervix_engine::{Disposition, Outcome};
use nervix_wire::types::{
    Diagnostic, OutcomeOrigin, RestoreMode, RestoreStepOutcome, TransactionState,
};

use crate::arguments::{
    contained, free, guarded, invalid, object, put, put_buffer, BufferPlace, Outcome as Checked,
    Place,
};
use crate::errors::ErrorObject;
use crate::schema::SchemaObject;

/// nx_outcome.
pub struct OutcomeObject {
    pub(crate) outcome: Arc<Outcome>,
}

fn number(disposition: Disposition) -> i32 {
    match disposition {
        Disposition::Completed => 1,
        Disposition::Failed => 2,
        Disposition::NotLeader => 3,
        Disposition::TransactionDetached => 4,
        Disposition::TransactionTakenOver => 5,
        Disposition::OutcomeUnknown => 6,
        Disposition::ExecutionReferenceConflict => 7,
        Disposition::ExecutionReferenceExpired => 8,
        Disposition::PreviewStale => 9,
    }
}

/// Reads from an outcome that may be NULL.
///
/// # Safety
/// The handle is NULL or an outcome of this library.
unsafe fn read<T>(handle: *const OutcomeObject, neutral: T, with: impl FnOnce(&Outcome) -> T) -> T {
    // SAFETY: the caller's promise.
    match unsafe { handle.as_ref() } {
        Some(object) => with(&object.outcome),
        None => neutral,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_disposition(outcome: *const OutcomeObject) -> i32 {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(0, || unsafe {
        read(outcome, 0, |outcome| number(outcome.disposition))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_message(
    outcome: *const OutcomeObject,
    message: *mut *const u8,
    message_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let text = unsafe { outcome.as_ref() }.map_or("", |object| &object.outcome.message);
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(message, message_len, text.as_bytes()) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_execution_reference(
    outcome: *const OutcomeObject,
    reference: *mut *const u8,
    reference_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(text) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.reference.as_deref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(reference, reference_len, text.as_bytes()) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_diagnostic_count(outcome: *const OutcomeObject) -> usize {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(0, || unsafe {
        read(outcome, 0, |outcome| outcome.diagnostics.len())
    })
}

/// The places that a diagnostic is written to.
struct DiagnosticPlaces {
    message: BufferPlace,
    has_span: Place<bool>,
    start: Place<u32>,
    end: Place<u32>,
}

impl DiagnosticPlaces {
    fn new(
        message: *mut *const u8,
        message_len: *mut usize,
        has_span: *mut bool,
        start: *mut u32,
        end: *mut u32,
    ) -> Checked<Self> {
        Ok(Self {
            message: BufferPlace::new("message", message, message_len)?,
            has_span: Place::new("has_span", has_span)?,
            start: Place::new("start", start)?,
            end: Place::new("end", end)?,
        })
    }

    /// # Safety
    /// The places can be written to.
    unsafe fn write(self, all: &[Diagnostic], index: usize) -> Checked {
        let Some(diagnostic) = all.get(index) else {
            return Err(invalid(format!(
                "there is no diagnostic {index}: there are {}",
                all.len()
            )));
        };
        // SAFETY: the caller's promise.
        unsafe {
            self.message.write(diagnostic.message.as_bytes());
            self.has_span.write(diagnostic.span.is_some());
            if let Some(span) = diagnostic.span {
                self.start.write(span.start);
                self.end.write(span.end);
            }
        }
        Ok(())
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_diagnostic(
    outcome: *const OutcomeObject,
    index: usize,
    message: *mut *const u8,
    message_len: *mut usize,
    has_span: *mut bool,
    start: *mut u32,
    end: *mut u32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let places = DiagnosticPlaces::new(message, message_len, has_span, start, end)?;
        // SAFETY: the host's places can be written to.
        unsafe { places.write(&outcome.diagnostics, index) }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_subscription(
    outcome: *const OutcomeObject,
    name: *mut *const u8,
    name_len: *mut usize,
    generation: *mut u64,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(opened) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.subscription.as_ref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put_buffer(name, name_len, opened.name.as_bytes());
            put(generation, opened.generation);
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_backup(
    outcome: *const OutcomeObject,
    total_bytes: *mut u64,
    digest: *mut *const u8,
    digest_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(backup) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.backup.as_ref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put(total_bytes, backup.total_bytes);
            put_buffer(digest, digest_len, &backup.digest.bytes);
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_restore(
    outcome: *const OutcomeObject,
    dry_run: *mut bool,
    domains: *mut u64,
    resource_versions: *mut u64,
    models: *mut u64,
    failed: *mut bool,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(report) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.restore.as_ref())
        else {
            return false;
        };
        let sum = |of: fn(&nervix_wire::types::RestoredDomain) -> u64| {
            report.domains.iter().map(of).fold(0, u64::saturating_add)
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put(dry_run, report.mode == RestoreMode::DryRun);
            put(
                domains,
                u64::try_from(report.domains.len()).unwrap_or(u64::MAX),
            );
            put(resource_versions, sum(|domain| domain.resource_versions));
            put(models, sum(|domain| domain.models));
            put(
                failed,
                report
                    .steps
                    .iter()
                    .any(|step| step.outcome == RestoreStepOutcome::Failed),
            );
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_schema(
    outcome: *const OutcomeObject,
    out: *mut *mut SchemaObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let out = Place::new("out", out)?;
        let Some(opened) = &outcome.subscription else {
            return Err(invalid(
                "the command opened no subscription, so its outcome has no schema",
            ));
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SchemaObject::hand_out(Arc::clone(&opened.schema))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_outcome_free(outcome: *mut OutcomeObject) {
    // SAFETY: the host passes an outcome of this library that it has not freed, or NULL.
    unsafe { free(outcome) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_origin(
    outcome: *const OutcomeObject,
    origin: *mut i32,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let number = match unsafe { outcome.as_ref() }.and_then(|object| object.outcome.origin) {
            Some(OutcomeOrigin::Executed) => 1,
            Some(OutcomeOrigin::Recovered) => 2,
            None => return false,
        };
        // SAFETY: the host's place can be written to.
        unsafe { put(origin, number) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_already_existed(outcome: *const OutcomeObject) -> bool {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(false, || unsafe {
        read(outcome, false, |outcome| outcome.already_existed)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_decided_locally(outcome: *const OutcomeObject) -> bool {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(false, || unsafe {
        read(outcome, false, |outcome| outcome.decided_locally)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_statement_count(outcome: *const OutcomeObject) -> usize {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(0, || unsafe {
        read(outcome, 0, |outcome| outcome.statements.len())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_statement(
    outcome: *const OutcomeObject,
    index: usize,
    disposition: *mut i32,
    already_existed: *mut bool,
    message: *mut *const u8,
    message_len: *mut usize,
    diagnostic_count: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let disposition = Place::new("disposition", disposition)?;
        let already_existed = Place::new("already_existed", already_existed)?;
        let message = BufferPlace::new("message", message, message_len)?;
        let diagnostic_count = Place::new("diagnostic_count", diagnostic_count)?;
        let statement = statement(outcome, index)?;
        // SAFETY: the host's places can be written to.
        unsafe {
            disposition.write(number(statement.disposition));
            already_existed.write(statement.already_existed);
            message.write(statement.message.as_bytes());
            diagnostic_count.write(statement.diagnostics.len());
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_statement_diagnostic(
    outcome: *const OutcomeObject,
    index: usize,
    diagnostic: usize,
    message: *mut *const u8,
    message_len: *mut usize,
    has_span: *mut bool,
    start: *mut u32,
    end: *mut u32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let places = DiagnosticPlaces::new(message, message_len, has_span, start, end)?;
        // SAFETY: the host's places can be written to.
        unsafe { places.write(&statement(outcome, index)?.diagnostics, diagnostic) }
    })
}

fn state_number(state: &TransactionState) -> i32 {
    match state {
        TransactionState::TransactionOpen => 1,
        TransactionState::TransactionCommitting => 2,
        TransactionState::TransactionCommitted => 3,
        TransactionState::TransactionFailed(_) => 4,
        TransactionState::TransactionReverted => 5,
        TransactionState::TransactionExpired => 6,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_transaction(
    outcome: *const OutcomeObject,
    id: *mut *const u8,
    id_len: *mut usize,
    domain: *mut *const u8,
    domain_len: *mut usize,
    state: *mut i32,
    accepted: *mut u64,
    applied: *mut u64,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(status) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.transaction.as_ref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put_buffer(id, id_len, status.transaction_id.as_bytes());
            put_buffer(domain, domain_len, status.domain.as_bytes());
            put(state, state_number(&status.state));
            put(accepted, status.accepted_operations);
            put(applied, status.applied_operations);
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_transaction_failure(
    outcome: *const OutcomeObject,
    operation: *mut u64,
    error: *mut *const u8,
    error_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let status =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.transaction.as_ref());
        let Some(TransactionState::TransactionFailed(failed)) = status.map(|status| &status.state)
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put(operation, failed.failing_operation);
            put_buffer(error, error_len, failed.error.as_bytes());
        }
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_outcome_admission(
    outcome: *const OutcomeObject,
    operation: *mut u64,
    transaction: *mut *const u8,
    transaction_len: *mut usize,
    position: *mut u64,
    basis: *mut *const u8,
    basis_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let Some(admission) =
            unsafe { outcome.as_ref() }.and_then(|object| object.outcome.admission.as_ref())
        else {
            return false;
        };
        let preview = &admission.preview;
        // SAFETY: the host's places can be written to.
        unsafe {
            put(operation, admission.operation);
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

fn statement(outcome: &Outcome, index: usize) -> Checked<&nervix_engine::StatementReport> {
    let count = outcome.statements.len();
    outcome.statements.get(index).ok_or_else(|| {
        invalid(format!(
            "there is no statement {index}: the outcome has {count}"
        ))
    })
}
