//! Frames of a node, in as few words as a test wants to spend.

use nervix_wire::types::*;
use nervix_wire::{encode_rows, encode_server};

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
        execution_reference: reference.into(),
        origin,
        disposition,
        message: message.into(),
        diagnostics: Vec::new(),
        statements: Vec::new(),
        transaction: None,
        transaction_admission: None,
        inspection: None,
        wasm_state: None,
        resource: None,
        backup: None,
        restore: None,
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
