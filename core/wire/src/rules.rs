//! The value rules of F-4 that the generated decoder applies: one small function for each kind of
//! rule, and one for each table whose fields constrain each other. They see values, not frames.

use std::collections::HashSet;
use std::hash::Hash;

use bytes::Bytes;
use flatbuffers::{Follow, ForwardsUOffset, Vector};

use crate::frame::Frame;
use crate::generated as fb;
use crate::rows::RowsFrame;
use crate::types;
use crate::verified::VerifiedServer;
use crate::violation::Violation;

/// The frame that is being decoded: its bytes and rows are kept in place.
pub(crate) struct Decoder<'f> {
    frame: &'f Frame,
    server: Option<&'f VerifiedServer>,
}

impl<'f> Decoder<'f> {
    pub(crate) fn new(frame: &'f Frame) -> Self {
        Self {
            frame,
            server: None,
        }
    }

    pub(crate) fn of_server(verified: &'f VerifiedServer) -> Self {
        Self {
            frame: verified.frame(),
            server: Some(verified),
        }
    }

    pub(crate) fn bytes(&self, vector: Vector<'f, u8>) -> Bytes {
        self.frame.share(vector.bytes())
    }

    pub(crate) fn rows(&self, rows: fb::SubscriptionRows<'f>) -> Result<RowsFrame, Violation> {
        // Rows stand only in a ServerMessage of the first layout, which is decoded from this.
        match self.server {
            Some(verified) => RowsFrame::read(self, verified, rows),
            None => Err(refused("SubscriptionRows", "is out of place")),
        }
    }
}

pub(crate) fn refused(at: &str, what: &str) -> Violation {
    Violation::new("F-4", format!("{at} {what}"))
}

pub(crate) fn present<T>(value: Option<T>, at: &'static str) -> Result<T, Violation> {
    value.ok_or_else(|| refused(at, "is absent"))
}

pub(crate) fn declared<T>(
    number: u8,
    from_wire: impl Fn(u8) -> Option<T>,
    at: &'static str,
) -> Result<T, Violation> {
    from_wire(number).ok_or_else(|| refused(at, &format!("has the undeclared value {number}")))
}

/// What to say of a union tag that no member has; the generated accessors answer None only to it.
pub(crate) fn undeclared_member(tag: u8, at: &'static str) -> Violation {
    if tag == 0 {
        refused(at, "holds nothing")
    } else {
        refused(at, &format!("has the undeclared member {tag}"))
    }
}

pub(crate) fn member<T>(value: Option<T>, at: &'static str) -> Result<T, Violation> {
    value.ok_or_else(|| refused(at, "holds another member than it names"))
}

pub(crate) fn nonzero<T: PartialEq + From<u8>>(value: T, at: &'static str) -> Result<T, Violation> {
    if value == T::from(0) {
        return Err(refused(at, "is zero"));
    }
    Ok(value)
}

pub(crate) fn nonzero_if_present<T: PartialEq + From<u8>>(
    value: Option<T>,
    at: &'static str,
) -> Result<Option<T>, Violation> {
    value.map(|value| nonzero(value, at)).transpose()
}

pub(crate) fn within<T: PartialOrd>(
    value: T,
    low: T,
    high: T,
    at: &'static str,
) -> Result<T, Violation> {
    if value < low || value > high {
        return Err(refused(at, "is out of range"));
    }
    Ok(value)
}

pub(crate) fn nonempty<T>(value: Vec<T>, at: &'static str) -> Result<Vec<T>, Violation> {
    if value.is_empty() {
        return Err(refused(at, "is empty"));
    }
    Ok(value)
}

pub(crate) fn nonempty_bytes(value: Bytes, at: &'static str) -> Result<Bytes, Violation> {
    if value.is_empty() {
        return Err(refused(at, "is empty"));
    }
    Ok(value)
}

pub(crate) fn array<const N: usize>(
    value: Vector<'_, u8>,
    at: &'static str,
) -> Result<[u8; N], Violation> {
    value
        .bytes()
        .try_into()
        .map_err(|_| refused(at, &format!("has {} bytes, not {N}", value.len())))
}

pub(crate) fn ascending<T: PartialOrd>(
    value: Vec<T>,
    at: &'static str,
) -> Result<Vec<T>, Violation> {
    if !strictly_ascending(value.iter()) {
        return Err(refused(at, "is not in strictly ascending order"));
    }
    Ok(value)
}

fn strictly_ascending<T: PartialOrd>(values: impl Iterator<Item = T> + Clone) -> bool {
    values
        .clone()
        .zip(values.skip(1))
        .all(|(one, next)| one < next)
}

fn unique<T: Eq + Hash>(mut values: impl Iterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    values.all(|value| seen.insert(value))
}

pub(crate) fn each<'f, T, R>(
    vector: Vector<'f, ForwardsUOffset<T>>,
    read: impl Fn(T) -> Result<R, Violation>,
) -> Result<Vec<R>, Violation>
where
    T: Follow<'f, Inner = T> + 'f,
{
    vector.iter().map(read).collect()
}

