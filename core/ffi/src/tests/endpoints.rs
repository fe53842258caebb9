//! Producers, consumers, deliveries and outcomes as far as they need no server.

use std::ptr::{null, null_mut};

use nervix_engine::{
    Error, ErrorKind, OpenRefusal, SubmissionOutcome, SubmissionResult, Uncertainty,
};
use nervix_wire::types::{ProcessingFailure, SubmissionRefusal};

use super::{borrowed, kind, INVALID_ARGUMENT, TYPE};
use crate::arguments::guarded;
use crate::consumer::*;
use crate::errors::{nx_error_free, nx_error_open_refusal};
use crate::producer::*;

/// The kinds of errors of the four causes, and their numbers.
fn causes(result: SubmissionResult) -> (i32, [(i32, i32); 4]) {
    let object = SubmissionOutcomeObject {
        outcome: SubmissionOutcome {
            result,
            message: "why\0not".to_owned(),
        },
    };
    let (mut text, mut len, mut number) = (null(), 0, 0);
    // SAFETY: the outcome is a live one, and the places can be written to.
    unsafe {
        nx_submission_outcome_message(&object, &mut text, &mut len);
        assert_eq!(borrowed(text, len), b"why\0not");
        let read = |error: *mut crate::errors::ErrorObject, number: &mut i32| {
            (kind(error), std::mem::take(number))
        };
        let causes = [
            read(
                nx_submission_outcome_refusal(&object, &mut number),
                &mut number,
            ),
            read(
                nx_submission_outcome_defect(&object, &mut number),
                &mut number,
            ),
            read(
                nx_submission_outcome_failure(&object, &mut number),
                &mut number,
            ),
            read(
                nx_submission_outcome_uncertainty(&object, &mut number),
                &mut number,
            ),
        ];
        (nx_submission_outcome_result(&object), causes)
    }
}

const NO: (i32, i32) = (TYPE, 0);

// rule: P-5, B-14
#[test]
fn an_outcome_has_the_cause_of_its_result() {
    assert_eq!(causes(SubmissionResult::Completed), (2, [NO; 4]));
    let refusals = [
        (SubmissionRefusal::MalformedBatch, 1, Some(1)),
        (SubmissionRefusal::UnexpectedMessage, 1, Some(2)),
        (SubmissionRefusal::CompressedBatch, 1, Some(3)),
        (SubmissionRefusal::SchemaMismatch, 1, Some(4)),
        (SubmissionRefusal::NotOneBatch, 1, Some(5)),
        (SubmissionRefusal::TooManyRows, 1, Some(6)),
        (SubmissionRefusal::BatchTooLarge, 1, Some(7)),
        (SubmissionRefusal::InvalidData, 1, Some(8)),
        (SubmissionRefusal::Suspended, 2, None),
        (SubmissionRefusal::Busy, 3, None),
        (SubmissionRefusal::Draining, 4, None),
        (SubmissionRefusal::ProducerEnded, 5, None),
        (SubmissionRefusal::CreditExceeded, 6, None),
    ];
    assert_eq!(refusals.len(), SubmissionRefusal::ALL.len());
    for (refusal, number, defect) in refusals {
        let defect = defect.map_or(NO, |defect| (0, defect));
        let found = causes(SubmissionResult::NotAdmitted(refusal));
        assert_eq!(found, (1, [(0, number), defect, NO, NO]));
    }
    for (failure, number) in [
        (ProcessingFailure::AckTimedOut, 1),
        (ProcessingFailure::Rejected, 2),
    ] {
        let found = causes(SubmissionResult::ProcessingFailed(failure));
        assert_eq!(found, (3, [NO, NO, (0, number), NO]));
    }
    for (uncertainty, number) in [
        (Uncertainty::Interrupted, 1),
        (Uncertainty::OwnerLost, 2),
        (Uncertainty::SessionLost, 3),
    ] {
        let found = causes(SubmissionResult::OutcomeUnknown(uncertainty));
        assert_eq!(found, (4, [NO, NO, NO, (0, number)]));
    }
}

// rule: B-12
#[test]
fn a_refused_open_says_why() {
    for (refusal, number) in [
        (OpenRefusal::DomainNotFound, 1),
        (OpenRefusal::DomainStopped, 2),
        (OpenRefusal::EndpointNotFound, 3),
        (OpenRefusal::NotClientEndpoint, 4),
        (OpenRefusal::EndpointUnavailable, 5),
        (OpenRefusal::SchemaMismatch, 6),
        (OpenRefusal::TooManyEndpoints, 7),
        (OpenRefusal::SessionCapacityExhausted, 8),
        (OpenRefusal::NodeCapacityExhausted, 9),
        (OpenRefusal::InvalidLimits, 10),
        (OpenRefusal::InTransaction, 11),
    ] {
        let error = guarded(|| {
            let mut error = Error::new(ErrorKind::Rejected, "no");
            error.refusal = Some(refusal);
            Err(error)
        });
        let mut found = 0;
        // SAFETY: the error is a live one, freed here once.
        unsafe {
            assert!(nx_error_open_refusal(error, null_mut()));
            assert!(nx_error_open_refusal(error, &mut found));
            nx_error_free(error);
        }
        assert_eq!(found, number);
    }
}

