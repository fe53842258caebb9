//! Frames of a node, in as few words as a test wants to spend.

use nervix_wire::types::*;
use nervix_wire::{encode_rows, encode_server};

/// What a server calls a request that must not be sent again unchanged (C-8).
pub const DEFECTS: [RequestRejection; 4] = [
    RequestRejection::InvalidRequest,
    RequestRejection::UnsupportedRequest,
    RequestRejection::UnsupportedValue,
    RequestRejection::DuplicateRequestId,
];

pub fn server(body: ServerBody) -> Vec<u8> {
    encode_server(&ServerMessage { body }).unwrap()
}

pub fn reply(request_id: u64, body: ReplyBody) -> Vec<u8> {
    server(ServerBody::Reply(Reply { request_id, body }))
}

pub fn reply_message(request_id: u64, body: ReplyBody) -> ServerMessage {
    ServerMessage {
        body: ServerBody::Reply(Reply { request_id, body }),
    }
}

pub fn endpoints(node: &str, uri: Option<&str>) -> LeaderEndpoints {
    LeaderEndpoints {
        node: node.into(),
        grpc_uri: uri.map(Into::into),
        web_console_uri: None,
    }
}

pub fn leadership(leadership: Leadership) -> Vec<u8> {
    server(ServerBody::LeadershipObserved(LeadershipObserved {
        leadership,
    }))
}

pub fn leads_itself() -> Leadership {
    Leadership::LeaderIsServingNode(LeaderIsServingNode { node: "n".into() })
}

pub fn led_by(uri: &str) -> Leadership {
    Leadership::LeaderIsRemote(LeaderIsRemote {
        leader: endpoints("other", Some(uri)),
    })
}

pub fn domain_info(name: &str) -> DomainInfo {
    DomainInfo {
        domain: name.into(),
        status: DomainStatus::Running,
        start_version: 7,
        pace: DomainPace::UnpacedDomain,
    }
}

pub fn domains(names: &[&str]) -> ServerMessage {
    ServerMessage {
        body: ServerBody::DomainsObserved(DomainsObserved {
            domains: names.iter().map(|name| domain_info(name)).collect(),
        }),
    }
}

pub fn notice(message: &str) -> Vec<u8> {
    server(ServerBody::ServerNotice(ServerNotice {
        level: NoticeLevel::Info,
        message: message.into(),
    }))
}

pub fn ending(reason: SessionEndReason) -> Vec<u8> {
    server(ServerBody::SessionEnding(SessionEnding { reason }))
}

pub fn outcome(
    reference: &str,
    origin: OutcomeOrigin,
    disposition: CommandDisposition,
    message: &str,
) -> ReplyBody {
    ReplyBody::CommandOutcome(CommandOutcome {
        origin,
        ..CommandOutcome::plain(reference, disposition, message)
    })
}

pub fn completed(reference: &str) -> ReplyBody {
    outcome(
        reference,
        OutcomeOrigin::Executed,
        CommandDisposition::CommandCompleted(CommandCompleted {
            already_existed: false,
        }),
        "done",
    )
}

pub fn redirect(reference: &str, leader: Option<LeaderEndpoints>) -> ReplyBody {
    outcome(
        reference,
        OutcomeOrigin::Executed,
        CommandDisposition::LeaderRedirect(LeaderRedirect { leader }),
        "not the leader",
    )
}

pub fn unknown(reference: &str) -> ReplyBody {
    outcome(
        reference,
        OutcomeOrigin::Executed,
        CommandDisposition::OutcomeUnknown(OutcomeUnknown {
            cause: UnknownOutcomeCause::StillApplying,
        }),
        "still applying",
    )
}

pub fn rejected(rejection: RequestRejection) -> ReplyBody {
    ReplyBody::RequestRejected(RequestRejected {
        rejection,
        field: None,
        message: "not now".into(),
    })
}

pub fn cancelled(stage: CancellationStage) -> ReplyBody {
    ReplyBody::RequestCancelled(RequestCancelled { stage })
}

pub fn cancel_outcome(target_request_id: u64, state: CancelState) -> ReplyBody {
    ReplyBody::CancelOutcome(CancelOutcome {
        target_request_id,
        state,
    })
}

