//! Why a statement was refused: a message for people, and the places in the statement's text it concerns.

use nervix_wire::types::{Diagnostic, SourceSpan};

use crate::lang::ast::Name;
use crate::lang::{Span, SyntaxError};

/// A refused statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub message: String,
    pub diagnostics: Vec<Diagnostic>,
}

impl Failure {
    /// Refused for a reason that stands nowhere in the text.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            diagnostics: Vec::new(),
        }
    }

    /// Refused for what stands at `span`.
    pub fn at(message: impl Into<String>, span: Span) -> Self {
        let message = message.into();
        Self {
            diagnostics: vec![diagnostic(message.clone(), span)],
            message,
        }
    }

    pub fn name(message: impl Into<String>, name: &Name) -> Self {
        Self::at(message, name.span)
    }

    /// The same refusal, when what it concerns is not in the statement's text: the spans would point elsewhere.
    pub fn elsewhere(self, context: &str) -> Self {
        Self::new(format!("{context}: {}", self.message))
    }
}

impl From<SyntaxError> for Failure {
    fn from(error: SyntaxError) -> Self {
        Self::at(error.message, error.span)
    }
}

fn diagnostic(message: String, span: Span) -> Diagnostic {
    // A statement fits into a frame, so its offsets fit into 32 bits; one that does not gets no span.
    let span = u32::try_from(span.start)
        .ok()
        .zip(u32::try_from(span.end).ok())
        .map(|(start, end)| SourceSpan { start, end });
    Diagnostic { message, span }
}