#[test]
fn null_handles_are_refused_or_nothing() {
    // SAFETY: NULL is what is tested.
    unsafe {
        nx_producer_free(null_mut());
        nx_consumer_free(null_mut());
        nx_submission_outcome_free(null_mut());
        nx_delivery_release(null_mut());
        assert!(nx_delivery_retain(null_mut()).is_null());
        assert_eq!(nx_producer_generation(null()), 0);
        assert_eq!(nx_producer_admission(null()), 0);
        assert_eq!(nx_producer_state(null()), 0);
        assert_eq!(nx_consumer_generation(null()), 0);
        assert_eq!(nx_consumer_state(null()), 0);
        assert_eq!(nx_delivery_members(null()), 0);
        assert_eq!(nx_delivery_execution_now(null()), 0);
        assert_eq!(nx_submission_outcome_result(null()), 0);
        let none = null_mut();
        assert!(!nx_producer_reopen_reason(null(), none, none));
        assert!(!nx_consumer_reopen_reason(null(), none, none));
        let (mut text, mut len) = (null(), 7);
        assert!(!nx_delivery_branch_fingerprint(null(), &mut text, &mut len));
        assert_eq!(len, 7);
        nx_producer_contract(null(), &mut text, &mut len);
        assert_eq!(len, 0);
        for read in [
            nx_delivery_identity,
            nx_delivery_reference,
            nx_delivery_source_relay,
            nx_delivery_ipc,
        ] {
            read(null(), &mut text, &mut len);
            assert_eq!(len, 0);
            read(null(), null_mut(), null_mut());
        }
        nx_consumer_contract(null(), null_mut(), null_mut());
        nx_producer_grant(null(), null_mut(), null_mut(), null_mut(), null_mut());
        nx_consumer_grant(null(), null_mut(), null_mut(), null_mut(), null_mut());
        let no = null_mut::<u64>();
        nx_producer_policy(null(), null_mut(), no, no, no, no);
        nx_consumer_policy(null(), null_mut(), no, no, no, no);
        nx_submission_outcome_message(null(), null_mut(), null_mut());
        let (mut schema, mut producer, mut consumer) = (null_mut(), null_mut(), null_mut());
        let (mut outcome, mut delivery, mut batch) = (null_mut(), null_mut(), null_mut());
        let (mut number, mut id, mut count) = (0, 0, 0);
        let fields = crate::fields::nx_fields_new();
        let name = b"n".as_ptr();
        for error in [
            nx_producer_schema(null(), &mut schema),
            nx_consumer_schema(null(), &mut schema),
            nx_session_open_ingestor(
                null(),
                name,
                1,
                name,
                1,
                fields,
                1,
                1,
                null(),
                &mut producer,
            ),
            nx_session_open_ingestor(null(), name, 1, name, 1, fields, 1, 1, null(), null_mut()),
            nx_session_subscribe_emitter(
                null(),
                name,
                1,
                name,
                1,
                fields,
                1,
                1,
                null(),
                &mut consumer,
            ),
            nx_session_subscribe_emitter(
                null(),
                name,
                1,
                name,
                1,
                null(),
                1,
                1,
                null(),
                null_mut(),
            ),
            nx_producer_submit(null(), null(), null(), &mut id),
            nx_producer_submit_ipc(null(), name, 1, null(), &mut id),
            nx_producer_rejoin(null(), 1, null(), &mut outcome),
            nx_producer_pending(null(), null_mut(), null_mut(), 0, &mut count),
            nx_producer_release(null(), 1, &mut outcome),
            nx_producer_close(null(), null()),
            nx_submission_outcome_refusal(null(), &mut number),
            nx_submission_outcome_defect(null(), &mut number),
            nx_submission_outcome_failure(null(), &mut number),
            nx_submission_outcome_uncertainty(null(), &mut number),
            nx_consumer_next(null(), null(), &mut delivery),
            nx_consumer_close(null(), null()),
            nx_delivery_batch(null(), &mut batch),
            nx_delivery_ack(null(), null(), &mut number),
            nx_delivery_retry(null(), null(), &mut number),
            nx_delivery_reject(null(), name, 1, null(), &mut number),
        ] {
            assert_eq!(kind(error), INVALID_ARGUMENT);
        }
        crate::fields::nx_fields_free(fields);
    }
}
