//! Frames that flatc made of JSON texts, so that a mistake which our encoder and decoder share would
//! show. Each must be read as what its text says.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{decode_server, CheckedRows, Frame, Part};

use super::Message;

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn frame(root: &str, name: &str) -> Frame {
    let file = path().join(root).join(format!("{name}.bin"));
    Frame::copy_from(&std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
}

fn request(request_id: u64, request: ClientRequest) -> Message {
    Message::Client(ClientMessage {
        request_id,
        request,
    })
}

fn server(body: ServerBody) -> Message {
    Message::Server(ServerMessage { body })
}

fn reply(request_id: u64, body: ReplyBody) -> Message {
    server(ServerBody::Reply(Reply { request_id, body }))
}

fn outcome(disposition: CommandDisposition) -> CommandOutcome {
    CommandOutcome::plain("ref", disposition, "")
}

fn command_outcome(disposition: CommandDisposition) -> Message {
    reply(1, ReplyBody::CommandOutcome(outcome(disposition)))
}

fn handle() -> SubscriptionHandle {
    SubscriptionHandle {
        name: "s".into(),
        generation: 2,
    }
}

fn domains() -> Vec<DomainInfo> {
    vec![
        DomainInfo {
            domain: "free".into(),
            status: DomainStatus::Running,
            start_version: 0,
            pace: DomainPace::UnpacedDomain,
        },
        DomainInfo {
            domain: "kept".into(),
            status: DomainStatus::Paused,
            start_version: u64::MAX,
            pace: DomainPace::PacedDomain(PacedDomain {
                period_nanos: 100_000_000,
                skew_nanos: 0,
            }),
        },
    ]
}

fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

fn field(name: &str, field_type: FieldType) -> RowField {
    RowField {
        name: name.into(),
        field_type,
        nullable: false,
        sensitive: false,
    }
}

fn schema() -> RowSchema {
    RowSchema {
        fields: vec![
            RowField {
                nullable: true,
                ..field("a", scalar(ScalarType::U8))
            },
            field(
                "b",
                FieldType {
                    shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType {
                        element: scalar(ScalarType::F32),
                        length: 2,
                    })),
                },
            ),
            RowField {
                sensitive: true,
                ..field(
                    "c",
                    FieldType {
                        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType {
                            element: scalar(ScalarType::Bytes),
                        })),
                    },
                )
            },
        ],
        branch: Some(RowBranch {
            branch: "by".into(),
            fields: vec![field("k", scalar(ScalarType::Datetime))],
        }),
    }
}

fn requests() -> Vec<(&'static str, Message)> {
    vec![
        (
            "command",
            request(
                1,
                ClientRequest::CommandRequest(CommandRequest {
                    query: "CREATE RELAY r SCHEMA s UNBRANCHED;".into(),
                    domain: Some("d".into()),
                    execution_reference: "0197a6f0-0000-7000-8000-000000000001".into(),
                    expected_transaction_position: None,
                    expected_preview: None,
                }),
            ),
        ),
        (
            "command_at_position_zero",
            request(
                2,
                ClientRequest::CommandRequest(CommandRequest {
                    query: "BEGIN;".into(),
                    domain: None,
                    execution_reference: "ref".into(),
                    expected_transaction_position: Some(0),
                    expected_preview: Some(TransactionPreviewIdentity {
                        transaction_id: "t".into(),
                        position: 3,
                        planning_basis: Fingerprint {
                            bytes: std::array::from_fn(|n| n as u8),
                        },
                    }),
                }),
            ),
        ),
        (
            "suggest",
            request(
                3,
                ClientRequest::SuggestRequest(SuggestRequest {
                    input: "CREATE RE".into(),
                    cursor: 9,
                    domain: Some("d".into()),
                    page_size: 100,
                    continuation: Some("next".into()),
                }),
            ),
        ),
        (
            "list_domains",
            request(4, ClientRequest::ListDomainsRequest),
        ),
        (
            "select_domain",
            request(
                5,
                ClientRequest::SelectDomainRequest(SelectDomainRequest { domain: "d".into() }),
            ),
        ),
        (
            "subscribe",
            request(
                6,
                ClientRequest::SubscribeRequest(SubscribeRequest {
                    domain: "d".into(),
                    statement: "CREATE SUBSCRIPTION s TO r".into(),
                    subscription_type: SubscriptionType::Row,
                }),
            ),
        ),
        (
            "unsubscribe",
            request(
                7,
                ClientRequest::UnsubscribeRequest(UnsubscribeRequest {
                    subscription: "s".into(),
                }),
            ),
        ),
        (
            "cancel",
            request(
                u64::MAX,
                ClientRequest::CancelRequest(CancelRequest {
                    target_request_id: 7,
                }),
            ),
        ),
        (
            "submit_batch",
            request(
                8,
                ClientRequest::SubmitBatchRequest(SubmitBatchRequest {
                    producer: 5,
                    batch: Bytes::from_static(&[255, 0, 1]),
                }),
            ),
        ),
    ]
}

