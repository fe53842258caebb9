//! Outcomes, schemas, suggestions and errors.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use nervix_engine::{Disposition, Error, ErrorKind, OpenedSubscription, Outcome, StatementReport};
use nervix_wire::types::{
    BackupArchiveSummary, BackupResources, Diagnostic, DomainStatus, Fingerprint, OutcomeOrigin,
    RestoreMode, RestoreReport, RestoreStepKind, RestoreStepOutcome, RestoreStepReport,
    RestoredDomain, ScalarType, SourceSpan, SuggestOutcome, Suggestion, SuggestionKind,
    SuggestionStatus, TextEdit, TransactionFailed, TransactionOperationAdmission,
    TransactionPreviewIdentity, TransactionState, TransactionStatus,
};

use super::rows::{branched, field, fixed, list, nullable, scalar, schema, sensitive};
use super::{borrowed, kind, INVALID_ARGUMENT};
use crate::errors::{
    nx_error_execution_reference, nx_error_free, nx_error_kind_of, nx_error_open_refusal,
    nxx_error_held_transaction, nxx_error_unsent,
};
use crate::outcome::*;
use crate::schema::*;
use crate::suggestions::*;

fn outcome() -> Outcome {
    let spanned = Diagnostic {
        message: "here".to_owned(),
        span: Some(SourceSpan { start: 3, end: 9 }),
    };
    let loose = Diagnostic {
        message: "somewhere".to_owned(),
        span: None,
    };
    let step = |outcome| RestoreStepReport {
        kind: RestoreStepKind::ApplyModels,
        domain: Some("d".to_owned()),
        outcome,
    };
    let domain = |models| RestoredDomain {
        source: "d".to_owned(),
        domain: "d".to_owned(),
        resource_versions: 2,
        models,
        status: DomainStatus::Stopped,
        start_version: 1,
        planned_models: None,
    };
    Outcome {
        disposition: Disposition::Failed,
        message: "no\0pe".to_owned(),
        reference: Some("ref-1".to_owned()),
        diagnostics: vec![spanned.clone(), loose.clone()],
        statements: vec![
            StatementReport {
                disposition: Disposition::Completed,
                already_existed: true,
                message: "first".to_owned(),
                diagnostics: vec![],
            },
            StatementReport {
                disposition: Disposition::Failed,
                already_existed: false,
                message: "second".to_owned(),
                diagnostics: vec![loose, spanned],
            },
        ],
        origin: Some(OutcomeOrigin::Recovered),
        already_existed: true,
        decided_locally: true,
        subscription: Some(OpenedSubscription {
            name: Arc::from("s"),
            generation: 12,
            schema: Arc::new(schema(vec![field("a", scalar(ScalarType::U8))])),
        }),
        backup: Some(BackupArchiveSummary {
            total_bytes: 77,
            digest: Fingerprint { bytes: [5; 32] },
            captured_at: 0,
            retained_until: 0,
            resources: BackupResources::Included,
            users: None,
            domains: vec![],
        }),
        restore: Some(RestoreReport {
            mode: RestoreMode::DryRun,
            total_bytes: 77,
            digest: Fingerprint { bytes: [5; 32] },
            captured_at: 0,
            users: None,
            domains: vec![domain(3), domain(4)],
            steps: vec![
                step(RestoreStepOutcome::Applied),
                step(RestoreStepOutcome::Failed),
            ],
        }),
        transaction: Some(TransactionStatus {
            transaction_id: "t-1".to_owned(),
            domain: "d".to_owned(),
            state: TransactionState::TransactionFailed(TransactionFailed {
                failing_operation: 2,
                error: "why".to_owned(),
            }),
            accepted_operations: 3,
            applied_operations: 1,
        }),
        admission: Some(TransactionOperationAdmission {
            operation: 3,
            preview: TransactionPreviewIdentity {
                transaction_id: "t-1".to_owned(),
                position: 3,
                planning_basis: Fingerprint { bytes: [6; 32] },
            },
        }),
    }
}

fn bare() -> Outcome {
    Outcome {
        disposition: Disposition::Completed,
        message: String::new(),
        reference: None,
        diagnostics: vec![],
        statements: vec![],
        origin: None,
        already_existed: false,
        decided_locally: false,
        subscription: None,
        backup: None,
        restore: None,
        transaction: None,
        admission: None,
    }
}