pub fn suggestions(values: &[&str]) -> ReplyBody {
    ReplyBody::SuggestOutcome(SuggestOutcome {
        status: SuggestionStatus::Ready,
        suggestions: values
            .iter()
            .map(|value| Suggestion {
                value: (*value).into(),
                kind: SuggestionKind::Text,
                edit: TextEdit {
                    start: 0,
                    end: 0,
                    replacement: (*value).into(),
                },
            })
            .collect(),
        continuation: None,
    })
}

pub fn domain_list(names: &[&str]) -> ReplyBody {
    ReplyBody::DomainList(DomainList {
        domains: names.iter().map(|name| domain_info(name)).collect(),
    })
}

pub fn handle(name: &str, generation: u64) -> SubscriptionHandle {
    SubscriptionHandle {
        name: name.into(),
        generation,
    }
}

pub fn scalar(name: &str, scalar: ScalarType) -> RowField {
    RowField {
        name: name.into(),
        field_type: FieldType {
            shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
        },
        nullable: false,
        sensitive: false,
    }
}

/// Two numbers a row: whose it is and where it stands.
pub fn numbers() -> RowSchema {
    RowSchema {
        fields: vec![
            scalar("stream", ScalarType::U64),
            scalar("place", ScalarType::U64),
        ],
        branch: None,
    }
}

pub fn opened(name: &str, generation: u64, schema: RowSchema) -> ReplyBody {
    ReplyBody::SubscribeOutcome(SubscribeOutcome {
        disposition: SubscribeDisposition::SubscriptionOpened(SubscriptionOpened {
            subscription: handle(name, generation),
            domain: "d".into(),
            relay: "r".into(),
            subscription_type: SubscriptionType::Row,
            schema,
        }),
        message: "opened".into(),
        diagnostics: Vec::new(),
    })
}

pub fn not_opened(message: &str) -> ReplyBody {
    ReplyBody::SubscribeOutcome(SubscribeOutcome {
        disposition: SubscribeDisposition::RequestFailed,
        message: message.into(),
        diagnostics: vec![Diagnostic {
            message: message.into(),
            span: None,
        }],
    })
}

pub fn deleted(name: &str, generation: u64) -> ReplyBody {
    ReplyBody::UnsubscribeOutcome(UnsubscribeOutcome {
        disposition: UnsubscribeDisposition::SubscriptionDeleted(SubscriptionDeleted {
            subscription: handle(name, generation),
        }),
        message: "deleted".into(),
        diagnostics: Vec::new(),
    })
}

pub fn not_deleted(message: &str) -> ReplyBody {
    ReplyBody::UnsubscribeOutcome(UnsubscribeOutcome {
        disposition: UnsubscribeDisposition::RequestFailed,
        message: message.into(),
        diagnostics: Vec::new(),
    })
}

pub fn number(value: u64) -> CellValue {
    CellValue::U64Cell(U64Cell { value })
}

/// Rows of [`numbers`].
pub fn rows(name: &str, generation: u64, stream: u64, places: std::ops::Range<u64>) -> Vec<u8> {
    let rows: Vec<_> = places
        .map(|place| vec![number(stream), number(place)])
        .collect();
    encode_rows(&handle(name, generation), None, &rows).unwrap()
}

pub fn delivery_lost(name: &str, generation: u64, dropped_rows: u64) -> Vec<u8> {
    server(ServerBody::SubscriptionDeliveryLost(
        SubscriptionDeliveryLost {
            subscription: handle(name, generation),
            dropped_rows,
        },
    ))
}

pub fn rows_skipped(name: &str, generation: u64, skipped_rows: u64) -> Vec<u8> {
    server(ServerBody::SubscriptionRowsSkipped(
        SubscriptionRowsSkipped {
            subscription: handle(name, generation),
            cause: RowsSkippedCause::FilterFailed,
            skipped_rows,
            message: "the filter failed".into(),
        },
    ))
}

pub fn ended(name: &str, generation: u64, reason: SubscriptionEndReason) -> Vec<u8> {
    server(ServerBody::SubscriptionEnded(SubscriptionEnded {
        subscription: handle(name, generation),
        reason,
        message: "the relay changed".into(),
    }))
}

// ---- clocks