fn outcomes() -> Vec<(&'static str, Message)> {
    let completed = CommandOutcome {
        message: "created".into(),
        statements: vec![StatementOutcome {
            disposition: StatementDisposition::CommandCompleted(CommandCompleted {
                already_existed: false,
            }),
            message: "one".into(),
            diagnostics: vec![],
        }],
        ..outcome(CommandDisposition::CommandCompleted(CommandCompleted {
            already_existed: true,
        }))
    };
    let failed = CommandOutcome {
        origin: OutcomeOrigin::Recovered,
        message: "expected a name".into(),
        diagnostics: vec![
            Diagnostic {
                message: "expected a name".into(),
                span: Some(SourceSpan { start: 12, end: 12 }),
            },
            Diagnostic {
                message: "no place".into(),
                span: None,
            },
        ],
        ..outcome(CommandDisposition::RequestFailed)
    };
    vec![
        (
            "command_completed",
            reply(1, ReplyBody::CommandOutcome(completed)),
        ),
        (
            "command_failed",
            reply(1, ReplyBody::CommandOutcome(failed)),
        ),
        (
            "command_redirected",
            command_outcome(CommandDisposition::LeaderRedirect(LeaderRedirect {
                leader: Some(LeaderEndpoints {
                    node: "n1".into(),
                    grpc_uri: Some("http://127.0.0.1:47391".into()),
                    web_console_uri: None,
                }),
            })),
        ),
        (
            "command_without_leader",
            command_outcome(CommandDisposition::LeaderRedirect(LeaderRedirect {
                leader: None,
            })),
        ),
        (
            "command_unknown",
            command_outcome(CommandDisposition::OutcomeUnknown(OutcomeUnknown {
                cause: UnknownOutcomeCause::LeadershipLost,
            })),
        ),
        (
            "command_conflict",
            command_outcome(CommandDisposition::ExecutionReferenceConflict(
                ExecutionReferenceConflict {
                    conflict: ExecutionReferenceConflictKind::Position,
                },
            )),
        ),
        (
            "command_expired",
            command_outcome(CommandDisposition::ExecutionReferenceExpired),
        ),
    ]
}

fn replies() -> Vec<(&'static str, Message)> {
    let subscribe = |disposition, message: &str| {
        reply(
            6,
            ReplyBody::SubscribeOutcome(SubscribeOutcome {
                disposition,
                message: message.into(),
                diagnostics: vec![],
            }),
        )
    };
    vec![
        (
            "suggestions",
            reply(
                3,
                ReplyBody::SuggestOutcome(SuggestOutcome {
                    status: SuggestionStatus::Ready,
                    suggestions: vec![Suggestion {
                        value: "RELAY".into(),
                        kind: SuggestionKind::Text,
                        edit: TextEdit {
                            start: 7,
                            end: 9,
                            replacement: "RELAY ".into(),
                        },
                    }],
                    continuation: Some("c".into()),
                }),
            ),
        ),
        (
            "domain_list",
            reply(4, ReplyBody::DomainList(DomainList { domains: domains() })),
        ),
        (
            "subscribed",
            subscribe(
                SubscribeDisposition::SubscriptionOpened(SubscriptionOpened {
                    subscription: handle(),
                    domain: "d".into(),
                    relay: "r".into(),
                    subscription_type: SubscriptionType::Row,
                    schema: schema(),
                }),
                "",
            ),
        ),
        (
            "subscribe_failed",
            subscribe(SubscribeDisposition::RequestFailed, "no relay r"),
        ),
        (
            "unsubscribed",
            reply(
                7,
                ReplyBody::UnsubscribeOutcome(UnsubscribeOutcome {
                    disposition: UnsubscribeDisposition::SubscriptionDeleted(SubscriptionDeleted {
                        subscription: handle(),
                    }),
                    message: String::new(),
                    diagnostics: vec![],
                }),
            ),
        ),
        (
            "cancel_requested",
            reply(
                9,
                ReplyBody::CancelOutcome(CancelOutcome {
                    target_request_id: 7,
                    state: CancelState::Requested,
                }),
            ),
        ),
        (
            "cancelled",
            reply(
                7,
                ReplyBody::RequestCancelled(RequestCancelled {
                    stage: CancellationStage::AfterAdmission,
                }),
            ),
        ),
        (
            "rejected",
            reply(
                7,
                ReplyBody::RequestRejected(RequestRejected {
                    rejection: RequestRejection::TooManyRequestsInFlight,
                    field: None,
                    message: "64 are in flight".into(),
                }),
            ),
        ),
        (
            "part",
            reply(
                7,
                ReplyBody::TransferPart(TransferPart {
                    total_bytes: 5,
                    offset: 3,
                    chunk: Bytes::from_static(&[1, 2]),
                }),
            ),
        ),
    ]
}