/// A buffer that an accessor borrowed.
fn buffer(read: impl FnOnce(*mut *const u8, *mut usize)) -> Vec<u8> {
    let (mut pointer, mut len) = (null(), 0);
    read(&mut pointer, &mut len);
    // SAFETY: the object that it was borrowed from is alive.
    unsafe { borrowed(pointer, len) }.to_vec()
}

type Read = (Vec<u8>, bool, u32, u32);

fn diagnostic(
    handle: *const OutcomeObject,
    statement: Option<usize>,
    index: usize,
) -> Result<Read, i32> {
    let (mut text, mut len, mut has_span, mut start, mut end) = (null(), 0, false, 99, 99);
    // SAFETY: the outcome is a live one, and the places can be written to.
    unsafe {
        let error = match statement {
            None => nx_outcome_diagnostic(
                handle,
                index,
                &mut text,
                &mut len,
                &mut has_span,
                &mut start,
                &mut end,
            ),
            Some(statement) => nxx_outcome_statement_diagnostic(
                handle,
                statement,
                index,
                &mut text,
                &mut len,
                &mut has_span,
                &mut start,
                &mut end,
            ),
        };
        match kind(error) {
            0 => Ok((borrowed(text, len).to_vec(), has_span, start, end)),
            kind => Err(kind),
        }
    }
}

// rule: B-4, E-7, E-8
#[test]
fn an_outcome_reads_as_it_is() {
    let object = OutcomeObject {
        outcome: Arc::new(outcome()),
    };
    let handle: *const OutcomeObject = &object;
    // SAFETY: the outcome is a live one, and the places can be written to.
    unsafe {
        assert_eq!(nx_outcome_disposition(handle), 2);
        assert_eq!(
            buffer(|text, len| nx_outcome_message(handle, text, len)),
            b"no\0pe"
        );
        assert_eq!(
            buffer(|text, len| assert!(nx_outcome_execution_reference(handle, text, len))),
            b"ref-1"
        );
        assert_eq!(nx_outcome_diagnostic_count(handle), 2);
        assert_eq!(
            diagnostic(handle, None, 0),
            Ok((b"here".to_vec(), true, 3, 9))
        );
        assert_eq!(
            diagnostic(handle, None, 1),
            Ok((b"somewhere".to_vec(), false, 99, 99))
        );
        assert_eq!(diagnostic(handle, None, 2), Err(INVALID_ARGUMENT));
        let mut generation = 0;
        let name = buffer(|text, len| {
            assert!(nx_outcome_subscription(handle, text, len, &mut generation))
        });
        assert_eq!((name, generation), (b"s".to_vec(), 12));
        let mut total = 0;
        let digest = buffer(|text, len| assert!(nx_outcome_backup(handle, &mut total, text, len)));
        assert_eq!((digest, total), (vec![5; 32], 77));
        let (mut dry_run, mut domains, mut versions, mut models, mut failed) =
            (false, 0, 0, 0, false);
        assert!(nx_outcome_restore(
            handle,
            &mut dry_run,
            &mut domains,
            &mut versions,
            &mut models,
            &mut failed
        ));
        assert_eq!(
            (dry_run, domains, versions, models, failed),
            (true, 2, 4, 7, true)
        );
        let mut schema = null_mut();
        assert_eq!(kind(nx_outcome_schema(handle, &mut schema)), 0);
        nx_schema_free(schema);
        let mut origin = 0;
        assert!(nxx_outcome_origin(handle, &mut origin));
        assert_eq!(origin, 2);
        assert!(nxx_outcome_already_existed(handle) && nxx_outcome_decided_locally(handle));
        assert_eq!(nxx_outcome_statement_count(handle), 2);
        let (mut disposition, mut existed, mut count) = (0, false, 9);
        let text = buffer(|text, len| {
            let error = nxx_outcome_statement(
                handle,
                0,
                &mut disposition,
                &mut existed,
                text,
                len,
                &mut count,
            );
            assert_eq!(kind(error), 0);
        });
        assert_eq!(
            (text, disposition, existed, count),
            (b"first".to_vec(), 1, true, 0)
        );
        assert_eq!(
            diagnostic(handle, Some(1), 1),
            Ok((b"here".to_vec(), true, 3, 9))
        );
        assert_eq!(diagnostic(handle, Some(0), 0), Err(INVALID_ARGUMENT));
        assert_eq!(diagnostic(handle, Some(2), 0), Err(INVALID_ARGUMENT));
    }
}