/// A paced clock: a tick a second of logical time, at the pace of the wall.
pub fn paced() -> DomainClockObservedState {
    DomainClockObservedState::PacedDomainClock(PacedDomainClock {
        period_nanos: 1_000_000_000,
        skew_nanos: 0,
        logical_origin_unix_nanos: 0,
        utc_anchor_unix_nanos: 0,
        time_rate: 1.0,
    })
}

pub fn clock(generation: u64, state: DomainClockObservedState) -> DomainClockObservation {
    DomainClockObservation { generation, state }
}

fn attach_outcome(disposition: DomainClockAttachDisposition, message: &str) -> ReplyBody {
    ReplyBody::DomainClockAttachOutcome(DomainClockAttachOutcome {
        disposition,
        message: message.into(),
    })
}

pub fn clock_attached(domain: &str, clock: DomainClockObservation) -> ReplyBody {
    attach_outcome(
        DomainClockAttachDisposition::DomainClockAttached(DomainClockAttached {
            domain: domain.into(),
            clock,
        }),
        "attached",
    )
}

pub fn clock_already_attached(domain: &str) -> ReplyBody {
    attach_outcome(
        DomainClockAttachDisposition::DomainClockAlreadyAttached(DomainClockAlreadyAttached {
            domain: domain.into(),
        }),
        "attached already",
    )
}

pub fn clock_domain_not_found(domain: &str) -> ReplyBody {
    attach_outcome(
        DomainClockAttachDisposition::DomainNotFound(DomainNotFound {
            domain: domain.into(),
        }),
        "no such domain",
    )
}

pub fn clock_attach_failed(message: &str) -> ReplyBody {
    attach_outcome(DomainClockAttachDisposition::RequestFailed, message)
}

fn detach_outcome(disposition: DomainClockDetachDisposition, message: &str) -> ReplyBody {
    ReplyBody::DomainClockDetachOutcome(DomainClockDetachOutcome {
        disposition,
        message: message.into(),
    })
}

pub fn clock_detached(domain: &str) -> ReplyBody {
    detach_outcome(
        DomainClockDetachDisposition::DomainClockDetached(DomainClockDetached {
            domain: domain.into(),
        }),
        "detached",
    )
}

pub fn clock_not_attached(domain: &str) -> ReplyBody {
    detach_outcome(
        DomainClockDetachDisposition::DomainClockNotAttached(DomainClockNotAttached {
            domain: domain.into(),
        }),
        "not attached",
    )
}

pub fn clock_detach_failed(message: &str) -> ReplyBody {
    detach_outcome(DomainClockDetachDisposition::RequestFailed, message)
}

pub fn clock_observed(domain: &str, clock: DomainClockObservation) -> Vec<u8> {
    server(ServerBody::DomainClockObserved(DomainClockObserved {
        domain: domain.into(),
        clock,
    }))
}

/// A tick of [`paced`]: its boundary follows from its id.
pub fn clock_ticked(domain: &str, generation: u64, id: u64) -> Vec<u8> {
    let boundary = (id as i64 - 1).wrapping_mul(1_000_000_000);
    server(ServerBody::DomainClockTicked(DomainClockTicked {
        domain: domain.into(),
        generation,
        tick_id: id,
        logical_boundary_unix_nanos: boundary,
        authority_utc_unix_nanos: boundary.wrapping_add(1),
        serving_logical_unix_nanos: boundary.wrapping_add(2),
    }))
}

pub fn clock_ended(domain: &str) -> Vec<u8> {
    server(ServerBody::DomainClockAttachmentEnded(
        DomainClockAttachmentEnded {
            domain: domain.into(),
            reason: DomainClockAttachmentEndReason::DomainRemoved,
        },
    ))
}

// ---- producers

/// What an ingestor of [`numbers`] grants: two batches and 1000 bytes, backing off from 100 ms to 400 ms.
pub fn ingestor(domain: &str, name: &str) -> ProducerOpened {
    ProducerOpened {
        domain: domain.into(),
        ingestor: name.into(),
        fields: numbers().fields,
        generation: 7,
        contract: Fingerprint { bytes: [1; 32] },
        attachment: [2; 16],
        window: ProducerWindow::ParallelProducerWindow(ParallelProducerWindow { max: 8 }),
        ack_timeout_nanos: 1_000_000_000,
        retry_backoff_nanos: 100_000_000,
        retry_max_backoff_nanos: 400_000_000,
        granted_batches: 2,
        granted_bytes: 1000,
        max_batch_bytes: 1000,
        max_batch_rows: 65_536,
        admission: ProducerAdmission::Open,
    }
}

