//! Which servers to try, in which order, and how long to wait between tries (D-2, D-3, T-2).
//!
//! Owns the seeds, the endpoints learned from servers, and the growing waits. Knows nothing of connections.

use std::collections::VecDeque;

use crate::origin::Origin;

/// Endpoints remembered beside the seeds.
const LEARNED: usize = 32;

/// 100 ms, doubling to 1 s: the waits of a call while no leader or no server is there.
pub(crate) const RETRY: Growth = Growth {
    first: 100_000_000,
    last: 1_000_000_000,
};
/// The waits between attempts to reach a server that no call is waiting for, and between refused restorations.
pub(crate) const BACKGROUND: Growth = Growth {
    first: 200_000_000,
    last: 15_000_000_000,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    first: u64,
    last: u64,
}

impl Growth {
    pub(crate) fn longest(self) -> u64 {
        self.last
    }
}

/// A small generator for jitter alone.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Anything from 0 to `bound`.
    pub(crate) fn up_to(&mut self, bound: u64) -> u64 {
        // SplitMix64: a counter and a mix of its bits.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        bits.checked_rem(bound.saturating_add(1)).unwrap_or(bits)
    }
}

/// A wait that doubles with each failure, half of it random so that many clients spread out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self, growth: Growth, jitter: &mut Jitter) -> u64 {
        let factor = 1_u64.checked_shl(self.failures.min(32)).unwrap_or(u64::MAX);
        let full = growth.first.saturating_mul(factor).min(growth.last);
        self.failures = self.failures.saturating_add(1);
        full / 2 + jitter.up_to(full / 2)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The servers a session may be opened with.
#[derive(Debug)]
pub(crate) struct Reach {
    seeds: Vec<Origin>,
    learned: VecDeque<Origin>,
    last_used: Option<Origin>,
}

impl Reach {
    pub(crate) fn new(seeds: Vec<Origin>) -> Self {
        let seeds = match seeds.first().cloned() {
            Some(first) => seeds
                .into_iter()
                .filter(|seed| first.may_lead_to(seed))
                .collect(),
            None => seeds,
        };
        Self {
            seeds,
            learned: VecDeque::new(),
            last_used: None,
        }
    }

    /// Reads an address that a server named. The error says why this session does not follow it.
    pub(crate) fn follow(&self, uri: &str) -> Result<Origin, String> {
        let origin = Origin::parse(uri)?;
        match self.seeds.first() {
            Some(first) if !first.may_lead_to(&origin) => Err(format!(
                "a session that began with https is not led to {origin}"
            )),
            _ => Ok(origin),
        }
    }

    pub(crate) fn learn(&mut self, origin: &Origin) {
        if self.seeds.contains(origin) || self.learned.contains(origin) {
            return;
        }
        if self.learned.len() >= LEARNED {
            self.learned.pop_front();
        }
        self.learned.push_back(origin.clone());
    }

    pub(crate) fn used(&mut self, origin: &Origin) {
        self.last_used = Some(origin.clone());
    }

    pub(crate) fn seeds(&self) -> VecDeque<Origin> {
        distinct(self.seeds.iter())
    }

    /// Every known server once: the seeds, what was learned, oldest first, and the one last used.
    pub(crate) fn candidates(&self) -> VecDeque<Origin> {
        distinct(
            self.seeds
                .iter()
                .chain(&self.learned)
                .chain(&self.last_used),
        )
    }
}

fn distinct<'a>(origins: impl Iterator<Item = &'a Origin>) -> VecDeque<Origin> {
    let mut all = VecDeque::new();
    for origin in origins {
        if !all.contains(origin) {
            all.push_back(origin.clone());
        }
    }
    all
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;

    fn origin(port: u16) -> Origin {
        Origin {
            secure: false,
            host: "a".into(),
            port,
        }
    }

    // rule: D-3
    #[test]
    fn remembers_a_bounded_number_of_learned_endpoints_and_every_seed() {
        let mut reach = Reach::new(vec![origin(1), origin(2), origin(1)]);
        for port in 1..=100 {
            reach.learn(&origin(port));
            reach.learn(&origin(port));
        }
        reach.used(&origin(7));
        let ports: Vec<u16> = reach.candidates().iter().map(|o| o.port).collect();
        let expected: Vec<u16> = [1, 2].into_iter().chain(69..=100).chain([7]).collect();
        assert_eq!(ports, expected);
    }

    // rule: T-2
    #[test]
    fn follows_no_downgrade_and_no_nonsense() {
        let reach = Reach::new(vec![
            Origin::parse("https://a").unwrap(),
            Origin::parse("http://b").unwrap(),
        ]);
        assert_eq!(reach.seeds().len(), 1);
        assert!(reach.follow("http://c").is_err());
        assert!(reach.follow("nonsense").is_err());
        assert!(reach.follow("https://c:1").is_ok());
    }

    // rule: D-2
    #[test]
    fn waits_grow_within_their_bounds() {
        let (mut backoff, mut jitter) = (Backoff::default(), Jitter::new(7));
        let mut full = 100_000_000;
        for _ in 0..100 {
            let wait = backoff.next(RETRY, &mut jitter);
            assert!((full / 2..=full).contains(&wait));
            full = (full * 2).min(1_000_000_000);
        }
    }
}
