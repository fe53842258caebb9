//! The control endpoint's actions on clocks, producers and consumers. Must not do anything itself beyond reading a body.

use nervix_wire::types::{
    DomainClockAttachmentEndReason, DomainClockAttachmentEnded, DomainClockObservation,
    DomainClockObserved, DomainClockObservedState, DomainClockTicked, PacedDomainClock,
    ProducerAdmission, ProducerAdmissionChanged, ProducerEnded, ReplyBody, ServerBody,
};
use serde_json::{json, Value};

use super::{deed, silently, Control, Fields, Problem, Read};
use crate::answers::{self, pick};
use crate::cluster::ForcedAt;
use crate::faults::Forced;

/// The pace of a clock made up for a frame, where a body says nothing else.
const PERIOD_NANOS: u64 = 100_000_000;

impl Control {
    pub(super) fn suspend(&self, fields: &mut Fields, suspended: bool) -> Read<'_> {
        let (domain, ingestor) = (
            fields.needed_text("domain")?,
            fields.needed_text("ingestor")?,
        );
        deed(move || {
            if !self.cluster.suspend_ingestor(&domain, &ingestor, suspended) {
                return Err(Problem::Bad(format!(
                    "`{domain}` has no ingestor `{ingestor}` for clients that this can be done to"
                )));
            }
            Ok(json!({}))
        })
    }

    pub(super) fn end_producer(&self, fields: &mut Fields) -> Read<'_> {
        let name = fields
            .text("reason")?
            .unwrap_or_else(|| "OwnerLost".to_owned());
        let reason = pick(&name, answers::END_REASONS)?;
        let producer = fields.number("producer")?;
        let scope = self.scope(fields, None)?;
        deed(move || {
            let ended = self.cluster.end_producers(&scope, producer, reason);
            Ok(json!({ "producers": ended }))
        })
    }

    pub(super) fn end_consumer(&self, fields: &mut Fields) -> Read<'_> {
        let consumer = fields.number("consumer")?;
        let scope = self.scope(fields, None)?;
        deed(move || {
            let ended = self.cluster.end_consumers(&scope, consumer);
            Ok(json!({ "consumers": ended }))
        })
    }

    /// Arms an answer for requests in a scope, or for those that reach one endpoint.
    pub(super) fn answer_with(&self, fields: &mut Fields) -> Read<'_> {
        let kind = fields.needed_text("kind")?;
        let name = fields.needed_text("with")?;
        let message = fields
            .text("message")?
            .unwrap_or_else(|| format!("answered {name} by the control endpoint"));
        let domain = fields.text("domain")?;
        let endpoint = match (fields.text("ingestor")?, fields.text("emitter")?) {
            (None, None) => None,
            (Some(endpoint), None) | (None, Some(endpoint)) => Some(endpoint),
            (Some(_), Some(_)) => {
                return Err(Problem::Bad(
                    "an answer is for an `ingestor` or an `emitter`".to_owned(),
                ))
            }
        };
        let body = answers::answer(&kind, &name, domain.clone(), message)?;
        let Some(endpoint) = endpoint else {
            let execute = fields.flag("execute")?.unwrap_or(false);
            let rule = self.rule(fields, Some(kind), Forced { body, execute })?;
            return silently(move || self.cluster.faults.arm_forced(rule));
        };
        let domain = domain.ok_or_else(|| "the endpoint's `domain` is needed".to_owned())?;
        let count = fields.number("count")?.unwrap_or(1);
        let forced = match body {
            ReplyBody::OpenIngestorOutcome(_) => {
                ForcedAt::OpenIngestor(pick(&name, answers::PRODUCER_REFUSALS)?)
            }
            ReplyBody::OpenEmitterOutcome(_) => {
                ForcedAt::OpenEmitter(pick(&name, answers::EMITTER_REFUSALS)?)
            }
            ReplyBody::SubmissionOutcome(outcome) => ForcedAt::Submission(outcome.disposition),
            ReplyBody::SettleEmitterBatchOutcome(outcome) => {
                ForcedAt::Settlement(outcome.disposition)
            }
            _ => {
                return Err(Problem::Bad(format!(
                    "`{kind}` is not answered by an endpoint; leave it out"
                )))
            }
        };
        silently(move || {
            for _ in 0..count {
                self.cluster.force_at(&domain, &endpoint, &forced);
            }
        })
    }

    pub(super) fn describe_otherwise(&self, fields: &mut Fields) -> Read<'_> {
        let change = pick(&fields.needed_text("change")?, answers::CHANGES)?;
        let kind = match fields.needed_text("kind")?.as_str() {
            kind @ ("OpenIngestorRequest" | "OpenEmitterRequest") => kind.to_owned(),
            other => {
                return Err(Problem::Bad(format!(
                    "`kind` is OpenIngestorRequest or OpenEmitterRequest, not `{other}`"
                )))
            }
        };
        let rule = self.rule(fields, Some(kind), change)?;
        silently(move || self.cluster.faults.arm_change(rule))
    }

    pub(super) fn clock_installed(&self, fields: &mut Fields) -> Read<'_> {
        let domain = fields.needed_text("domain")?;
        let installed = fields
            .flag("installed")?
            .ok_or_else(|| "the body needs `installed`".to_owned())?;
        deed(move || {
            if !self.cluster.set_clock_installed(&domain, installed) {
                return Err(Problem::Bad(format!("there is no domain `{domain}`")));
            }
            Ok(json!({}))
        })
    }

    /// Sends a frame about a clock, whether it is true or not.
    pub(super) fn clock_frame(&self, fields: &mut Fields) -> Read<'_> {
        let domain = fields.needed_text("domain")?;
        let installed = self.cluster.clock_of(&domain);
        let (installed_generation, paced) = match installed {
            Some(DomainClockObservation {
                generation,
                state: DomainClockObservedState::PacedDomainClock(paced),
            }) => (generation, Some(paced)),
            Some(clock) => (clock.generation, None),
            None => (0, None),
        };
        let generation = fields.number("generation")?.unwrap_or(installed_generation);
        let body = match fields.needed_text("what")?.as_str() {
            "tick" => {
                let tick_id = fields.number("tick_id")?.unwrap_or(1);
                let origin = paced
                    .as_ref()
                    .map_or(0, |paced| paced.logical_origin_unix_nanos);
                let period = paced.map_or(PERIOD_NANOS, |paced| paced.period_nanos);
                let elapsed = i128::from(tick_id.saturating_sub(1))
                    .saturating_mul(i128::from(period))
                    .saturating_add(i128::from(origin));
                let boundary = i64::try_from(elapsed).unwrap_or(i64::MAX);
                let boundary = fields.instant("logical_boundary")?.unwrap_or(boundary);
                ServerBody::DomainClockTicked(DomainClockTicked {
                    domain: domain.clone(),
                    generation,
                    tick_id,
                    logical_boundary_unix_nanos: boundary,
                    authority_utc_unix_nanos: fields
                        .instant("authority_utc")?
                        .unwrap_or_else(|| self.cluster.with_clock(|_| {}).0),
                    serving_logical_unix_nanos: fields
                        .instant("serving_logical")?
                        .unwrap_or(boundary),
                })
            }
            "state" => {
                let state = match fields.needed_text("state")?.as_str() {
                    "stopped" => DomainClockObservedState::StoppedDomainClock,
                    "uninstalled" => DomainClockObservedState::UninstalledDomainClock,
                    "unpaced" => DomainClockObservedState::UnpacedDomainClock,
                    "paced" => DomainClockObservedState::PacedDomainClock(PacedDomainClock {
                        period_nanos: fields.number("period")?.unwrap_or(PERIOD_NANOS),
                        skew_nanos: fields.number("skew")?.unwrap_or(0),
                        logical_origin_unix_nanos: fields.instant("origin")?.unwrap_or(0),
                        utc_anchor_unix_nanos: fields
                            .instant("anchor")?
                            .unwrap_or_else(|| self.cluster.with_clock(|_| {}).0),
                        time_rate: fields.float("rate")?.unwrap_or(1.0),
                    }),
                    other => {
                        return Err(Problem::Bad(format!(
                            "`state` is stopped, uninstalled, unpaced or paced, not `{other}`"
                        )))
                    }
                };
                ServerBody::DomainClockObserved(DomainClockObserved {
                    domain: domain.clone(),
                    clock: DomainClockObservation { generation, state },
                })
            }
            "ended" => ServerBody::DomainClockAttachmentEnded(DomainClockAttachmentEnded {
                domain: domain.clone(),
                reason: DomainClockAttachmentEndReason::DomainRemoved,
            }),
            other => {
                return Err(Problem::Bad(format!(
                    "`what` is tick, state or ended, not `{other}`"
                )))
            }
        };
        self.send_frame(fields, body)
    }

    /// Sends a frame about a producer, whether there is one or not.
    pub(super) fn producer_frame(&self, fields: &mut Fields) -> Read<'_> {
        let producer = fields.needed_number("producer")?;
        let admission = |admission| {
            ServerBody::ProducerAdmissionChanged(ProducerAdmissionChanged {
                producer,
                admission,
            })
        };
        let body = match fields.needed_text("what")?.as_str() {
            "open" => admission(ProducerAdmission::Open),
            "suspended" => admission(ProducerAdmission::Suspended),
            "ended" => {
                let name = fields
                    .text("reason")?
                    .unwrap_or_else(|| "OwnerLost".to_owned());
                ServerBody::ProducerEnded(ProducerEnded {
                    producer,
                    reason: pick(&name, answers::END_REASONS)?,
                    message: "said by the control endpoint".to_owned(),
                })
            }
            other => {
                return Err(Problem::Bad(format!(
                    "`what` is open, suspended or ended, not `{other}`"
                )))
            }
        };
        self.send_frame(fields, body)
    }

    fn send_frame(&self, fields: &mut Fields, body: ServerBody) -> Read<'_> {
        // What a client must refuse is encoded too, as far as the encoder goes.
        let frame = self.cluster.frame(body);
        if frame.bytes.is_empty() {
            return Err(Problem::Bad(
                "the frame cannot be encoded; inject it in bytes".to_owned(),
            ));
        }
        let scope = self.scope(fields, None)?;
        deed(move || Ok(json!({ "sessions": self.cluster.broadcast(&scope, &frame) })))
    }
}

impl Fields {
    fn instant(&mut self, name: &str) -> Result<Option<i64>, Problem> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| {
                Problem::Bad(format!("`{name}` is in nanoseconds since the Unix epoch"))
            }),
        }
    }

    fn float(&mut self, name: &str) -> Result<Option<f64>, Problem> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .map(Some)
                .ok_or_else(|| Problem::Bad(format!("`{name}` is a number"))),
        }
    }
}