pub fn producer_opened(opened: ProducerOpened) -> ReplyBody {
    ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
        disposition: OpenIngestorDisposition::ProducerOpened(opened),
        message: "opened".into(),
    })
}

pub fn producer_refused(refusal: ProducerRefusal) -> ReplyBody {
    ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
        disposition: OpenIngestorDisposition::ProducerRefused(ProducerRefused { refusal }),
        message: "refused".into(),
    })
}

pub fn admission(producer: u64, admission: ProducerAdmission) -> Vec<u8> {
    server(ServerBody::ProducerAdmissionChanged(
        ProducerAdmissionChanged {
            producer,
            admission,
        },
    ))
}

pub fn producer_ended(producer: u64, reason: ProducerEndReason) -> Vec<u8> {
    server(ServerBody::ProducerEnded(ProducerEnded {
        producer,
        reason,
        message: "it ended".into(),
    }))
}

fn submission(disposition: SubmissionDisposition, message: &str) -> ReplyBody {
    ReplyBody::SubmissionOutcome(SubmissionOutcome {
        disposition,
        message: message.into(),
    })
}

pub fn batch_completed() -> ReplyBody {
    submission(SubmissionDisposition::SubmissionCompleted, "")
}

pub fn batch_refused(refusal: SubmissionRefusal) -> ReplyBody {
    submission(
        SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted { refusal }),
        "not admitted",
    )
}

pub fn batch_failed(failure: ProcessingFailure) -> ReplyBody {
    submission(
        SubmissionDisposition::SubmissionFailed(SubmissionFailed { failure }),
        "failed",
    )
}

pub fn batch_unknown(cause: OutcomeUncertainty) -> ReplyBody {
    submission(
        SubmissionDisposition::SubmissionOutcomeUnknown(SubmissionOutcomeUnknown { cause }),
        "unknown",
    )
}

pub fn producer_closed() -> ReplyBody {
    ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome {
        disposition: CloseIngestorDisposition::ProducerClosed,
        message: "closed".into(),
    })
}

pub fn producer_not_open() -> ReplyBody {
    ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome {
        disposition: CloseIngestorDisposition::ProducerNotOpen,
        message: "not open".into(),
    })
}

// ---- consumers

/// What an emitter of [`numbers`] grants.
pub fn emitter(domain: &str, name: &str) -> EmitterOpened {
    EmitterOpened {
        domain: domain.into(),
        emitter: name.into(),
        fields: numbers().fields,
        generation: 7,
        contract: Fingerprint { bytes: [3; 32] },
        window: ConsumerWindow::ParallelConsumerWindow(ParallelConsumerWindow { max: 8 }),
        ack_timeout_nanos: 1_000_000_000,
        retry_backoff_nanos: 100_000_000,
        retry_max_backoff_nanos: 400_000_000,
        granted_batches: 4,
        granted_bytes: 4000,
        max_batch_bytes: 1000,
        max_batch_rows: 100,
    }
}

pub fn consumer_opened(opened: EmitterOpened) -> ReplyBody {
    ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
        disposition: OpenEmitterDisposition::EmitterOpened(opened),
        message: "opened".into(),
    })
}

pub fn consumer_refused(refusal: EmitterOpenRefusal) -> ReplyBody {
    ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
        disposition: OpenEmitterDisposition::EmitterRefused(EmitterRefused { refusal }),
        message: "refused".into(),
    })
}

/// An attempt: its identity and reference are told apart by a number each.
pub fn delivery(identity: u64, reference: u64) -> ReplyBody {
    ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
        disposition: ReadEmitterDisposition::EmitterBatchReceived(EmitterBatchReceived {
            identity: sixteen(identity),
            reference: sixteen(reference),
            source_relay: "r".into(),
            branch_fingerprint: None,
            batch: content(identity),
            members: 3,
            execution_now_unix_nanos: -5,
        }),
        message: String::new(),
    })
}

