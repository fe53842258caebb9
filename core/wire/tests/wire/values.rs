//! Values: round trips of every sample, and every rule of every field of every table broken once.

use std::collections::HashSet;

use nervix_wire::types::*;
use nervix_wire::{decode_client, decode_server, encode_client, encode_server, Frame};

use super::layout::ROOTS;
use super::walk::{follow, mutations, possible_defects, slot, Defect};
use super::{samples, Message};

// rule: F-1, F-2, F-4
#[test]
fn every_sample_of_every_root_survives_its_frame() {
    for (root, identifier) in ROOTS {
        for (number, message) in Message::samples(root).enumerate() {
            let bytes = message.encode().unwrap();
            assert_eq!(bytes[4..8], identifier[..], "{root} {number}");
            let decoded = Message::decode(root, &Frame::copy_from(&bytes));
            assert_eq!(decoded.as_ref(), Ok(&message), "{root} {number}");
        }
    }
}

/// Breaks each rule of each field at least once and says which frames were still accepted.
// rule: F-3, F-4
#[test]
fn every_undeclared_absent_zero_empty_or_misordered_value_is_refused() {
    for (root, _) in ROOTS {
        let mut tried: HashSet<Defect> = HashSet::new();
        for message in Message::samples(root) {
            let bytes = message.encode().unwrap();
            for mutation in mutations(&bytes, root) {
                if !tried.insert(mutation.defect.clone()) {
                    continue;
                }
                let changed = Frame::copy_from(&mutation.apply(&bytes));
                let refused = Message::decode(root, &changed);
                assert!(
                    refused.is_err(),
                    "{root} with {:?} was read as {refused:?}",
                    mutation.defect
                );
            }
        }
        let mut missed: Vec<Defect> = possible_defects(root).difference(&tried).cloned().collect();
        missed.sort();
        assert_eq!(missed, [], "defects of {root} that no sample could have");
    }
}

// rule: F-4
#[test]
fn violations_name_the_rule_and_the_place() {
    let message = ServerMessage {
        body: ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message: "hello".into(),
        }),
    };
    let bytes = encode_server(&message).unwrap();
    let refused = |defect: &str| {
        let mutation = mutations(&bytes, "ServerMessage")
            .into_iter()
            .find(|mutation| mutation.defect.what == defect)
            .unwrap();
        decode_server(&Frame::copy_from(&mutation.apply(&bytes))).unwrap_err()
    };
    let violation = refused("the value past its last");
    assert_eq!(violation.rule(), "F-4");
    assert_eq!(
        violation.to_string(),
        "ServerNotice.level has the undeclared value 3 (F-4)"
    );
    let violation = refused("the member past its last");
    assert_eq!(
        violation.message(),
        "ServerMessage.body has the undeclared member 17"
    );
    assert_eq!(
        refused("no member").message(),
        "ServerMessage.body holds nothing"
    );
}

fn command(position: Option<u64>) -> ClientMessage {
    ClientMessage {
        request_id: 1,
        request: ClientRequest::CommandRequest(CommandRequest {
            query: "SHOW CLUSTER STATUS".into(),
            domain: None,
            execution_reference: "reference".into(),
            expected_transaction_position: position,
            expected_preview: None,
        }),
    }
}

// rule: F-5
#[test]
fn an_absent_position_and_position_zero_stay_two_things() {
    let bytes = |position| encode_client(&command(position)).unwrap();
    let on_the_wire = |bytes: &[u8]| {
        let root = follow(bytes, 0);
        let request = follow(bytes, slot(bytes, root, 8).unwrap());
        slot(bytes, request, 10).map(|at| bytes[at..at + 8].to_vec())
    };
    assert_eq!(on_the_wire(&bytes(None)), None);
    assert_eq!(on_the_wire(&bytes(Some(0))), Some(vec![0; 8]));
    for position in [None, Some(0), Some(7)] {
        let decoded = decode_client(&Frame::copy_from(&bytes(position))).unwrap();
        assert_eq!(decoded, command(position));
    }
}

// rule: F-5
#[test]
fn a_scalar_that_is_required_keeps_its_zero() {
    let info = DomainInfo {
        domain: "d".into(),
        status: DomainStatus::Stopped,
        start_version: 0,
        pace: DomainPace::UnpacedDomain,
    };
    let message = ServerMessage {
        body: ServerBody::DomainsObserved(DomainsObserved {
            domains: vec![info],
        }),
    };
    let bytes = encode_server(&message).unwrap();
    assert_eq!(decode_server(&Frame::copy_from(&bytes)), Ok(message));
}

/// Encodes without checking and decodes, so that a value which breaks a rule reaches the decoder.
fn server(body: ServerBody) -> Result<ServerMessage, String> {
    let bytes = encode_server(&ServerMessage { body }).unwrap();
    decode_server(&Frame::copy_from(&bytes)).map_err(|violation| violation.message().to_owned())
}

