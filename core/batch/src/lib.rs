//! Batches of rows: columns in memory, and one canonical Arrow IPC stream for each (P-3, EC-3).
//!
//! Owns the Arrow representation of fields, reading and writing streams, building columns and reading them. A stream that a
//! peer sent is trusted in nothing: what does not hold is refused, and nothing of it ends the process. Knows no sessions,
//! frames or handles.

#[cfg(target_endian = "big")]
compile_error!(
    "Arrow IPC streams hold values in little-endian order, and columns are read in place"
);

mod batch;
mod builder;
mod fields;
mod read;
mod write;

use std::fmt;

pub use batch::{Batch, Varlen};
pub use builder::Builder;
pub use fields::{arrow_fields, data_type, difference, element, item, length, levels, width, UTC};

/// Why something cannot be done with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// What was asked or given is not possible.
    Argument(String),
    /// A column was read or given as what it is not.
    Type(String),
    /// A stream is not what was agreed.
    Stream(String),
}

impl Refusal {
    pub fn message(&self) -> &str {
        match self {
            Self::Argument(message) | Self::Type(message) | Self::Stream(message) => message,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.message())
    }
}

impl std::error::Error for Refusal {}