pub fn consumer_ended() -> ReplyBody {
    ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
        disposition: ReadEmitterDisposition::EmitterConsumerEnded,
        message: "ended".into(),
    })
}

pub fn settled(disposition: EmitterSettlement) -> ReplyBody {
    ReplyBody::SettleEmitterBatchOutcome(SettleEmitterBatchOutcome {
        disposition,
        message: "settled".into(),
    })
}

pub fn consumer_closed(disposition: EmitterCloseDisposition) -> ReplyBody {
    ReplyBody::CloseEmitterOutcome(CloseEmitterOutcome {
        disposition,
        message: "closed".into(),
    })
}

pub fn sixteen(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Bytes that an engine takes for a batch, told apart by a number.
pub fn content(number: u64) -> bytes::Bytes {
    format!("batch {number}").into_bytes().into()
}

// ---- transactions

pub fn transaction(id: &str, accepted: u64) -> TransactionStatus {
    transaction_in(id, TransactionState::TransactionOpen, accepted)
}

pub fn transaction_in(id: &str, state: TransactionState, accepted: u64) -> TransactionStatus {
    TransactionStatus {
        transaction_id: id.into(),
        domain: "d".into(),
        state,
        accepted_operations: accepted,
        applied_operations: 0,
    }
}

pub fn preview(id: &str, position: u64, basis: u8) -> TransactionPreviewIdentity {
    TransactionPreviewIdentity {
        transaction_id: id.into(),
        position,
        planning_basis: Fingerprint { bytes: [basis; 32] },
    }
}

/// A command's outcome that reports the transaction its session holds.
pub fn bound(mut body: ReplyBody, status: TransactionStatus) -> ReplyBody {
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.transaction = Some(status);
    }
    body
}

/// An append's outcome: accepted as this operation, with the preview after it.
pub fn appended(reference: &str, id: &str, accepted: u64, basis: u8) -> ReplyBody {
    let mut body = bound(completed(reference), transaction(id, accepted));
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.transaction_admission = Some(TransactionOperationAdmission {
            operation: accepted,
            preview: preview(id, accepted, basis),
        });
    }
    body
}

/// What a DESCRIBE TRANSACTION is answered: a transaction, and what would be committed at a position of it.
pub fn inspected(reference: &str, of: TransactionStatus, position: u64, basis: u8) -> ReplyBody {
    let mut body = completed(reference);
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.inspection = Some(TransactionInspected {
            report: TransactionImpactReport {
                domain: of.domain.clone(),
                position,
                planning_basis: Fingerprint { bytes: [basis; 32] },
                completeness: ImpactCompleteness::ImpactComplete,
                operations: Vec::new(),
                execution_steps: Vec::new(),
            },
            transaction: of,
            operation: None,
        });
    }
    body
}

pub fn command_failed(reference: &str, message: &str) -> ReplyBody {
    outcome(
        reference,
        OutcomeOrigin::Executed,
        CommandDisposition::RequestFailed,
        message,
    )
}

pub fn detached(reference: &str, id: &str) -> ReplyBody {
    outcome(
        reference,
        OutcomeOrigin::Executed,
        CommandDisposition::TransactionDetached(TransactionDetached {
            transaction_id: id.into(),
        }),
        "detached",
    )
}

fn attached_as(disposition: AttachDisposition) -> ReplyBody {
    ReplyBody::AttachOutcome(AttachOutcome {
        disposition,
        message: "about the transaction".into(),
        diagnostics: Vec::new(),
    })
}

pub fn transaction_attached(transaction: TransactionStatus) -> ReplyBody {
    attached_as(AttachDisposition::TransactionAttached(
        TransactionAttached { transaction },
    ))
}

pub fn transaction_finished(transaction: TransactionStatus) -> ReplyBody {
    attached_as(AttachDisposition::TransactionAlreadyFinished(
        TransactionAlreadyFinished { transaction },
    ))
}

pub fn transaction_attach_failed() -> ReplyBody {
    attached_as(AttachDisposition::RequestFailed)
}

pub fn transaction_attach_redirect(uri: Option<&str>) -> ReplyBody {
    attached_as(AttachDisposition::LeaderRedirect(LeaderRedirect {
        leader: uri.map(|uri| endpoints("leader", Some(uri))),
    }))
}