fn require(holds: bool, at: &str, what: &str) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(refused(at, what))
    }
}

pub(crate) fn source_span(value: &types::SourceSpan) -> Result<(), Violation> {
    require(
        value.start <= value.end,
        "SourceSpan",
        "ends before it starts",
    )
}

pub(crate) fn operation_range(value: &types::OperationRange) -> Result<(), Violation> {
    require(
        value.first != 0 && value.first <= value.last,
        "OperationRange",
        "is not a range of operation numbers",
    )
}

pub(crate) fn paced_domain_clock(value: &types::PacedDomainClock) -> Result<(), Violation> {
    require(
        value.time_rate.is_finite() && value.time_rate > 0.0,
        "PacedDomainClock.time_rate",
        "is not positive and finite",
    )
}

pub(crate) fn producer_opened(value: &types::ProducerOpened) -> Result<(), Violation> {
    retry_and_credit(
        "ProducerOpened",
        (value.retry_backoff_nanos, value.retry_max_backoff_nanos),
        (value.max_batch_bytes, value.granted_bytes),
    )
}

pub(crate) fn emitter_opened(value: &types::EmitterOpened) -> Result<(), Violation> {
    retry_and_credit(
        "EmitterOpened",
        (value.retry_backoff_nanos, value.retry_max_backoff_nanos),
        (value.max_batch_bytes, value.granted_bytes),
    )
}

fn retry_and_credit(at: &str, backoff: (u64, u64), bytes: (u64, u64)) -> Result<(), Violation> {
    require(
        backoff.0 <= backoff.1,
        at,
        "has a largest backoff below its first",
    )?;
    require(
        bytes.0 <= bytes.1,
        at,
        "has batches above the bytes granted",
    )
}

pub(crate) fn transaction_status(value: &types::TransactionStatus) -> Result<(), Violation> {
    require(
        value.applied_operations <= value.accepted_operations,
        "TransactionStatus",
        "has applied more operations than it accepted",
    )
}

pub(crate) fn backup_cut(value: &types::BackupCut) -> Result<(), Violation> {
    let at = "BackupCut";
    if value.kind == types::BackupCutKind::Quiesced {
        let ordered = match (value.engaged_at, value.released_at) {
            (Some(engaged), Some(released)) => engaged <= released,
            _ => false,
        };
        return require(ordered, at, "is quiesced without an ordered pair of times");
    }
    let counters = [
        value.buffered_records,
        value.buffered_bytes,
        value.dropped_records,
        value.rejected_records,
    ];
    require(
        value.engaged_at.is_none() && value.released_at.is_none() && counters == [0; 4],
        at,
        "has what only a quiesced cut has",
    )
}

pub(crate) fn backup_archive_summary(value: &types::BackupArchiveSummary) -> Result<(), Violation> {
    require(
        strictly_ascending(value.domains.iter().map(|domain| &domain.domain)),
        "BackupArchiveSummary.domains",
        "do not ascend by name",
    )
}

pub(crate) fn restore_step_report(value: &types::RestoreStepReport) -> Result<(), Violation> {
    require(
        value.domain.is_none() == (value.kind == types::RestoreStepKind::Users),
        "RestoreStepReport.domain",
        "must be absent exactly for users",
    )
}

pub(crate) fn restore_report(value: &types::RestoreReport) -> Result<(), Violation> {
    require(
        value.mode == types::RestoreMode::DryRun
            || value
                .domains
                .iter()
                .all(|domain| domain.planned_models.is_none()),
        "RestoredDomain.planned_models",
        "is present though nothing was planned",
    )
}

pub(crate) fn resource_description(value: &types::ResourceDescription) -> Result<(), Violation> {
    require(
        strictly_ascending(value.versions.iter().map(|version| version.version)),
        "ResourceDescription.versions",
        "do not ascend",
    )
}

pub(crate) fn quiesce_subgraph(value: &types::QuiesceSubgraph) -> Result<(), Violation> {
    require(
        unique(value.nodes.iter().map(|node| &node.coverage)),
        "QuiesceSubgraph.nodes",
        "name one coverage twice",
    )?;
    require(
        unique(value.gate_boundaries.iter().map(|gate| &gate.boundary)),
        "QuiesceSubgraph.gate_boundaries",
        "name one boundary twice",
    )
}

pub(crate) fn transaction_impact_report(
    value: &types::TransactionImpactReport,
) -> Result<(), Violation> {
    require(
        (1u64..)
            .zip(&value.operations)
            .all(|(number, operation)| operation.number == number),
        "TransactionImpactReport.operations",
        "are not numbered from 1",
    )?;
    let mut covered = Some(0u64);
    for step in &value.execution_steps {
        let next = covered.and_then(|last| last.checked_add(1));
        covered = (next == Some(step.operations.first)).then_some(step.operations.last);
    }
    require(
        covered == u64::try_from(value.operations.len()).ok(),
        "TransactionImpactReport.execution_steps",
        "do not partition the operations",
    )
}
