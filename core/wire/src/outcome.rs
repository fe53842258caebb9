//! The plainest outcome of a command.
//!
//! Owns what an outcome holds when it says nothing but its disposition. Knows nothing of who decides it.

use crate::types::{CommandDisposition, CommandOutcome, OutcomeOrigin};

impl CommandOutcome {
    /// An outcome of this disposition, executed now, that carries nothing else.
    pub fn plain(
        reference: impl Into<String>,
        disposition: CommandDisposition,
        message: impl Into<String>,
    ) -> Self {
        Self {
            execution_reference: reference.into(),
            origin: OutcomeOrigin::Executed,
            disposition,
            message: message.into(),
            diagnostics: Vec::new(),
            statements: Vec::new(),
            transaction: None,
            transaction_admission: None,
            inspection: None,
            wasm_state: None,
            resource: None,
            backup: None,
            restore: None,
        }
    }
}