fn events() -> Vec<(&'static str, Message)> {
    let leadership = |leadership| {
        server(ServerBody::LeadershipObserved(LeadershipObserved {
            leadership,
        }))
    };
    let ending = |reason| server(ServerBody::SessionEnding(SessionEnding { reason }));
    vec![
        (
            "notice",
            server(ServerBody::ServerNotice(ServerNotice {
                level: NoticeLevel::Warning,
                message: "mind the gap".into(),
            })),
        ),
        (
            "leader_is_here",
            leadership(Leadership::LeaderIsServingNode(LeaderIsServingNode {
                node: "n1".into(),
            })),
        ),
        (
            "leader_is_remote",
            leadership(Leadership::LeaderIsRemote(LeaderIsRemote {
                leader: LeaderEndpoints {
                    node: "n2".into(),
                    grpc_uri: Some("https://n2:1".into()),
                    web_console_uri: Some("https://n2:2".into()),
                },
            })),
        ),
        ("no_leader", leadership(Leadership::LeaderUnknown)),
        (
            "domains",
            server(ServerBody::DomainsObserved(DomainsObserved {
                domains: domains(),
            })),
        ),
        (
            "delivery_lost",
            server(ServerBody::SubscriptionDeliveryLost(
                SubscriptionDeliveryLost {
                    subscription: handle(),
                    dropped_rows: 7,
                },
            )),
        ),
        (
            "rows_skipped",
            server(ServerBody::SubscriptionRowsSkipped(
                SubscriptionRowsSkipped {
                    subscription: handle(),
                    cause: RowsSkippedCause::EncodingFailed,
                    skipped_rows: 1,
                    message: "too large".into(),
                },
            )),
        ),
        (
            "subscription_ended",
            server(ServerBody::SubscriptionEnded(SubscriptionEnded {
                subscription: handle(),
                reason: SubscriptionEndReason::RelayChanged,
                message: String::new(),
            })),
        ),
        (
            "shutting_down",
            ending(SessionEndReason::ServerShuttingDown),
        ),
        (
            "protocol_violated",
            ending(SessionEndReason::ProtocolViolated(ProtocolViolated {
                message: "zero identity".into(),
            })),
        ),
    ]
}

/// Fixtures of the other roots: the directory, the root, the name, the message.
fn streams() -> Vec<(&'static str, &'static str, &'static str, Message)> {
    let digest = Fingerprint { bytes: [7; 32] };
    vec![
        (
            "upload_message",
            "UploadMessage",
            "start",
            Message::Upload(UploadMessage {
                part: UploadPart::UploadStart(UploadStart {
                    request_id: 1,
                    domain: "d".into(),
                    resource: "r".into(),
                    upload_identity: "u".into(),
                    total_bytes: 3,
                }),
            }),
        ),
        (
            "upload_message",
            "UploadMessage",
            "chunk",
            Message::Upload(UploadMessage {
                part: UploadPart::UploadChunk(UploadChunk {
                    bytes: Bytes::from_static(&[1, 2, 3]),
                }),
            }),
        ),
        (
            "upload_reply",
            "UploadReply",
            "installed",
            Message::UploadReply(UploadReply {
                request_id: Some(1),
                disposition: UploadDisposition::ResourceInstalled(ResourceInstalled {
                    upload_identity: "u".into(),
                    version: 4,
                    origin: OutcomeOrigin::Executed,
                }),
                message: String::new(),
                diagnostics: vec![],
            }),
        ),
        (
            "upload_reply",
            "UploadReply",
            "failed_early",
            Message::UploadReply(UploadReply {
                request_id: None,
                disposition: UploadDisposition::UploadFailed(UploadFailed {
                    upload_identity: None,
                    failure: UploadFailure::InvalidStream,
                    assigned_version: None,
                }),
                message: "no start".into(),
                diagnostics: vec![],
            }),
        ),
        (
            "backup_download_request",
            "BackupDownloadRequest",
            "request",
            Message::BackupRequest(BackupDownloadRequest {
                execution_reference: "ref".into(),
            }),
        ),
        (
            "backup_download_message",
            "BackupDownloadMessage",
            "start",
            Message::Backup(BackupDownloadMessage {
                part: BackupDownloadPart::BackupArchiveStart(BackupArchiveStart {
                    total_bytes: 3,
                    digest: digest.clone(),
                }),
            }),
        ),
        (
            "backup_download_message",
            "BackupDownloadMessage",
            "complete",
            Message::Backup(BackupDownloadMessage {
                part: BackupDownloadPart::BackupArchiveComplete,
            }),
        ),
        (
            "restore_message",
            "RestoreMessage",
            "start",
            Message::Restore(RestoreMessage {
                part: RestorePart::RestoreStart(RestoreStart {
                    request_id: 1,
                    execution_reference: "ref".into(),
                    statement: "RESTORE CLUSTER FROM 'a'".into(),
                    total_bytes: 3,
                    digest,
                }),
            }),
        ),
        (
            "restore_reply",
            "RestoreReply",
            "failed",
            Message::RestoreReply(RestoreReply {
                request_id: Some(0),
                disposition: RestoreDisposition::RestoreUploadFailed(RestoreUploadFailed {
                    failure: RestoreUploadFailure::DigestMismatch,
                    message: "another digest".into(),
                }),
            }),
        ),
    ]
}