// rule
#[test]
fn an_outcome_tells_of_its_transaction() {
    let object = OutcomeObject {
        outcome: Arc::new(outcome()),
    };
    let handle: *const OutcomeObject = &object;
    // SAFETY: the outcome is a live one, and the places can be written to, or are NULL.
    unsafe {
        let (mut state, mut accepted, mut applied) = (0, 0, 0);
        let mut domain = Vec::new();
        let id = buffer(|id, id_len| {
            domain = buffer(|text, len| {
                assert!(nxx_outcome_transaction(
                    handle,
                    id,
                    id_len,
                    text,
                    len,
                    &mut state,
                    &mut accepted,
                    &mut applied
                ));
            });
        });
        assert_eq!((id, domain), (b"t-1".to_vec(), b"d".to_vec()));
        assert_eq!((state, accepted, applied), (4, 3, 1));
        let mut operation = 0;
        let why = buffer(|text, len| {
            assert!(nxx_outcome_transaction_failure(
                handle,
                &mut operation,
                text,
                len
            ))
        });
        assert_eq!((why, operation), (b"why".to_vec(), 2));
        let (mut operation, mut position) = (0, 0);
        let mut basis = Vec::new();
        let id = buffer(|id, id_len| {
            basis = buffer(|text, len| {
                assert!(nxx_outcome_admission(
                    handle,
                    &mut operation,
                    id,
                    id_len,
                    &mut position,
                    text,
                    len
                ));
            });
        });
        assert_eq!((id, basis), (b"t-1".to_vec(), vec![6; 32]));
        assert_eq!((operation, position), (3, 3));

        let bare = OutcomeObject {
            outcome: Arc::new(bare()),
        };
        let none = null_mut();
        for handle in [&bare as *const OutcomeObject, null()] {
            assert!(!nxx_outcome_transaction(
                handle,
                none,
                null_mut(),
                none,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut()
            ));
            assert!(!nxx_outcome_transaction_failure(
                handle,
                null_mut(),
                none,
                null_mut()
            ));
            assert!(!nxx_outcome_admission(
                handle,
                null_mut(),
                none,
                null_mut(),
                null_mut(),
                none,
                null_mut()
            ));
        }
    }
}

#[test]
fn a_bare_outcome_says_what_it_lacks() {
    let object = OutcomeObject {
        outcome: Arc::new(bare()),
    };
    for handle in [&object as *const OutcomeObject, null()] {
        let mut schema = null_mut();
        // SAFETY: NULL places are skipped where nothing is written.
        unsafe {
            assert!(!nx_outcome_execution_reference(
                handle,
                null_mut(),
                null_mut()
            ));
            assert!(!nx_outcome_subscription(
                handle,
                null_mut(),
                null_mut(),
                null_mut()
            ));
            assert!(!nx_outcome_backup(
                handle,
                null_mut(),
                null_mut(),
                null_mut()
            ));
            assert!(!nx_outcome_restore(
                handle,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut()
            ));
            assert!(!nxx_outcome_origin(handle, null_mut()));
            assert!(!nxx_outcome_already_existed(handle) && !nxx_outcome_decided_locally(handle));
            assert_eq!(
                (
                    nx_outcome_diagnostic_count(handle),
                    nxx_outcome_statement_count(handle)
                ),
                (0, 0)
            );
            assert_eq!(
                (kind(nx_outcome_schema(handle, &mut schema)), schema),
                (INVALID_ARGUMENT, null_mut())
            );
        }
        assert_eq!(diagnostic(handle, None, 0), Err(INVALID_ARGUMENT));
    }
}

