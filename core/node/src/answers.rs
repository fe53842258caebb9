//! Answers that tests want in place of the node's own: for clocks and endpoints, by the name that the schema gives them.
//! Must not know when they are given.

use nervix_wire::types::{
    CloseEmitterOutcome, CloseIngestorDisposition, CloseIngestorOutcome, ConsumerWindow,
    DomainClockAlreadyAttached, DomainClockAttachDisposition, DomainClockAttachOutcome,
    DomainClockDetachDisposition, DomainClockDetachOutcome, DomainClockDetached,
    DomainClockNotAttached, DomainNotFound, EmitterCloseDisposition, EmitterOpenRefusal,
    EmitterRefused, EmitterSettlement, OpenEmitterDisposition, OpenEmitterOutcome,
    OpenIngestorDisposition, OpenIngestorOutcome, OutcomeUncertainty, ParallelConsumerWindow,
    ParallelProducerWindow, ProcessingFailure, ProducerEndReason, ProducerRefusal, ProducerRefused,
    ProducerWindow, ReadEmitterBatchOutcome, ReadEmitterDisposition, ReplyBody,
    SettleEmitterBatchOutcome, SubmissionDisposition, SubmissionFailed, SubmissionNotAdmitted,
    SubmissionOutcome, SubmissionOutcomeUnknown, SubmissionRefusal,
};

/// Members of an enum by the schema's names.
macro_rules! named {
    ($names:ident: $type:ident { $($member:ident),+ $(,)? }) => {
        pub const $names: &[(&str, $type)] = &[$((stringify!($member), $type::$member)),+];
    };
}

named!(PRODUCER_REFUSALS: ProducerRefusal {
    DomainNotFound, DomainStopped, IngestorNotFound, NotClientIngestor, EndpointUnavailable, SchemaMismatch,
    TooManyProducers, SessionCapacityExhausted, NodeCapacityExhausted, InvalidLimits, InTransaction,
});
named!(EMITTER_REFUSALS: EmitterOpenRefusal {
    DomainNotFound, DomainStopped, EmitterNotFound, NotClientEmitter, EndpointUnavailable, SchemaMismatch,
    TooManyConsumers, SessionCapacityExhausted, NodeCapacityExhausted, InvalidLimits, InTransaction,
});
named!(SUBMISSION_REFUSALS: SubmissionRefusal {
    MalformedBatch, UnexpectedMessage, CompressedBatch, SchemaMismatch, NotOneBatch, TooManyRows, BatchTooLarge,
    InvalidData, Suspended, Busy, Draining, ProducerEnded, CreditExceeded,
});
named!(FAILURES: ProcessingFailure { AckTimedOut, Rejected });
named!(UNCERTAINTIES: OutcomeUncertainty { Interrupted, OwnerLost });
named!(SETTLEMENTS: EmitterSettlement { Confirmed, StaleReference, WrongConsumer, InvalidReason, ConsumerEnded });
named!(END_REASONS: ProducerEndReason {
    EndpointChanged, EndpointRemoved, DomainStopped, Relocated, ShuttingDown, OwnerLost, ProtocolViolated,
});

/// The member of this name, or which names there are.
pub fn pick<Member: Copy>(name: &str, members: &[(&str, Member)]) -> Result<Member, String> {
    members
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, member)| *member)
        .ok_or_else(|| {
            let names: Vec<&str> = members.iter().map(|(known, _)| *known).collect();
            format!("`{name}` is none of {}", names.join(", "))
        })
}

fn submission(name: &str) -> Result<SubmissionDisposition, String> {
    if name == "Completed" {
        return Ok(SubmissionDisposition::SubmissionCompleted);
    }
    if let Ok(failure) = pick(name, FAILURES) {
        return Ok(SubmissionDisposition::SubmissionFailed(SubmissionFailed {
            failure,
        }));
    }
    if let Ok(cause) = pick(name, UNCERTAINTIES) {
        return Ok(SubmissionDisposition::SubmissionOutcomeUnknown(
            SubmissionOutcomeUnknown { cause },
        ));
    }
    let refusal = pick(name, SUBMISSION_REFUSALS).map_err(|problem| {
        format!("{problem}, Completed, AckTimedOut, Rejected, Interrupted, OwnerLost")
    })?;
    Ok(SubmissionDisposition::SubmissionNotAdmitted(
        SubmissionNotAdmitted { refusal },
    ))
}