fn reply(body: ReplyBody) -> Result<ServerMessage, String> {
    server(ServerBody::Reply(Reply {
        request_id: 1,
        body,
    }))
}

fn outcome(change: impl Fn(&mut CommandOutcome)) -> Result<ServerMessage, String> {
    let mut outcome = CommandOutcome::plain("reference", CommandDisposition::RequestFailed, "");
    change(&mut outcome);
    reply(ReplyBody::CommandOutcome(outcome))
}

// rule: F-4
#[test]
fn a_span_does_not_end_before_it_starts() {
    let span = |start, end| {
        outcome(|outcome| {
            outcome.diagnostics = vec![Diagnostic {
                message: "unexpected token".into(),
                span: Some(SourceSpan { start, end }),
            }];
        })
    };
    assert!(span(12, 12).is_ok());
    assert_eq!(
        span(13, 12).unwrap_err(),
        "SourceSpan ends before it starts"
    );
}

// rule: F-4
#[test]
fn a_transaction_has_not_applied_more_than_it_accepted() {
    let status = |accepted_operations, applied_operations| {
        outcome(|outcome| {
            outcome.transaction = Some(TransactionStatus {
                transaction_id: "t".into(),
                domain: "d".into(),
                state: TransactionState::TransactionOpen,
                accepted_operations,
                applied_operations,
            });
        })
    };
    assert!(status(2, 2).is_ok());
    assert!(status(2, 3).unwrap_err().contains("applied more"));
}

// rule: F-4
#[test]
fn a_time_rate_is_positive_and_finite() {
    let clock = |time_rate| {
        server(ServerBody::DomainClockObserved(DomainClockObserved {
            domain: "d".into(),
            clock: DomainClockObservation {
                generation: 1,
                state: DomainClockObservedState::PacedDomainClock(PacedDomainClock {
                    period_nanos: 1,
                    skew_nanos: 0,
                    logical_origin_unix_nanos: -1,
                    utc_anchor_unix_nanos: 0,
                    time_rate,
                }),
            },
        }))
    };
    assert!(clock(0.25).is_ok());
    for rate in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(clock(rate).unwrap_err().contains("time_rate"), "{rate}");
    }
}

// rule: F-4
#[test]
fn credit_and_backoff_limits_agree_with_each_other() {
    let producer = |change: &dyn Fn(&mut ProducerOpened)| {
        let mut opened = samples::producer_opened(0);
        change(&mut opened);
        reply(ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
            disposition: OpenIngestorDisposition::ProducerOpened(opened),
            message: String::new(),
        }))
    };
    let emitter = |change: &dyn Fn(&mut EmitterOpened)| {
        let mut opened = samples::emitter_opened(0);
        change(&mut opened);
        reply(ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
            disposition: OpenEmitterDisposition::EmitterOpened(opened),
            message: String::new(),
        }))
    };
    assert!(producer(&|_| ()).is_ok());
    assert!(emitter(&|_| ()).is_ok());
    assert!(producer(&|v| (v.retry_backoff_nanos, v.retry_max_backoff_nanos) = (2, 1)).is_err());
    assert!(emitter(&|v| (v.retry_backoff_nanos, v.retry_max_backoff_nanos) = (2, 1)).is_err());
    assert!(producer(&|v| (v.max_batch_bytes, v.granted_bytes) = (2, 1)).is_err());
    assert!(emitter(&|v| (v.max_batch_bytes, v.granted_bytes) = (2, 1)).is_err());
}

// rule: F-4
#[test]
fn a_cut_has_times_and_counters_exactly_when_quiesced() {
    let cut = |kind, engaged_at, released_at, counter| {
        outcome(|outcome| {
            outcome.backup = Some(BackupArchiveSummary {
                domains: vec![BackupDomainSummary {
                    domain: "d".into(),
                    revision: 0,
                    cut: BackupCut {
                        kind,
                        engaged_at,
                        released_at,
                        buffered_records: 0,
                        buffered_bytes: 0,
                        dropped_records: 0,
                        rejected_records: counter,
                    },
                    sections: 0,
                    section_bytes: 0,
                }],
                ..samples::backup_archive_summary(0)
            });
        })
        .is_ok()
    };
    use BackupCutKind::{ConfigurationOnly, Live, Quiesced, Stopped};
    assert!(cut(Quiesced, Some(1), Some(1), 3));
    assert!(!cut(Quiesced, Some(2), Some(1), 0));
    assert!(!cut(Quiesced, Some(1), None, 0));
    assert!(!cut(Quiesced, None, None, 0));
    for kind in [Live, Stopped, ConfigurationOnly] {
        assert!(cut(kind, None, None, 0));
        assert!(!cut(kind, Some(1), Some(1), 0));
        assert!(!cut(kind, None, Some(1), 0));
        assert!(!cut(kind, None, None, 1));
    }
}

