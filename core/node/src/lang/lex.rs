//! Text to tokens. Keywords are not reserved, so a word is only a word here.

use super::{Span, SyntaxError};

/// What a token is; its text is the source's at its span.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenKind {
    Word,
    /// A number without a unit: an integer, or a decimal.
    Number,
    /// A number with letters directly behind it, such as `100ms`; `digits` is the length of its numeric part.
    Quantity {
        digits: usize,
    },
    /// The text between the quotes, doubled quotes undone.
    Text(String),
    Symbol(Symbol),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    Open,
    Close,
    Comma,
    Semicolon,
    Dot,
    Plus,
    Minus,
    Star,
    Slash,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Symbol {
    pub fn text(self) -> &'static str {
        match self {
            Symbol::Open => "(",
            Symbol::Close => ")",
            Symbol::Comma => ",",
            Symbol::Semicolon => ";",
            Symbol::Dot => ".",
            Symbol::Plus => "+",
            Symbol::Minus => "-",
            Symbol::Star => "*",
            Symbol::Slash => "/",
            Symbol::Equal => "=",
            Symbol::NotEqual => "!=",
            Symbol::Less => "<",
            Symbol::LessEqual => "<=",
            Symbol::Greater => ">",
            Symbol::GreaterEqual => ">=",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub kind: TokenKind,
    pub span: Span,
}

/// Longer spellings first.
const SYMBOLS: [(&str, Symbol); 17] = [
    ("<=", Symbol::LessEqual),
    (">=", Symbol::GreaterEqual),
    ("<>", Symbol::NotEqual),
    ("!=", Symbol::NotEqual),
    ("==", Symbol::Equal),
    ("=", Symbol::Equal),
    ("<", Symbol::Less),
    (">", Symbol::Greater),
    ("(", Symbol::Open),
    (")", Symbol::Close),
    (",", Symbol::Comma),
    (";", Symbol::Semicolon),
    (".", Symbol::Dot),
    ("+", Symbol::Plus),
    ("-", Symbol::Minus),
    ("*", Symbol::Star),
    ("/", Symbol::Slash),
];

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn continues_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The length in bytes of the longest prefix whose characters satisfy `accept`.
fn run(text: &str, accept: impl Fn(char) -> bool) -> usize {
    text.find(|c| !accept(c)).unwrap_or(text.len())
}

/// Splits a whole text; the first thing that is no token is the error.
pub fn tokenize(text: &str) -> Result<Vec<Token>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let skipped = run(rest, char::is_whitespace);
        if skipped > 0 {
            at += skipped;
            continue;
        }
        if rest.starts_with("//") {
            at += run(rest, |c| c != '\n');
            continue;
        }
        let (kind, length) = next(rest, at)?;
        tokens.push(Token {
            kind,
            span: Span::new(at, at + length),
        });
        at += length;
    }
    Ok(tokens)
}

fn next(rest: &str, at: usize) -> Result<(TokenKind, usize), SyntaxError> {
    let first = rest.chars().next().unwrap_or('\0');
    if starts_word(first) {
        return Ok((TokenKind::Word, run(rest, continues_word)));
    }
    if first.is_ascii_digit() {
        return Ok(number(rest));
    }
    if first == '\'' {
        return quoted(rest, at);
    }
    // `<>` is an operator, but a list type never has the two side by side, so nothing is lost.
    if let Some((spelling, symbol)) = SYMBOLS.iter().find(|(text, _)| rest.starts_with(text)) {
        return Ok((TokenKind::Symbol(*symbol), spelling.len()));
    }
    Err(SyntaxError::new(
        format!("{first:?} does not belong in a statement"),
        Span::new(at, at + first.len_utf8()),
    ))
}

fn number(rest: &str) -> (TokenKind, usize) {
    let digit_run = |from: usize| {
        rest.get(from..)
            .map_or(0, |tail| run(tail, |c| c.is_ascii_digit()))
    };
    let mut digits = digit_run(0);
    if rest.get(digits..).is_some_and(|tail| tail.starts_with('.')) {
        let fraction = digit_run(digits + 1);
        if fraction > 0 {
            digits += 1 + fraction;
        }
    }
    if rest
        .get(digits..)
        .is_some_and(|tail| tail.starts_with(['e', 'E']))
    {
        let signed = rest
            .get(digits + 1..)
            .is_some_and(|tail| tail.starts_with(['+', '-']));
        let from = digits + 1 + usize::from(signed);
        let exponent = digit_run(from);
        if exponent > 0 {
            digits = from + exponent;
        }
    }
    let unit = rest
        .get(digits..)
        .map_or(0, |tail| run(tail, continues_word));
    if unit > 0 {
        (TokenKind::Quantity { digits }, digits + unit)
    } else {
        (TokenKind::Number, digits)
    }
}

fn quoted(rest: &str, at: usize) -> Result<(TokenKind, usize), SyntaxError> {
    let mut value = String::new();
    let mut inner = rest.char_indices().skip(1).peekable();
    while let Some((offset, c)) = inner.next() {
        if c != '\'' {
            value.push(c);
        } else if inner.next_if(|(_, next)| *next == '\'').is_some() {
            value.push('\'');
        } else {
            return Ok((TokenKind::Text(value), offset + 1));
        }
    }
    Err(SyntaxError::new(
        "the text that begins here has no closing quote",
        Span::new(at, at + rest.len()),
    ))
}
