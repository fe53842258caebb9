//! Execution records: which commands were admitted under which reference, and what came of them. Must not know how a
//! command runs or who asks.

use std::collections::{HashMap, HashSet};

use nervix_wire::types::{
    CommandOutcome, ExecutionReferenceConflictKind, TransactionPreviewIdentity,
};

/// A client's clock may be ahead of the cluster's by this much.
const FUTURE_TOLERANCE_MILLIS: i64 = 5 * 60 * 1000;
/// Records are swept each time this many were added.
const SWEEP_EVERY: usize = 1024;
const REFERENCE_LIMIT: usize = 128;

/// Everything that a repetition of a command must repeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    pub query: String,
    pub domain: Option<String>,
    pub owner: String,
    pub position: Option<u64>,
    pub preview: Option<TransactionPreviewIdentity>,
}

impl Content {
    fn conflict_with(&self, repeated: &Self) -> Option<ExecutionReferenceConflictKind> {
        if self.owner != repeated.owner {
            Some(ExecutionReferenceConflictKind::Owner)
        } else if self.query != repeated.query || self.preview != repeated.preview {
            Some(ExecutionReferenceConflictKind::Content)
        } else if self.domain != repeated.domain {
            Some(ExecutionReferenceConflictKind::Domain)
        } else if self.position != repeated.position {
            Some(ExecutionReferenceConflictKind::Position)
        } else {
            None
        }
    }
}

/// What a reference means for the command that brings it.
#[derive(Debug)]
pub enum Admission {
    New,
    Recovered(Box<CommandOutcome>),
    Conflict(ExecutionReferenceConflictKind),
    Expired,
}

/// Why a reference cannot stand for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadReference(pub String);

#[derive(Debug)]
struct Record {
    content: Content,
    recorded_at: i64,
    outcome: CommandOutcome,
}

/// The cluster's records.
#[derive(Debug)]
pub struct Records {
    validity_nanos: i64,
    records: HashMap<String, Record>,
    reclaimed: HashSet<String>,
    added_since_sweep: usize,
}

impl Records {
    pub fn new(validity_nanos: i64) -> Self {
        Self {
            validity_nanos,
            records: HashMap::new(),
            reclaimed: HashSet::new(),
            added_since_sweep: 0,
        }
    }

    /// Looks a reference up. `now` is the node's clock, which ages records; `machine_now` the machine's, against which a
    /// reference nobody recorded is judged, because the client made it by that one.
    pub fn admit(
        &mut self,
        now: i64,
        machine_now: i64,
        reference: &str,
        content: &Content,
    ) -> Result<Admission, BadReference> {
        let created_millis = uuid_v7_millis(reference).ok_or_else(|| {
            BadReference("the execution reference of this command must be a UUIDv7".to_owned())
        })?;
        if let Some(record) = self.records.get(reference) {
            if now.saturating_sub(record.recorded_at) <= self.validity_nanos {
                return Ok(match record.content.conflict_with(content) {
                    Some(kind) => Admission::Conflict(kind),
                    None => Admission::Recovered(Box::new(record.outcome.clone())),
                });
            }
            self.expire(reference);
        }
        if self.reclaimed.contains(reference) {
            return Ok(Admission::Expired);
        }
        let age_millis = (machine_now / 1_000_000).saturating_sub(created_millis);
        if age_millis < -FUTURE_TOLERANCE_MILLIS {
            return Err(BadReference(
                "the execution reference is more than five minutes ahead of the cluster's clock"
                    .to_owned(),
            ));
        }
        if age_millis > self.validity_nanos / 1_000_000 {
            return Ok(Admission::Expired);
        }
        Ok(Admission::New)
    }

    pub fn record(&mut self, now: i64, reference: &str, content: Content, outcome: CommandOutcome) {
        self.added_since_sweep += 1;
        if self.added_since_sweep >= SWEEP_EVERY {
            self.sweep(now);
        }
        self.records.insert(
            reference.to_owned(),
            Record {
                content,
                recorded_at: now,
                outcome,
            },
        );
    }

    /// Reclaims one record as if its validity had passed; false when there is none.
    pub fn expire(&mut self, reference: &str) -> bool {
        let found = self.records.remove(reference).is_some();
        if found {
            self.reclaimed.insert(reference.to_owned());
        }
        found
    }

    pub fn expire_all(&mut self) -> usize {
        let count = self.records.len();
        self.reclaimed
            .extend(self.records.drain().map(|(reference, _)| reference));
        count
    }

    fn sweep(&mut self, now: i64) {
        self.added_since_sweep = 0;
        let validity = self.validity_nanos;
        let reclaimed = &mut self.reclaimed;
        self.records.retain(|reference, record| {
            let keep = now.saturating_sub(record.recorded_at) <= validity;
            if !keep {
                reclaimed.insert(reference.clone());
            }
            keep
        });
    }
}