#[test]
fn a_schema_reads_by_parts_and_levels() {
    let nested = list(fixed(list(scalar(ScalarType::Datetime)), 4));
    let fields = vec![
        nullable("n", nested),
        sensitive("b", scalar(ScalarType::Bytes)),
        field("s", scalar(ScalarType::String)),
    ];
    let handle = SchemaObject::hand_out(Arc::new(branched(
        fields,
        vec![field("k", scalar(ScalarType::Bool))],
    )));
    // SAFETY: the schema is a live one, and the places can be written to.
    unsafe {
        let mut count = 0;
        for (part, wanted) in [(1, 3), (2, 1)] {
            assert_eq!(kind(nx_schema_field_count(handle, part, &mut count)), 0);
            assert_eq!(count, wanted);
        }
        assert_eq!(
            kind(nx_schema_field_count(handle, 0, &mut count)),
            INVALID_ARGUMENT
        );
        let read = |part, index| {
            let (mut number, mut nullable, mut sensitive) = (0, false, false);
            let (mut text, mut len) = (null(), 0);
            let error = nx_schema_field(
                handle,
                part,
                index,
                &mut text,
                &mut len,
                &mut number,
                &mut nullable,
                &mut sensitive,
            );
            match kind(error) {
                0 => Ok((borrowed(text, len).to_vec(), number, nullable, sensitive)),
                kind => Err(kind),
            }
        };
        assert_eq!(read(1, 0), Ok((b"n".to_vec(), 16, true, false)));
        assert_eq!(read(1, 1), Ok((b"b".to_vec(), 13, false, true)));
        assert_eq!(read(1, 2), Ok((b"s".to_vec(), 12, false, false)));
        assert_eq!(read(2, 0), Ok((b"k".to_vec(), 11, false, false)));
        for (part, index) in [(1, 3), (2, 1), (3, 0)] {
            assert_eq!(read(part, index), Err(INVALID_ARGUMENT));
        }
        let mut levels = 0;
        assert_eq!(kind(nx_schema_field_levels(handle, 1, 0, &mut levels)), 0);
        assert_eq!(levels, 4);
        let level = |level| {
            let (mut number, mut length) = (0, 99);
            match kind(nx_schema_field_level(
                handle,
                1,
                0,
                level,
                &mut number,
                &mut length,
            )) {
                0 => Ok((number, length)),
                kind => Err(kind),
            }
        };
        let read: Vec<_> = (0..5).map(level).collect();
        assert_eq!(
            read,
            [
                Ok((16, 0)),
                Ok((15, 4)),
                Ok((16, 0)),
                Ok((14, 0)),
                Err(INVALID_ARGUMENT)
            ]
        );
        assert_eq!(
            buffer(|text, len| assert!(nx_schema_branch(handle, text, len))),
            b"by_carrier"
        );
        nx_schema_free(handle);
        let plain = SchemaObject::hand_out(Arc::new(schema(vec![])));
        assert!(!nx_schema_branch(plain, null_mut(), null_mut()));
        assert_eq!(kind(nx_schema_field_count(plain, 2, &mut count)), 0);
        assert_eq!(count, 0);
        nx_schema_free(plain);
    }
}

#[test]
fn every_scalar_has_its_number() {
    let numbers = [
        (ScalarType::U8, 1),
        (ScalarType::I8, 2),
        (ScalarType::U16, 3),
        (ScalarType::I16, 4),
        (ScalarType::U32, 5),
        (ScalarType::I32, 6),
        (ScalarType::U64, 7),
        (ScalarType::I64, 8),
        (ScalarType::F32, 9),
        (ScalarType::F64, 10),
        (ScalarType::Bool, 11),
        (ScalarType::String, 12),
        (ScalarType::Bytes, 13),
        (ScalarType::Datetime, 14),
    ];
    assert_eq!(numbers.len(), ScalarType::ALL.len());
    for (of, wanted) in numbers {
        let handle = SchemaObject::hand_out(Arc::new(schema(vec![field("a", scalar(of))])));
        let (mut number, mut length) = (0, 99);
        // SAFETY: the schema is a live one, and the places can be written to.
        unsafe {
            assert_eq!(
                kind(nx_schema_field_level(
                    handle,
                    1,
                    0,
                    0,
                    &mut number,
                    &mut length
                )),
                0
            );
            nx_schema_free(handle);
        }
        assert_eq!((number, length), (wanted, 0));
    }
}

