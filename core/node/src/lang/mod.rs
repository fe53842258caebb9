//! NSPL, the statement language: text to statements and back.
//!
//! Owns lexing, parsing, canonical printing and what is expected at a place in a text. Must not know what any statement
//! does, or which names exist.

pub mod ast;
#[cfg(any(test, fuzzing))]
pub mod canonical;
pub mod instant;
pub mod lex;
pub mod parse;
pub mod print;
pub mod units;

#[cfg(test)]
mod tests;

/// A half-open range of UTF-8 byte offsets in the text it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The empty span where something is missing.
    pub fn point(at: usize) -> Self {
        Self { start: at, end: at }
    }

    pub fn to(self, end: Span) -> Self {
        Self {
            start: self.start,
            end: end.end.max(self.start),
        }
    }
}

/// Why a text is not a statement: the offending token, or the empty span where something is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    pub message: String,
    pub span: Span,
}

impl SyntaxError {
    pub fn new(message: impl Into<String>, span: Span) -> Self {
        Self {
            message: message.into(),
            span,
        }
    }
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (at {}..{})",
            self.message, self.span.start, self.span.end
        )
    }
}

impl std::error::Error for SyntaxError {}