/// The answer of this name to a request of this kind; `domain` is what an answer about a clock names.
pub fn answer(
    kind: &str,
    name: &str,
    domain: Option<String>,
    message: String,
) -> Result<ReplyBody, String> {
    let of_domain = || domain.ok_or_else(|| format!("`{name}` names a `domain`"));
    Ok(match kind {
        "AttachDomainClockRequest" => {
            let disposition = match name {
                "RequestFailed" => DomainClockAttachDisposition::RequestFailed,
                "DomainNotFound" => DomainClockAttachDisposition::DomainNotFound(DomainNotFound {
                    domain: of_domain()?,
                }),
                "DomainClockAlreadyAttached" => {
                    DomainClockAttachDisposition::DomainClockAlreadyAttached(
                        DomainClockAlreadyAttached {
                            domain: of_domain()?,
                        },
                    )
                }
                other => return Err(format!("an attach is not answered with `{other}`")),
            };
            ReplyBody::DomainClockAttachOutcome(DomainClockAttachOutcome {
                disposition,
                message,
            })
        }
        "DetachDomainClockRequest" => {
            let disposition = match name {
                "RequestFailed" => DomainClockDetachDisposition::RequestFailed,
                "DomainClockDetached" => {
                    DomainClockDetachDisposition::DomainClockDetached(DomainClockDetached {
                        domain: of_domain()?,
                    })
                }
                "DomainClockNotAttached" => {
                    DomainClockDetachDisposition::DomainClockNotAttached(DomainClockNotAttached {
                        domain: of_domain()?,
                    })
                }
                other => return Err(format!("a detach is not answered with `{other}`")),
            };
            ReplyBody::DomainClockDetachOutcome(DomainClockDetachOutcome {
                disposition,
                message,
            })
        }
        "OpenIngestorRequest" => ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
            disposition: OpenIngestorDisposition::ProducerRefused(ProducerRefused {
                refusal: pick(name, PRODUCER_REFUSALS)?,
            }),
            message,
        }),
        "SubmitBatchRequest" => ReplyBody::SubmissionOutcome(SubmissionOutcome {
            disposition: submission(name)?,
            message,
        }),
        "CloseIngestorRequest" => ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome {
            disposition: match name {
                "ProducerClosed" => CloseIngestorDisposition::ProducerClosed,
                "ProducerNotOpen" => CloseIngestorDisposition::ProducerNotOpen,
                other => return Err(format!("a close is not answered with `{other}`")),
            },
            message,
        }),
        "OpenEmitterRequest" => ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
            disposition: OpenEmitterDisposition::EmitterRefused(EmitterRefused {
                refusal: pick(name, EMITTER_REFUSALS)?,
            }),
            message,
        }),
        "ReadEmitterBatchRequest" => ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
            disposition: match name {
                "EmitterConsumerEnded" => ReadEmitterDisposition::EmitterConsumerEnded,
                other => return Err(format!("a read is not answered with `{other}`")),
            },
            message,
        }),
        "SettleEmitterBatchRequest" => {
            ReplyBody::SettleEmitterBatchOutcome(SettleEmitterBatchOutcome {
                disposition: pick(name, SETTLEMENTS)?,
                message,
            })
        }
        "CloseEmitterRequest" => ReplyBody::CloseEmitterOutcome(CloseEmitterOutcome {
            disposition: match name {
                "Closed" => EmitterCloseDisposition::Closed,
                "NotOpen" => EmitterCloseDisposition::NotOpen,
                other => return Err(format!("a close is not answered with `{other}`")),
            },
            message,
        }),
        other => {
            return Err(format!(
                "`kind` is a request about a clock, a producer or a consumer, not `{other}`"
            ))
        }
    })
}

/// A part of an opened endpoint's description that differs from what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Generation,
    Contract,
    Fields,
    Window,
    AckTimeout,
    Retry,
    GrantedBatches,
    GrantedBytes,
    MaxBatchBytes,
    MaxBatchRows,
}

named!(CHANGES: Change {
    Generation, Contract, Fields, Window, AckTimeout, Retry, GrantedBatches, GrantedBytes, MaxBatchBytes,
    MaxBatchRows,
});

/// What a change does to either description, whose fields have the same names.
macro_rules! differ {
    ($opened:ident, $change:expr, $window:expr) => {
        match $change {
            Change::Generation => $opened.generation = $opened.generation.saturating_add(1),
            Change::Contract => $opened.contract.bytes.reverse(),
            Change::Fields => {
                if let Some(field) = $opened.fields.first_mut() {
                    field.nullable = !field.nullable;
                }
            }
            Change::Window => $opened.window = $window,
            Change::AckTimeout => {
                $opened.ack_timeout_nanos = $opened.ack_timeout_nanos.saturating_add(1);
            }
            Change::Retry => {
                $opened.retry_max_backoff_nanos = $opened.retry_max_backoff_nanos.saturating_add(1);
            }
            Change::GrantedBatches => {
                $opened.granted_batches = $opened.granted_batches.saturating_add(1);
            }
            Change::GrantedBytes => $opened.granted_bytes = $opened.granted_bytes.saturating_add(1),
            Change::MaxBatchBytes => {
                $opened.max_batch_bytes = $opened.max_batch_bytes.saturating_sub(1).max(1);
            }
            Change::MaxBatchRows => {
                $opened.max_batch_rows = $opened.max_batch_rows.saturating_sub(1).max(1);
            }
        }
    };
}

impl Change {
    /// Changes the description in an answer, if there is one in it.
    pub fn apply(self, body: &mut ReplyBody) {
        match body {
            ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
                disposition: OpenIngestorDisposition::ProducerOpened(opened),
                ..
            }) => {
                let window = match &opened.window {
                    ProducerWindow::SequentialProducerWindow => {
                        ProducerWindow::ParallelProducerWindow(ParallelProducerWindow { max: 2 })
                    }
                    ProducerWindow::ParallelProducerWindow(_) => {
                        ProducerWindow::SequentialProducerWindow
                    }
                };
                differ!(opened, self, window);
            }
            ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
                disposition: OpenEmitterDisposition::EmitterOpened(opened),
                ..
            }) => {
                let window = match &opened.window {
                    ConsumerWindow::SequentialConsumerWindow => {
                        ConsumerWindow::ParallelConsumerWindow(ParallelConsumerWindow { max: 2 })
                    }
                    ConsumerWindow::ParallelConsumerWindow(_) => {
                        ConsumerWindow::SequentialConsumerWindow
                    }
                };
                differ!(opened, self, window);
            }
            _ => {}
        }
    }
}