#[test]
fn suggestions_read_as_they_are() {
    let edit = TextEdit {
        start: 1,
        end: 2,
        replacement: "new".to_owned(),
    };
    let suggestion = Suggestion {
        value: "v".to_owned(),
        kind: SuggestionKind::LocalDirectoryLookup,
        edit,
    };
    let page = SuggestOutcome {
        status: SuggestionStatus::StaleContext,
        suggestions: vec![suggestion],
        continuation: Some("more".to_owned()),
    };
    let object = SuggestionsObject { page };
    let handle: *const SuggestionsObject = &object;
    // SAFETY: the suggestions are live ones, and the places can be written to.
    unsafe {
        assert_eq!(
            (nx_suggestions_status(handle), nx_suggestions_count(handle)),
            (3, 1)
        );
        let read = |index| {
            let (mut number, mut start, mut end) = (0, 0, 0);
            let (mut value, mut value_len, mut text, mut len) = (null(), 0, null(), 0);
            let error = nx_suggestions_at(
                handle,
                index,
                &mut number,
                &mut value,
                &mut value_len,
                &mut start,
                &mut end,
                &mut text,
                &mut len,
            );
            match kind(error) {
                0 => Ok((
                    number,
                    borrowed(value, value_len).to_vec(),
                    start,
                    end,
                    borrowed(text, len).to_vec(),
                )),
                kind => Err(kind),
            }
        };
        assert_eq!(read(0), Ok((2, b"v".to_vec(), 1, 2, b"new".to_vec())));
        assert_eq!(read(1), Err(INVALID_ARGUMENT));
        assert_eq!(
            buffer(|text, len| assert!(nx_suggestions_continuation(handle, text, len))),
            b"more"
        );
        assert!(!nx_suggestions_continuation(null(), null_mut(), null_mut()));
        assert_eq!(
            (nx_suggestions_status(null()), nx_suggestions_count(null())),
            (0, 0)
        );
    }
}

#[test]
fn errors_have_their_numbers_and_references() {
    use ErrorKind::*;
    let kinds = [
        InvalidArgument,
        Connect,
        Transport,
        Uncertain,
        Rejected,
        Deadline,
        Cancelled,
        Overflow,
        Protocol,
        Type,
        Closed,
        Interrupted,
        ReopenRequired,
    ];
    for (number, of) in (1..).zip(kinds) {
        let mut error = Error::new(of, "x");
        error.reference = (number % 2 == 0).then(|| "ref".to_owned());
        let handle = crate::arguments::guarded(|| Err(error));
        // SAFETY: the error is a live one, and the places can be written to.
        unsafe {
            assert_eq!(nx_error_kind_of(handle), number);
            let (mut text, mut len) = (null(), 0);
            assert_eq!(
                nx_error_execution_reference(handle, &mut text, &mut len),
                number % 2 == 0
            );
            assert_eq!(
                borrowed(text, len),
                if number % 2 == 0 { &b"ref"[..] } else { b"" }
            );
            assert!(!nx_error_open_refusal(handle, null_mut()));
            assert!(!nxx_error_unsent(handle));
            assert!(!nxx_error_held_transaction(handle, null_mut(), null_mut()));
            nx_error_free(handle);
        }
    }
}

#[test]
fn an_error_says_whether_anything_was_sent_and_names_the_transaction_held() {
    let mut error = Error::new(ErrorKind::Rejected, "x");
    error.unsent = true;
    error.held = Some("a, b".to_owned());
    let handle = crate::arguments::guarded(|| Err(error));
    // SAFETY: the error is a live one, and the places can be written to.
    unsafe {
        assert!(nxx_error_unsent(handle));
        let (mut text, mut len) = (null(), 0);
        assert!(nxx_error_held_transaction(handle, &mut text, &mut len));
        assert_eq!(borrowed(text, len), b"a, b");
        nx_error_free(handle);
        assert!(!nxx_error_unsent(null()));
        assert!(!nxx_error_held_transaction(null(), &mut text, &mut len));
    }
}
