//! What a received frame can be refused for, and what can be refused to send.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// A received frame that breaks the protocol. Whoever reads a session ends it on one (F-8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    rule: &'static str,
    message: Cow<'static, str>,
}

impl Violation {
    /// A violation of the rule with this identity, such as `F-4`.
    pub fn new(rule: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            rule,
            message: message.into(),
        }
    }

    /// The identity of the broken rule: `F-3` for a frame that is none, `F-4` for a value, `F-7`
    /// for a transfer part, `R-2` for rows.
    pub fn rule(&self) -> &'static str {
        self.rule
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.message, self.rule)
    }
}

impl Error for Violation {}

/// A message that must not be sent (F-6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncodeError {
    /// The finished frame would be above `limit` bytes.
    TooLarge { limit: usize },
    /// A vector has more entries than a peer accepts.
    TooManyEntries { entries: usize },
    /// Tables would nest deeper than a peer accepts.
    TooDeep,
    /// Only a Reply can be sent in parts.
    NotAReply,
    /// Rows must be at least one.
    NoRows,
    /// Rows to be sent on are not rows.
    InvalidRows(Violation),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => write!(out, "the message is above {limit} bytes"),
            Self::TooManyEntries { entries } => write!(
                out,
                "a list has {entries} entries; at most {} can be sent",
                crate::ENTRIES_LIMIT
            ),
            Self::TooDeep => write!(
                out,
                "values nest deeper than the {} levels that can be sent",
                crate::DEPTH_LIMIT
            ),
            Self::NotAReply => write!(out, "only a reply can be sent in parts"),
            Self::NoRows => write!(out, "a batch holds at least one row"),
            Self::InvalidRows(problem) => write!(out, "the rows are malformed: {problem}"),
        }
    }
}

impl Error for EncodeError {}