// rule: F-1, F-2, F-4, F-5
#[test]
fn frames_of_flatc_are_read_as_their_texts_say() {
    let session = [outcomes(), replies(), events()].concat();
    let named = |directory, root, cases: Vec<(&'static str, Message)>| {
        cases
            .into_iter()
            .map(move |(name, message)| (directory, root, name, message))
    };
    let mut seen = BTreeSet::from(["server_message/rows".to_owned()]);
    for (directory, root, name, expected) in named("client_message", "ClientMessage", requests())
        .chain(named("server_message", "ServerMessage", session))
        .chain(streams())
    {
        let read = Message::decode(root, &frame(directory, name));
        assert_eq!(read, Ok(expected), "{directory}/{name}");
        seen.insert(format!("{directory}/{name}"));
    }
    let mut present = BTreeSet::new();
    for directory in std::fs::read_dir(path()).unwrap() {
        for file in std::fs::read_dir(directory.unwrap().path()).unwrap() {
            let file = file.unwrap().path().with_extension("");
            let name = file.strip_prefix(path()).unwrap().to_str().unwrap();
            present.insert(name.replace('\\', "/"));
        }
    }
    assert_eq!(present, seen, "every fixture is read by this test");
}

fn rows_schema() -> RowSchema {
    let scalars = [
        ScalarType::U8,
        ScalarType::I8,
        ScalarType::U16,
        ScalarType::I16,
        ScalarType::U32,
        ScalarType::I32,
        ScalarType::U64,
        ScalarType::I64,
        ScalarType::F32,
        ScalarType::F64,
        ScalarType::Bool,
        ScalarType::String,
        ScalarType::Bytes,
        ScalarType::Datetime,
    ];
    let mut fields: Vec<_> = scalars.map(|of| field("f", scalar(of))).into();
    fields.push(field(
        "l",
        FieldType {
            shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType {
                element: scalar(ScalarType::U8),
            })),
        },
    ));
    fields.push(RowField {
        nullable: true,
        ..field("n", scalar(ScalarType::U8))
    });
    fields.push(RowField {
        sensitive: true,
        ..field("r", scalar(ScalarType::U8))
    });
    RowSchema {
        fields,
        branch: Some(RowBranch {
            branch: "by".into(),
            fields: vec![field("k", scalar(ScalarType::String))],
        }),
    }
}

// rule: F-1, R-2, R-3, R-4, R-5
#[test]
fn rows_of_flatc_are_read_as_their_text_says() {
    let message = decode_server(&frame("server_message", "rows")).unwrap();
    let ServerBody::SubscriptionRows(rows) = message.body else {
        panic!("rows came back as {message:?}");
    };
    assert_eq!(rows.subscription, handle());
    let rows: CheckedRows = rows.check(std::sync::Arc::new(rows_schema())).unwrap();
    let read = |part, column| format!("{:?}", rows.cell(part, 0, column).unwrap());
    let cells: Vec<_> = (0..17).map(|column| read(Part::Rows, column)).collect();
    let expected = [
        "U8(255)",
        "I8(-128)",
        "U16(65535)",
        "I16(-32768)",
        "U32(4294967295)",
        "I32(-2147483648)",
        "U64(18446744073709551615)",
        "I64(-9223372036854775808)",
        "F32(0.0)",
        "F64(-0.5)",
        "Bool(true)",
        "String(\"ä𝄞\")",
        "Bytes([0, 255])",
        "Datetime(-1)",
        "List([U8(0), U8(1)])",
        "Null",
        "Redacted",
    ];
    assert_eq!(cells, expected);
    assert_eq!(read(Part::BranchKey, 0), "String(\"\")");
}