/// Whether a reference has the form that every command's must have.
pub fn is_reference(reference: &str) -> bool {
    (1..=REFERENCE_LIMIT).contains(&reference.len())
        && reference
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// The creation time a UUIDv7 carries, in milliseconds since the Unix epoch; `None` for anything else.
fn uuid_v7_millis(reference: &str) -> Option<i64> {
    if reference.len() != 36 {
        return None;
    }
    let mut digits = 0_u128;
    for (place, byte) in reference.bytes().enumerate() {
        if matches!(place, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = char::from(byte).to_digit(16)?;
        digits = (digits << 4) | u128::from(digit);
    }
    let version = (digits >> 76) & 0xf;
    let variant = (digits >> 62) & 0x3;
    (version == 7 && variant == 2).then(|| i64::try_from(digits >> 80).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use nervix_wire::types::{CommandCompleted, CommandDisposition};

    const NOW: i64 = 1_700_000_000_000_000_000;
    const MINUTE: i64 = 60 * 1_000_000_000;

    fn reference(nanos: i64, tail: u64) -> String {
        let millis = nanos / 1_000_000;
        format!(
            "{:08x}-{:04x}-7000-8000-{tail:012x}",
            millis >> 16,
            millis & 0xffff
        )
    }

    fn content() -> Content {
        Content {
            query: "START;".to_owned(),
            domain: Some("d".to_owned()),
            owner: "default".to_owned(),
            position: None,
            preview: None,
        }
    }

    fn outcome(reference: &str) -> CommandOutcome {
        CommandOutcome::plain(
            reference,
            CommandDisposition::CommandCompleted(CommandCompleted {
                already_existed: false,
            }),
            "done",
        )
    }

    fn records() -> (Records, String) {
        let mut records = Records::new(15 * MINUTE);
        let reference = reference(NOW, 1);
        assert!(matches!(
            records.admit(NOW, NOW, &reference, &content()),
            Ok(Admission::New)
        ));
        records.record(NOW, &reference, content(), outcome(&reference));
        (records, reference)
    }

    // rule: E-1
    #[test]
    fn the_form_of_a_reference_is_checked_exactly() {
        assert!(is_reference("a-Z_0."));
        assert!(is_reference(&"x".repeat(128)));
        for bad in ["", "a b", "é", "a/b", &"x".repeat(129)] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    // rule: E-1
    #[test]
    fn only_a_uuid_of_version_seven_stands_for_a_command() {
        let mut records = Records::new(15 * MINUTE);
        for bad in [
            "read-1".to_owned(),
            "018bcfe5-6800-4000-8000-000000000001".to_owned(),
            "018bcfe5-6800-7000-c000-000000000001".to_owned(),
            "018bcfe5x6800-7000-8000-000000000001".to_owned(),
            reference(NOW + 6 * MINUTE, 1),
        ] {
            assert!(records.admit(NOW, NOW, &bad, &content()).is_err(), "{bad}");
        }
        assert!(records
            .admit(NOW, NOW, &reference(NOW + 4 * MINUTE, 1), &content())
            .is_ok());
        assert_eq!(uuid_v7_millis(&reference(NOW, 1)), Some(NOW / 1_000_000));
    }

    // rule: E-3, E-8
    #[test]
    fn the_same_command_under_its_reference_recovers_its_outcome() {
        let (mut records, reference) = records();
        match records
            .admit(NOW + 14 * MINUTE, NOW, &reference, &content())
            .unwrap()
        {
            Admission::Recovered(recovered) => assert_eq!(recovered.message, "done"),
            other => panic!("{other:?}"),
        }
    }

    // rule: E-2, E-6
    #[test]
    fn other_content_under_a_used_reference_is_a_conflict_of_its_kind() {
        let (mut records, reference) = records();
        let cases = [
            (
                ExecutionReferenceConflictKind::Content,
                Content {
                    query: "STOP;".to_owned(),
                    ..content()
                },
            ),
            (
                ExecutionReferenceConflictKind::Domain,
                Content {
                    domain: None,
                    ..content()
                },
            ),
            (
                ExecutionReferenceConflictKind::Owner,
                Content {
                    owner: "ann".to_owned(),
                    ..content()
                },
            ),
            (
                ExecutionReferenceConflictKind::Position,
                Content {
                    position: Some(0),
                    ..content()
                },
            ),
        ];
        for (expected, repeated) in cases {
            match records.admit(NOW, NOW, &reference, &repeated).unwrap() {
                Admission::Conflict(kind) => assert_eq!(kind, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    // rule: E-4
    #[test]
    fn a_reference_past_its_validity_is_expired_whether_recorded_or_not() {
        let (mut records, recorded) = records();
        let later = NOW + 16 * MINUTE;
        assert!(matches!(
            records.admit(later, NOW, &recorded, &content()),
            Ok(Admission::Expired)
        ));
        assert!(matches!(
            records.admit(later, NOW, &recorded, &content()),
            Ok(Admission::Expired)
        ));
        assert!(matches!(
            records.admit(NOW, later, &reference(NOW, 2), &content()),
            Ok(Admission::Expired)
        ));
        assert!(matches!(
            records.admit(later, NOW, &reference(NOW, 3), &content()),
            Ok(Admission::New)
        ));
        assert!(!records.expire("unknown"));
    }
}
