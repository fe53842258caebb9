//! The server's producers and consumers: what is submitted is delivered, as it is.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::Bytes;
use nervix_wire::types::*;

/// Rows of every batch that tests submit.
pub const ROWS: u32 = 2;

thread_local! {
    static HELD: RefCell<VecDeque<Bytes>> = const { RefCell::new(VecDeque::new()) };
}

/// The reply to a request about endpoints. A read waits for ever when nothing was submitted.
pub fn answer(request: &ClientRequest) -> Option<ReplyBody> {
    let message = String::new();
    Some(match request {
        ClientRequest::OpenIngestorRequest(asked) if asked.ingestor == "refused" => {
            ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
                disposition: OpenIngestorDisposition::ProducerRefused(ProducerRefused {
                    refusal: ProducerRefusal::IngestorNotFound,
                }),
                message: "there is none".to_owned(),
            })
        }
        ClientRequest::OpenIngestorRequest(asked) => {
            ReplyBody::OpenIngestorOutcome(OpenIngestorOutcome {
                disposition: OpenIngestorDisposition::ProducerOpened(ProducerOpened {
                    domain: asked.domain.clone(),
                    ingestor: asked.ingestor.clone(),
                    fields: asked.expected_fields.clone(),
                    generation: 3,
                    contract: Fingerprint { bytes: [7; 32] },
                    attachment: [1; 16],
                    window: ProducerWindow::SequentialProducerWindow,
                    ack_timeout_nanos: 1_000_000_000,
                    retry_backoff_nanos: 1_000_000,
                    retry_max_backoff_nanos: 2_000_000,
                    granted_batches: asked.max_outstanding_batches,
                    granted_bytes: asked.max_outstanding_bytes,
                    max_batch_bytes: asked.max_outstanding_bytes.min(4096),
                    max_batch_rows: ROWS,
                    admission: ProducerAdmission::Open,
                }),
                message,
            })
        }
        ClientRequest::OpenEmitterRequest(asked) => {
            ReplyBody::OpenEmitterOutcome(OpenEmitterOutcome {
                disposition: OpenEmitterDisposition::EmitterOpened(EmitterOpened {
                    domain: asked.domain.clone(),
                    emitter: asked.emitter.clone(),
                    fields: asked.expected_fields.clone(),
                    generation: 3,
                    contract: Fingerprint { bytes: [8; 32] },
                    window: ConsumerWindow::SequentialConsumerWindow,
                    ack_timeout_nanos: 1_000_000_000,
                    retry_backoff_nanos: 1_000_000,
                    retry_max_backoff_nanos: 2_000_000,
                    granted_batches: asked.max_outstanding_batches,
                    granted_bytes: asked.max_outstanding_bytes,
                    max_batch_bytes: asked.max_outstanding_bytes.min(4096),
                    max_batch_rows: ROWS,
                }),
                message,
            })
        }
        ClientRequest::SubmitBatchRequest(submitted) => {
            HELD.with(|held| held.borrow_mut().push_back(submitted.batch.clone()));
            ReplyBody::SubmissionOutcome(SubmissionOutcome {
                disposition: SubmissionDisposition::SubmissionCompleted,
                message,
            })
        }
        ClientRequest::ReadEmitterBatchRequest(_) => {
            let batch = HELD.with(|held| held.borrow_mut().pop_front())?;
            ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
                disposition: ReadEmitterDisposition::EmitterBatchReceived(EmitterBatchReceived {
                    identity: [1; 16],
                    reference: [2; 16],
                    source_relay: "relay".to_owned(),
                    branch_fingerprint: None,
                    batch,
                    members: ROWS,
                    execution_now_unix_nanos: -5,
                }),
                message,
            })
        }
        ClientRequest::SettleEmitterBatchRequest(_) => {
            ReplyBody::SettleEmitterBatchOutcome(SettleEmitterBatchOutcome {
                disposition: EmitterSettlement::Confirmed,
                message,
            })
        }
        ClientRequest::CloseIngestorRequest(_) => {
            ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome {
                disposition: CloseIngestorDisposition::ProducerClosed,
                message,
            })
        }
        ClientRequest::CloseEmitterRequest(_) => {
            ReplyBody::CloseEmitterOutcome(CloseEmitterOutcome {
                disposition: EmitterCloseDisposition::Closed,
                message,
            })
        }
        _ => return None,
    })
}