// rule: F-4
#[test]
fn domains_of_an_archive_ascend_strictly() {
    let archive = |names: &[&str]| {
        outcome(|outcome| {
            outcome.backup = Some(BackupArchiveSummary {
                domains: names
                    .iter()
                    .map(|name| BackupDomainSummary {
                        domain: (*name).into(),
                        ..samples::backup_domain_summary(0)
                    })
                    .collect(),
                ..samples::backup_archive_summary(0)
            });
        })
        .is_ok()
    };
    assert!(archive(&["B", "a", "b"]));
    assert!(!archive(&["a", "a"]));
    assert!(!archive(&["a", "B"]));
}

// rule: F-4
#[test]
fn a_restore_step_names_a_domain_unless_it_is_of_users() {
    let step = |kind, domain: Option<&str>| {
        outcome(|outcome| {
            outcome.restore = Some(RestoreReport {
                steps: vec![RestoreStepReport {
                    kind,
                    domain: domain.map(str::to_owned),
                    outcome: RestoreStepOutcome::Applied,
                }],
                ..samples::restore_report(0)
            });
        })
        .is_ok()
    };
    assert!(step(RestoreStepKind::Users, None));
    assert!(!step(RestoreStepKind::Users, Some("d")));
    assert!(step(RestoreStepKind::CreateDomain, Some("d")));
    assert!(!step(RestoreStepKind::CreateDomain, None));
}

// rule: F-4
#[test]
fn models_are_planned_only_by_a_dry_run() {
    let restore = |mode| {
        outcome(|outcome| {
            outcome.restore = Some(RestoreReport {
                mode,
                domains: vec![RestoredDomain {
                    planned_models: Some(samples::transaction_impact_report(0)),
                    ..samples::restored_domain(0)
                }],
                ..samples::restore_report(0)
            });
        })
        .is_ok()
    };
    assert!(restore(RestoreMode::DryRun));
    assert!(!restore(RestoreMode::Apply));
}

// rule: F-4
#[test]
fn versions_of_a_resource_ascend() {
    let resource = |versions: &[u64]| {
        outcome(|outcome| {
            outcome.resource = Some(ResourceDescription {
                versions: versions
                    .iter()
                    .map(|version| ResourceVersionDescription {
                        version: *version,
                        ..samples::resource_version_description(0)
                    })
                    .collect(),
                ..samples::resource_description(0)
            });
        })
        .is_ok()
    };
    assert!(resource(&[1, 3]));
    assert!(!resource(&[3, 1]));
    assert!(!resource(&[1, 1]));
}

fn inspected(change: impl Fn(&mut TransactionImpactReport)) -> Result<ServerMessage, String> {
    let operation = samples::operation_report(0);
    let step = samples::execution_step_report(0);
    let mut report = TransactionImpactReport {
        operations: (1..=3)
            .map(|number| OperationReport {
                number,
                ..operation.clone()
            })
            .collect(),
        execution_steps: [(1, 1), (2, 3)]
            .map(|(first, last)| ExecutionStepReport {
                operations: OperationRange { first, last },
                ..step.clone()
            })
            .to_vec(),
        ..samples::transaction_impact_report(0)
    };
    change(&mut report);
    reply(ReplyBody::InspectionOutcome(InspectionOutcome {
        disposition: InspectionDisposition::TransactionInspected(TransactionInspected {
            transaction: samples::transaction_status(0),
            operation: None,
            report,
        }),
    }))
}

// rule: F-4
#[test]
fn operations_are_numbered_and_covered_by_their_steps() {
    assert!(inspected(|_| ()).is_ok());
    assert!(inspected(|report| report.operations[1].number = 5).is_err());
    assert!(inspected(|report| report.execution_steps[1].operations.first = 3).is_err());
    assert!(inspected(|report| report.execution_steps[1].operations.last = 4).is_err());
    assert!(inspected(|report| report.execution_steps.truncate(1)).is_err());
    assert!(inspected(|report| report.execution_steps.reverse()).is_err());
    let range = |first, last| {
        inspected(|report| report.operations[0].execution_step = OperationRange { first, last })
    };
    assert!(range(1, 1).is_ok());
    assert!(range(0, 1).is_err());
    assert!(range(2, 1).is_err());
}

// rule: F-4
#[test]
fn a_pause_names_each_coverage_and_boundary_once() {
    let paused = |nodes: usize, gates: usize| {
        inspected(|report| {
            let scope = QuiesceSubgraph {
                domain: "d".into(),
                nodes: vec![samples::attributed_node(0); nodes],
                gate_boundaries: vec![samples::attributed_gate_boundary(0); gates],
            };
            report.execution_steps[0].planned.pause =
                PauseRequirement::SubgraphPause(SubgraphPause { scope });
        })
        .is_ok()
    };
    assert!(paused(1, 1));
    assert!(!paused(2, 1));
    assert!(!paused(1, 2));
}
