//! Tokens to statements, by recursive descent. Every test for what may come next is remembered at the furthest place
//! reached: error messages and completion both read it.

use super::ast::{
    AckMode, Assignment, BackupScope, BinaryOp, Branch, Branching, DeliveryMode, Emitter,
    ExistingUser, Expr, ExprKind, Field, FieldType, Flush, GeneralError, Ingestor, Inherit, Kind,
    MessageError, Model, Name, Pace, Relay, RelayChange, RestoreScope, Scalar, Schema,
    SchemaChange, Source, StartAt, Statement, Subscription, Timestamp, Window,
};
use super::lex::{tokenize, Symbol, Token, TokenKind};
use super::{instant, units, Span, SyntaxError};

/// Deeper expressions are refused, since everything that walks one recurses.
const MAX_EXPRESSION_DEPTH: usize = 96;

/// List levels of one type: each costs two levels of nesting in a frame, which allows 64.
const MAX_TYPE_DEPTH: usize = 16;

type Parsed<T> = Result<T, SyntaxError>;

/// What may stand at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Keyword(&'static str),
    Symbol(Symbol),
    /// The name of something that exists.
    Existing(Kind),
    /// A name that the statement gives.
    NewName,
    Field,
    FieldType,
    Subscription,
    Number,
    Duration,
    Size,
    Text,
    Expression,
    End,
}

impl Expected {
    fn describe(self) -> String {
        match self {
            Expected::Keyword(word) => word.to_string(),
            Expected::Symbol(symbol) => format!("`{}`", symbol.text()),
            Expected::Existing(kind) => format!("the name of a {}", kind.word()),
            Expected::NewName => "a name".to_string(),
            Expected::Field => "a field".to_string(),
            Expected::FieldType => "a type".to_string(),
            Expected::Subscription => "the name of a subscription".to_string(),
            Expected::Number => "a number".to_string(),
            Expected::Duration => "a duration such as 100ms".to_string(),
            Expected::Size => "a size such as 1MiB".to_string(),
            Expected::Text => "a text in single quotes".to_string(),
            Expected::Expression => "an expression".to_string(),
            Expected::End => "the end of the statement".to_string(),
        }
    }
}

/// One statement of a text and where it stands, without its semicolon.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    pub statement: Statement,
    pub span: Span,
}

/// Reads exactly one statement; its closing semicolon may be missing.
pub fn parse(text: &str) -> Parsed<Statement> {
    let mut statements = parse_script(text)?.into_iter();
    let Some(first) = statements.next() else {
        return Err(SyntaxError::new(
            "there is no statement here",
            Span::point(0),
        ));
    };
    match statements.next() {
        None => Ok(first.statement),
        Some(second) => Err(SyntaxError::new(
            "a second statement begins here: send one at a time",
            second.span,
        )),
    }
}

/// Reads every statement of a text.
pub fn parse_script(text: &str) -> Parsed<Vec<Located>> {
    Parser::new(text)?.script()
}

/// What may come at the end of an unfinished text whose last word is complete. Empty where the text before is wrong, and
/// inside of a text that is not closed yet.
pub fn expected_at_end(text: &str) -> Vec<Expected> {
    let Ok(mut parser) = Parser::new(text) else {
        return Vec::new();
    };
    // Whatever it came to: a text that ends too early is what completion is for.
    let _ = parser.script();
    if parser.expected_at == parser.tokens.len() {
        parser.expected
    } else {
        Vec::new()
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    at: usize,
    expected: Vec<Expected>,
    expected_at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parsed<Self> {
        Ok(Self {
            text,
            tokens: tokenize(text)?,
            at: 0,
            expected: Vec::new(),
            expected_at: 0,
            depth: 0,
        })
    }

    // ---- tokens

    fn token(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn source(&self, span: Span) -> &'a str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    fn word_at(&self, index: usize) -> Option<&'a str> {
        let token = self.tokens.get(index)?;
        (token.kind == TokenKind::Word).then(|| self.source(token.span))
    }

    fn is_word_at(&self, index: usize, keyword: &str) -> bool {
        self.word_at(index)
            .is_some_and(|word| word.eq_ignore_ascii_case(keyword))
    }

    fn is_symbol_at(&self, index: usize, symbol: Symbol) -> bool {
        self.tokens
            .get(index)
            .is_some_and(|token| token.kind == TokenKind::Symbol(symbol))
    }

    /// The end of the last token taken.
    fn previous_end(&self) -> usize {
        self.at
            .checked_sub(1)
            .and_then(|index| self.tokens.get(index))
            .map_or(0, |token| token.span.end)
    }

    /// Where the next token begins.
    fn start(&self) -> usize {
        self.token()
            .map_or_else(|| self.previous_end(), |token| token.span.start)
    }

    fn since(&self, start: usize) -> Span {
        Span::new(start, self.previous_end().max(start))
    }

    fn note(&mut self, expected: Expected) {
        if self.at > self.expected_at || self.expected.is_empty() {
            self.expected.clear();
            self.expected_at = self.at;
        }
        if self.at == self.expected_at && !self.expected.contains(&expected) {
            self.expected.push(expected);
        }
    }

    /// The error at the next token: it is not one of what was looked for here.
    fn unexpected<T>(&self) -> Parsed<T> {
        let wanted = if self.expected_at == self.at {
            let mut words: Vec<String> = self.expected.iter().map(|e| e.describe()).collect();
            let last = words.pop().unwrap_or_default();
            if words.is_empty() {
                last
            } else {
                format!("{} or {last}", words.join(", "))
            }
        } else {
            "something else".to_string()
        };
        match self.token() {
            Some(token) if token.kind != TokenKind::Symbol(Symbol::Semicolon) => {
                let found: String = self.source(token.span).chars().take(40).collect();
                Err(SyntaxError::new(
                    format!("expected {wanted}, found `{found}`"),
                    token.span,
                ))
            }
            _ => Err(SyntaxError::new(
                format!("expected {wanted} here"),
                Span::point(self.previous_end()),
            )),
        }
    }

    fn take_keyword(&mut self, keyword: &'static str) -> bool {
        self.note(Expected::Keyword(keyword));
        let found = self.is_word_at(self.at, keyword);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect_keyword(&mut self, keyword: &'static str) -> Parsed<()> {
        if self.take_keyword(keyword) {
            Ok(())
        } else {
            self.unexpected()
        }
    }

    fn expect_keywords(&mut self, keywords: &[&'static str]) -> Parsed<()> {
        keywords
            .iter()
            .try_for_each(|keyword| self.expect_keyword(keyword))
    }

    fn take_symbol(&mut self, symbol: Symbol) -> bool {
        self.note(Expected::Symbol(symbol));
        let found = self.is_symbol_at(self.at, symbol);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect_symbol(&mut self, symbol: Symbol) -> Parsed<()> {
        if self.take_symbol(symbol) {
            Ok(())
        } else {
            self.unexpected()
        }
    }

    fn name(&mut self, expected: Expected) -> Parsed<Name> {
        self.note(expected);
        let Some(text) = self.word_at(self.at) else {
            return self.unexpected();
        };
        let span = self.token().map_or(Span::default(), |token| token.span);
        self.at += 1;
        Ok(Name {
            text: text.to_string(),
            span,
        })
    }

    fn existing(&mut self, kind: Kind) -> Parsed<Name> {
        self.name(Expected::Existing(kind))
    }

    fn new_name(&mut self) -> Parsed<Name> {
        self.name(Expected::NewName)
    }

    fn text_literal(&mut self) -> Parsed<(String, Span)> {
        self.note(Expected::Text);
        match self.token() {
            Some(Token {
                kind: TokenKind::Text(value),
                span,
            }) => {
                let taken = (value.clone(), *span);
                self.at += 1;
                Ok(taken)
            }
            _ => self.unexpected(),
        }
    }

    fn names(&mut self, expected: Expected) -> Parsed<Vec<Name>> {
        let mut names = vec![self.name(expected)?];
        while self.take_symbol(Symbol::Comma) {
            names.push(self.name(expected)?);
        }
        Ok(names)
    }

    // ---- numbers

    fn number_text(&mut self, expected: Expected) -> Parsed<(&'a str, Span)> {
        self.note(expected);
        match self.token() {
            Some(Token {
                kind: TokenKind::Number,
                span,
            }) => {
                let span = *span;
                self.at += 1;
                Ok((self.source(span), span))
            }
            _ => self.unexpected(),
        }
    }

    /// A whole number from 1.
    fn count(&mut self) -> Parsed<u64> {
        let (text, span) = self.number_text(Expected::Number)?;
        match text.parse::<u64>() {
            Ok(value) if value > 0 => Ok(value),
            _ => Err(SyntaxError::new(
                format!("expected a whole number from 1 to {}", u64::MAX),
                span,
            )),
        }
    }

    fn positive_decimal(&mut self, at_most: f64) -> Parsed<f64> {
        let (text, span) = self.number_text(Expected::Number)?;
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && value > 0.0 && value <= at_most => Ok(value),
            _ if at_most < f64::MAX => Err(SyntaxError::new(
                format!("expected a number over 0 and at most {at_most}"),
                span,
            )),
            _ => Err(SyntaxError::new("expected a positive finite number", span)),
        }
    }

    /// The digits and the unit of a quantity token.
    fn quantity(&self) -> Option<(&'a str, &'a str, Span)> {
        let token = self.token()?;
        let TokenKind::Quantity { digits } = token.kind else {
            return None;
        };
        let (value, unit) = self.source(token.span).split_at_checked(digits)?;
        Some((value, unit, token.span))
    }

    fn duration(&mut self) -> Parsed<u64> {
        self.note(Expected::Duration);
        let Some((value, unit, span)) = self.quantity() else {
            return self.unexpected();
        };
        let nanos = duration_nanos(value, unit, span)?;
        self.at += 1;
        Ok(nanos)
    }

    fn positive_duration(&mut self) -> Parsed<u64> {
        let start = self.start();
        match self.duration()? {
            0 => Err(SyntaxError::new(
                "this duration must be more than zero",
                self.since(start),
            )),
            nanos => Ok(nanos),
        }
    }

    /// Bytes: `1MiB`, `64 bytes`, or a plain number.
    fn size(&mut self) -> Parsed<u64> {
        self.note(Expected::Size);
        let (value, factor, span) = if let Some((value, unit, span)) = self.quantity() {
            let Some(factor) = units::size_factor(unit) else {
                return Err(SyntaxError::new(
                    format!("`{unit}` is no unit of size: bytes, KiB, MiB or GiB"),
                    span,
                ));
            };
            self.at += 1;
            (value, factor, span)
        } else {
            let (value, span) = self.number_text(Expected::Size)?;
            let factor = self.word_at(self.at).and_then(units::size_factor);
            if factor.is_some() {
                self.at += 1;
            }
            (value, factor.unwrap_or(1), span)
        };
        match value
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor))
        {
            Some(bytes) if bytes > 0 => Ok(bytes),
            _ => Err(SyntaxError::new(
                "expected a whole number of bytes, from 1, within 64 bits",
                span,
            )),
        }
    }

    // ---- statements

    fn script(&mut self) -> Parsed<Vec<Located>> {
        let mut statements = Vec::new();
        loop {
            while self.take_symbol(Symbol::Semicolon) {}
            if self.token().is_none() {
                self.note_statements();
                return Ok(statements);
            }
            let start = self.start();
            let statement = self.statement()?;
            statements.push(Located {
                statement,
                span: self.since(start),
            });
            self.note(Expected::End);
            if self.token().is_none() {
                return Ok(statements);
            }
            self.expect_symbol(Symbol::Semicolon)?;
        }
    }

    fn note_statements(&mut self) {
        for keyword in [
            "ALTER", "ATTACH", "BACKUP", "BEGIN", "COMMIT", "CREATE", "DELETE", "DESCRIBE",
            "DETACH", "DROP", "LIST", "RESTORE", "REVERT", "SHOW", "START", "STOP", "UPLOAD",
            "USE",
        ] {
            self.note(Expected::Keyword(keyword));
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        if self.take_keyword("CREATE") {
            self.create()
        } else if self.take_keyword("ALTER") {
            self.alter()
        } else if self.take_keyword("DROP") {
            let kind = self.kind(&Kind::ALL)?;
            Ok(Statement::Drop {
                kind,
                name: self.existing(kind)?,
            })
        } else if self.take_keyword("DELETE") {
            self.expect_keyword("SUBSCRIPTION")?;
            Ok(Statement::DeleteSubscription {
                name: self.name(Expected::Subscription)?,
            })
        } else if self.take_keyword("USE") {
            Ok(Statement::Use {
                domain: self.existing(Kind::Domain)?,
            })
        } else if self.take_keyword("LIST") {
            self.expect_keyword("DOMAINS")?;
            Ok(Statement::ListDomains)
        } else if self.take_keyword("START") {
            self.start_domain()
        } else if self.take_keyword("STOP") {
            Ok(Statement::Stop)
        } else if self.take_keyword("SHOW") {
            self.show()
        } else if self.take_keyword("DESCRIBE") {
            self.describe()
        } else if self.take_keyword("BEGIN") {
            Ok(Statement::Begin)
        } else if self.take_keyword("COMMIT") {
            Ok(Statement::Commit)
        } else if self.take_keyword("REVERT") {
            Ok(Statement::Revert)
        } else if self.take_keyword("ATTACH") {
            self.expect_keywords(&["DOMAIN", "CLOCK"])?;
            Ok(Statement::AttachDomainClock)
        } else if self.take_keyword("DETACH") {
            self.expect_keywords(&["DOMAIN", "CLOCK"])?;
            Ok(Statement::DetachDomainClock)
        } else if self.take_keyword("UPLOAD") {
            self.expect_keyword("RESOURCE")?;
            let name = self.existing(Kind::Resource)?;
            self.expect_keyword("VERSION")?;
            let (directory, _) = self.text_literal()?;
            Ok(Statement::UploadResource { name, directory })
        } else if self.take_keyword("BACKUP") {
            self.backup()
        } else if self.take_keyword("RESTORE") {
            self.restore()
        } else {
            self.unexpected()
        }
    }

    fn kind(&mut self, kinds: &[Kind]) -> Parsed<Kind> {
        match kinds.iter().find(|kind| self.take_keyword(kind.keyword())) {
            Some(kind) => Ok(*kind),
            None => self.unexpected(),
        }
    }

    fn create(&mut self) -> Parsed<Statement> {
        let if_not_exists = self.take_keyword("IF");
        if if_not_exists {
            self.expect_keywords(&["NOT", "EXISTS"])?;
        }
        let model = if self.take_keyword("PACED") {
            self.expect_keyword("DOMAIN")?;
            let name = self.new_name()?;
            self.expect_keywords(&["WITH", "PERIOD"])?;
            let period_nanos = self.positive_duration()?;
            self.expect_keyword("SKEW")?;
            let skew_nanos = self.duration()?;
            return Ok(Statement::CreateDomain {
                if_not_exists,
                name,
                pace: Pace::Paced {
                    period_nanos,
                    skew_nanos,
                },
            });
        } else if self.take_keyword("UNPACED") {
            self.expect_keyword("DOMAIN")?;
            return Ok(Statement::CreateDomain {
                if_not_exists,
                name: self.new_name()?,
                pace: Pace::Unpaced,
            });
        } else if self.take_keyword("SCHEMA") {
            Model::Schema(self.schema()?)
        } else if self.take_keyword("BRANCH") {
            let name = self.new_name()?;
            self.expect_keyword("SCHEMA")?;
            let schema = self.existing(Kind::Schema)?;
            self.expect_keyword("TTL")?;
            Model::Branch(Branch {
                name,
                schema,
                ttl_nanos: self.positive_duration()?,
            })
        } else if self.take_keyword("RELAY") {
            Model::Relay(self.relay()?)
        } else if self.take_keyword("INGESTOR") {
            Model::Ingestor(Box::new(self.ingestor()?))
        } else if self.take_keyword("ATTACHED") {
            self.expect_keyword("EMITTER")?;
            Model::Emitter(Box::new(self.emitter(true)?))
        } else if self.take_keyword("DETACHED") {
            self.expect_keyword("EMITTER")?;
            Model::Emitter(Box::new(self.emitter(false)?))
        } else if self.take_keyword("EMITTER") {
            Model::Emitter(Box::new(self.emitter(true)?))
        } else if self.take_keyword("RESOURCE") {
            Model::Resource(self.new_name()?)
        } else if !if_not_exists && self.take_keyword("SUBSCRIPTION") {
            return Ok(Statement::CreateSubscription(self.subscription()?));
        } else {
            return self.unexpected();
        };
        Ok(Statement::CreateModel {
            if_not_exists,
            model,
        })
    }

    fn schema(&mut self) -> Parsed<Schema> {
        let name = self.new_name()?;
        self.expect_symbol(Symbol::Open)?;
        let mut fields = vec![self.field()?];
        while self.take_symbol(Symbol::Comma) {
            fields.push(self.field()?);
        }
        self.expect_symbol(Symbol::Close)?;
        Ok(Schema { name, fields })
    }

    fn field(&mut self) -> Parsed<Field> {
        let name = self.new_name()?;
        let field_type = self.field_type(0)?;
        let optional = self.take_keyword("OPTIONAL");
        let sensitive = self.take_keyword("SENSITIVE");
        Ok(Field {
            name,
            field_type,
            optional,
            sensitive,
        })
    }

    /// `outer` counts the list levels around.
    fn field_type(&mut self, outer: usize) -> Parsed<FieldType> {
        self.note(Expected::FieldType);
        let start = self.start();
        if outer > MAX_TYPE_DEPTH {
            return Err(SyntaxError::new(
                format!("lists nest at most {MAX_TYPE_DEPTH} levels deep"),
                self.token().map_or(Span::point(start), |token| token.span),
            ));
        }
        if self.take_keyword("VEC") {
            self.expect_symbol(Symbol::Less)?;
            let element = self.field_type(outer + 1)?;
            self.expect_symbol(Symbol::Greater)?;
            return Ok(FieldType::List(Box::new(element)));
        }
        if self.take_keyword("ARRAY") {
            self.expect_symbol(Symbol::Less)?;
            let element = self.field_type(outer + 1)?;
            let mut lengths = Vec::new();
            self.expect_symbol(Symbol::Comma)?;
            loop {
                let (text, span) = self.number_text(Expected::Number)?;
                match text.parse::<u32>() {
                    Ok(length) if length > 0 => lengths.push(length),
                    _ => {
                        return Err(SyntaxError::new(
                            format!("a length is a whole number from 1 to {}", u32::MAX),
                            span,
                        ))
                    }
                }
                if !self.take_symbol(Symbol::Comma) {
                    break;
                }
            }
            self.expect_symbol(Symbol::Greater)?;
            if outer + lengths.len() + depth_of(&element) > MAX_TYPE_DEPTH {
                return Err(SyntaxError::new(
                    format!("lists nest at most {MAX_TYPE_DEPTH} levels deep"),
                    self.since(start),
                ));
            }
            return Ok(lengths.into_iter().rev().fold(element, |element, length| {
                FieldType::FixedList {
                    element: Box::new(element),
                    length,
                }
            }));
        }
        match Scalar::ALL
            .into_iter()
            .find(|scalar| self.take_keyword(scalar.keyword()))
        {
            Some(scalar) => Ok(FieldType::Scalar(scalar)),
            None => {
                // One word says it better than the list of every type.
                self.expected.retain(|e| *e == Expected::FieldType);
                let error = self.unexpected();
                self.note_types();
                error
            }
        }
    }

    fn note_types(&mut self) {
        for scalar in Scalar::ALL {
            self.note(Expected::Keyword(scalar.keyword()));
        }
        self.note(Expected::Keyword("ARRAY"));
        self.note(Expected::Keyword("VEC"));
    }

    fn relay(&mut self) -> Parsed<Relay> {
        let name = self.new_name()?;
        self.expect_keyword("SCHEMA")?;
        let schema = self.existing(Kind::Schema)?;
        let branch = if self.take_keyword("UNBRANCHED") {
            None
        } else if self.take_keyword("BRANCHED") {
            self.expect_keyword("BY")?;
            Some(self.existing(Kind::Branch)?)
        } else {
            return self.unexpected();
        };
        let capacity = if self.take_keyword("CAPACITY") {
            Some(self.count()?)
        } else {
            None
        };
        Ok(Relay {
            name,
            schema,
            branch,
            capacity,
        })
    }

    /// `MODE ACK …` up to the retry policy.
    fn ack_mode(&mut self) -> Parsed<AckMode> {
        self.expect_keywords(&["MODE", "ACK"])?;
        let window = if self.take_keyword("SEQUENTIAL") {
            Window::Sequential
        } else if self.take_keyword("PARALLEL") {
            self.expect_keyword("MAX")?;
            Window::Parallel(self.count()?)
        } else {
            return self.unexpected();
        };
        self.expect_keywords(&["ACK", "TIMEOUT"])?;
        let ack_timeout_nanos = self.positive_duration()?;
        self.expect_keywords(&["RETRY", "POLICY", "BACKOFF"])?;
        let start = self.start();
        let backoff_nanos = self.positive_duration()?;
        self.expect_keyword("MAX")?;
        let max_backoff_nanos = self.duration()?;
        if max_backoff_nanos < backoff_nanos {
            return Err(SyntaxError::new(
                "the longest backoff is shorter than the first",
                self.since(start),
            ));
        }
        Ok(AckMode {
            window,
            ack_timeout_nanos,
            backoff_nanos,
            max_backoff_nanos,
        })
    }

    fn ingestor(&mut self) -> Parsed<Ingestor> {
        let name = self.new_name()?;
        self.expect_keywords(&["FROM", "CLIENT", "SCHEMA"])?;
        let schema = self.existing(Kind::Schema)?;
        let mode = self.ack_mode()?;
        self.expect_keywords(&["ON", "QUIESCE", "SUSPEND", "TIMESTAMP"])?;
        let timestamp = if self.take_keyword("NOW") {
            Timestamp::Now
        } else if self.take_keyword("AT") {
            Timestamp::At(self.name(Expected::Field)?)
        } else {
            return self.unexpected();
        };
        self.expect_keyword("TO")?;
        let relay = self.existing(Kind::Relay)?;
        let inherit = self.inherit()?;
        let set = self.optional_set()?;
        let branching = if self.take_keyword("BRANCHED") {
            self.expect_keyword("BY")?;
            let branch = self.existing(Kind::Branch)?;
            self.expect_keyword("SET")?;
            Some(Branching {
                branch,
                set: self.assignments()?,
            })
        } else {
            None
        };
        let filter = self.optional_where()?;
        let flush = self.flush(true)?;
        let message_error = self.message_error()?;
        let general_error = self.general_error()?;
        Ok(Ingestor {
            name,
            schema,
            mode,
            timestamp,
            relay,
            inherit,
            set,
            branching,
            filter,
            flush,
            message_error,
            general_error,
        })
    }

    fn emitter(&mut self, attached: bool) -> Parsed<Emitter> {
        let name = self.new_name()?;
        self.expect_keyword("FROM")?;
        let relays = self.names(Expected::Existing(Kind::Relay))?;
        self.expect_keywords(&["TO", "CLIENT", "SCHEMA"])?;
        let schema = self.existing(Kind::Schema)?;
        let mode = self.ack_mode()?;
        let inherit = self.inherit()?;
        let set = self.optional_set()?;
        let filter = self.optional_where()?;
        self.expect_keywords(&["BATCH", "MAX", "MESSAGES"])?;
        let max_messages = self.count()?;
        self.expect_keywords(&["MAX", "SIZE"])?;
        let max_bytes = self.size()?;
        let flush = self.flush(false)?;
        let message_error = self.message_error()?;
        let general_error = self.general_error()?;
        Ok(Emitter {
            name,
            attached,
            relays,
            schema,
            mode,
            inherit,
            set,
            filter,
            max_messages,
            max_bytes,
            flush,
            message_error,
            general_error,
        })
    }

    fn inherit(&mut self) -> Parsed<Inherit> {
        self.expect_keyword("INHERIT")?;
        // A field may be called `all`: with a comma behind it, it can only be the first of several.
        if !self.is_symbol_at(self.at + 1, Symbol::Comma) && self.take_keyword("ALL") {
            let except = if self.take_keyword("EXCEPT") {
                self.names(Expected::Field)?
            } else {
                Vec::new()
            };
            return Ok(Inherit::All { except });
        }
        Ok(Inherit::Fields(self.names(Expected::Field)?))
    }

    fn optional_set(&mut self) -> Parsed<Vec<Assignment>> {
        if self.take_keyword("SET") {
            self.assignments()
        } else {
            Ok(Vec::new())
        }
    }

    fn assignments(&mut self) -> Parsed<Vec<Assignment>> {
        let mut set = Vec::new();
        loop {
            let target = self.name(Expected::Field)?;
            self.expect_symbol(Symbol::Equal)?;
            set.push(Assignment {
                target,
                value: self.expression()?,
            });
            if !self.take_symbol(Symbol::Comma) {
                return Ok(set);
            }
        }
    }

    fn optional_where(&mut self) -> Parsed<Option<Expr>> {
        if self.take_keyword("WHERE") {
            Ok(Some(self.expression()?))
        } else {
            Ok(None)
        }
    }

    /// Emitters may leave the size out.
    fn flush(&mut self, needs_size: bool) -> Parsed<Flush> {
        self.expect_keyword("FLUSH")?;
        if self.take_keyword("IMMEDIATE") {
            return Ok(Flush::Immediate);
        }
        self.expect_keyword("EACH")?;
        let every_nanos = self.positive_duration()?;
        let max_bytes = if needs_size || self.take_keyword("MAX") {
            if needs_size {
                self.expect_keyword("MAX")?;
            }
            self.expect_keywords(&["BATCH", "SIZE"])?;
            Some(self.size()?)
        } else {
            None
        };
        Ok(Flush::Each {
            every_nanos,
            max_bytes,
        })
    }

    fn message_error(&mut self) -> Parsed<MessageError> {
        self.expect_keywords(&["ON", "MESSAGE", "ERROR"])?;
        if self.take_keyword("LOG") {
            Ok(MessageError::Log)
        } else if self.take_keyword("IGNORE") {
            Ok(MessageError::Ignore)
        } else if self.take_keyword("SEND") {
            self.expect_keyword("TO")?;
            let relay = self.existing(Kind::Relay)?;
            self.expect_keyword("SET")?;
            Ok(MessageError::SendTo {
                relay,
                set: self.assignments()?,
            })
        } else {
            self.unexpected()
        }
    }

    fn general_error(&mut self) -> Parsed<GeneralError> {
        self.expect_keywords(&["ON", "GENERAL", "ERROR"])?;
        if self.take_keyword("LOG") {
            Ok(GeneralError::Log)
        } else if self.take_keyword("IGNORE") {
            Ok(GeneralError::Ignore)
        } else {
            self.unexpected()
        }
    }

    fn subscription(&mut self) -> Parsed<Subscription> {
        let name = self.new_name()?;
        self.expect_keyword("TO")?;
        let relay = self.existing(Kind::Relay)?;
        let delivery = if self.take_keyword("BLOCKING") {
            DeliveryMode::Blocking
        } else {
            self.take_keyword("DROPPING");
            DeliveryMode::Dropping
        };
        let sample_rate = if self.take_keyword("BATCH") {
            self.expect_keywords(&["SAMPLE", "RATE"])?;
            Some(self.positive_decimal(1.0)?)
        } else {
            None
        };
        let filter = self.optional_where()?;
        Ok(Subscription {
            name,
            relay,
            delivery,
            sample_rate,
            filter,
        })
    }

    fn alter(&mut self) -> Parsed<Statement> {
        if self.take_keyword("RELAY") {
            let name = self.existing(Kind::Relay)?;
            let mut changes = Vec::new();
            self.expect_keyword("SET")?;
            loop {
                changes.push(if self.take_keyword("SCHEMA") {
                    RelayChange::Schema(self.existing(Kind::Schema)?)
                } else if self.take_keyword("UNBRANCHED") {
                    RelayChange::Unbranched
                } else if self.take_keyword("BRANCHED") {
                    self.expect_keyword("BY")?;
                    RelayChange::BranchedBy(self.existing(Kind::Branch)?)
                } else if self.take_keyword("CAPACITY") {
                    RelayChange::Capacity(self.count()?)
                } else {
                    return self.unexpected();
                });
                if !self.take_symbol(Symbol::Comma) {
                    return Ok(Statement::AlterRelay { name, changes });
                }
            }
        }
        self.expect_keyword("SCHEMA")?;
        let name = self.existing(Kind::Schema)?;
        let mut changes = Vec::new();
        loop {
            changes.push(if self.take_keyword("ADD") {
                SchemaChange::Add(self.field()?)
            } else if self.take_keyword("DROP") {
                SchemaChange::Drop(self.name(Expected::Field)?)
            } else {
                return self.unexpected();
            });
            if !self.take_symbol(Symbol::Comma) {
                return Ok(Statement::AlterSchema { name, changes });
            }
        }
    }

    fn start_domain(&mut self) -> Parsed<Statement> {
        let at = if self.take_keyword("AT") {
            if self.take_keyword("NOW") {
                Some(StartAt::Now)
            } else {
                let (text, span) = self.text_literal()?;
                let Some(nanos) = instant::parse(&text) else {
                    return Err(SyntaxError::new(
                        "expected an RFC 3339 instant such as '2030-01-01T00:00:00Z', between the years 1677 and 2262",
                        span,
                    ));
                };
                Some(StartAt::Instant(nanos))
            }
        } else {
            None
        };
        let rate = if self.take_keyword("TIME") {
            self.expect_keyword("RATE")?;
            Some(self.positive_decimal(f64::MAX)?)
        } else {
            None
        };
        Ok(Statement::Start { at, rate })
    }

    fn show(&mut self) -> Parsed<Statement> {
        if self.take_keyword("CREATE") {
            let kind = self.kind(&Kind::ALL)?;
            Ok(Statement::ShowCreate {
                kind,
                name: self.existing(kind)?,
            })
        } else if self.take_keyword("CLUSTER") {
            self.expect_keyword("STATUS")?;
            Ok(Statement::ShowClusterStatus)
        } else if self.take_keyword("INGESTORS") {
            Ok(Statement::ShowIngestors)
        } else if self.take_keyword("TRANSACTIONS") {
            Ok(Statement::ShowTransactions)
        } else {
            self.unexpected()
        }
    }

    fn describe(&mut self) -> Parsed<Statement> {
        if self.take_keyword("TRANSACTION") {
            self.note(Expected::Text);
            let id = match self.token() {
                Some(Token {
                    kind: TokenKind::Text(_),
                    ..
                }) => Some(self.text_literal()?.0),
                _ => None,
            };
            let operation = if self.take_keyword("OPERATION") {
                Some(self.count()?)
            } else {
                None
            };
            return Ok(Statement::DescribeTransaction { id, operation });
        }
        let kind = self.kind(&Kind::ALL)?;
        if kind == Kind::Domain {
            self.note(Expected::Existing(Kind::Domain));
            let name = match self.word_at(self.at) {
                Some(_) => Some(self.existing(Kind::Domain)?),
                None => None,
            };
            return Ok(Statement::DescribeDomain { name });
        }
        Ok(Statement::Describe {
            kind,
            name: self.existing(kind)?,
        })
    }

    fn backup(&mut self) -> Parsed<Statement> {
        let scope = if self.take_keyword("CLUSTER") {
            BackupScope::Cluster
        } else {
            self.expect_keyword("DOMAIN")?;
            BackupScope::Domain(self.existing(Kind::Domain)?)
        };
        self.expect_keyword("TO")?;
        let (path, _) = self.text_literal()?;
        let mut resources = true;
        let mut state = true;
        while self.take_keyword("WITHOUT") {
            if resources && self.take_keyword("RESOURCES") {
                resources = false;
            } else if state && self.take_keyword("STATE") {
                state = false;
            } else {
                return self.unexpected();
            }
        }
        Ok(Statement::Backup {
            scope,
            path,
            resources,
            state,
        })
    }

    fn restore(&mut self) -> Parsed<Statement> {
        let scope = if self.take_keyword("CLUSTER") {
            RestoreScope::Cluster
        } else {
            self.expect_keyword("DOMAIN")?;
            let name = self.existing(Kind::Domain)?;
            let rename = if self.take_keyword("AS") {
                Some(self.new_name()?)
            } else {
                None
            };
            RestoreScope::Domain { name, rename }
        };
        self.expect_keyword("FROM")?;
        let (path, _) = self.text_literal()?;
        let existing_user = if self.take_keyword("ON") {
            self.expect_keywords(&["EXISTING", "USER"])?;
            Some(if self.take_keyword("FAIL") {
                ExistingUser::Fail
            } else if self.take_keyword("SKIP") {
                ExistingUser::Skip
            } else if self.take_keyword("REPLACE") {
                ExistingUser::Replace
            } else {
                return self.unexpected();
            })
        } else {
            None
        };
        let dry_run = self.take_keyword("DRY");
        if dry_run {
            self.expect_keyword("RUN")?;
        }
        let resume = self.take_keyword("RESUME");
        let state = !self.take_keyword("WITHOUT");
        if !state {
            self.expect_keyword("STATE")?;
        }
        Ok(Statement::Restore {
            scope,
            path,
            existing_user,
            dry_run,
            resume,
            state,
        })
    }

    // ---- expressions, loosest binding first

    fn expression(&mut self) -> Parsed<Expr> {
        self.disjunction().map(|(expr, _)| expr)
    }

    fn too_deep<T>(&self, start: usize) -> Parsed<T> {
        Err(SyntaxError::new(
            format!("this expression nests more than {MAX_EXPRESSION_DEPTH} levels deep"),
            self.since(start),
        ))
    }

    /// Joins two operands; the numbers are the heights of the trees.
    fn join(
        &self,
        op: BinaryOp,
        (left, left_height): (Expr, usize),
        (right, right_height): (Expr, usize),
    ) -> Parsed<(Expr, usize)> {
        let span = left.span.to(right.span);
        let height = left_height.max(right_height) + 1;
        if height > MAX_EXPRESSION_DEPTH {
            return self.too_deep(span.start);
        }
        let kind = ExprKind::Binary {
            op,
            left: Box::new(left),
            right: Box::new(right),
        };
        Ok((Expr { kind, span }, height))
    }

    fn disjunction(&mut self) -> Parsed<(Expr, usize)> {
        let mut left = self.conjunction()?;
        while self.take_keyword("OR") {
            let right = self.conjunction()?;
            left = self.join(BinaryOp::Or, left, right)?;
        }
        Ok(left)
    }

    fn conjunction(&mut self) -> Parsed<(Expr, usize)> {
        let mut left = self.negation()?;
        while self.take_keyword("AND") {
            let right = self.negation()?;
            left = self.join(BinaryOp::And, left, right)?;
        }
        Ok(left)
    }

    /// Whether an operand can begin at a token: decides between an operator word and a field of that name.
    fn begins_operand(&self, index: usize) -> bool {
        match self.tokens.get(index).map(|token| &token.kind) {
            Some(TokenKind::Word) => {
                !["AND", "OR", "IS"]
                    .iter()
                    .any(|word| self.is_word_at(index, word))
                    || self.is_symbol_at(index + 1, Symbol::Dot)
            }
            Some(TokenKind::Number | TokenKind::Quantity { .. } | TokenKind::Text(_)) => true,
            Some(TokenKind::Symbol(symbol)) => {
                matches!(symbol, Symbol::Open | Symbol::Minus | Symbol::Semicolon)
            }
            None => true,
        }
    }

    fn negation(&mut self) -> Parsed<(Expr, usize)> {
        let start = self.start();
        let is_operator = self.begins_operand(self.at + 1);
        if !is_operator || !self.take_keyword("NOT") {
            return self.comparison();
        }
        let (operand, height) = self.nested(start, Self::negation)?;
        let kind = ExprKind::Not(Box::new(operand));
        Ok((
            Expr {
                kind,
                span: self.since(start),
            },
            height,
        ))
    }

    /// Goes one level down, within the limit, and reports the height one level up.
    fn nested(
        &mut self,
        start: usize,
        parse: impl FnOnce(&mut Self) -> Parsed<(Expr, usize)>,
    ) -> Parsed<(Expr, usize)> {
        if self.depth >= MAX_EXPRESSION_DEPTH {
            return self.too_deep(start);
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        let (expr, height) = parsed?;
        if height >= MAX_EXPRESSION_DEPTH {
            return self.too_deep(start);
        }
        Ok((expr, height + 1))
    }

    fn comparison(&mut self) -> Parsed<(Expr, usize)> {
        let start = self.start();
        let left = self.sum()?;
        for (symbol, op) in [
            (Symbol::Equal, BinaryOp::Equal),
            (Symbol::NotEqual, BinaryOp::NotEqual),
            (Symbol::LessEqual, BinaryOp::LessEqual),
            (Symbol::Less, BinaryOp::Less),
            (Symbol::GreaterEqual, BinaryOp::GreaterEqual),
            (Symbol::Greater, BinaryOp::Greater),
        ] {
            if self.take_symbol(symbol) {
                let right = self.sum()?;
                return self.join(op, left, right);
            }
        }
        if self.take_keyword("IS") {
            let negated = self.take_keyword("NOT");
            self.expect_keyword("NULL")?;
            let (operand, height) = left;
            let kind = ExprKind::IsNull {
                operand: Box::new(operand),
                negated,
            };
            if height >= MAX_EXPRESSION_DEPTH {
                return self.too_deep(start);
            }
            return Ok((
                Expr {
                    kind,
                    span: self.since(start),
                },
                height + 1,
            ));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Parsed<(Expr, usize)> {
        let mut left = self.product()?;
        loop {
            let op = if self.take_symbol(Symbol::Plus) {
                BinaryOp::Add
            } else if self.take_symbol(Symbol::Minus) {
                BinaryOp::Subtract
            } else {
                return Ok(left);
            };
            let right = self.product()?;
            left = self.join(op, left, right)?;
        }
    }

    fn product(&mut self) -> Parsed<(Expr, usize)> {
        let mut left = self.signed()?;
        loop {
            let op = if self.take_symbol(Symbol::Star) {
                BinaryOp::Multiply
            } else if self.take_symbol(Symbol::Slash) {
                BinaryOp::Divide
            } else {
                return Ok(left);
            };
            let right = self.signed()?;
            left = self.join(op, left, right)?;
        }
    }

    fn signed(&mut self) -> Parsed<(Expr, usize)> {
        let start = self.start();
        if !self.take_symbol(Symbol::Minus) {
            return self.primary();
        }
        let (operand, height) = self.nested(start, Self::signed)?;
        let span = self.since(start);
        // A sign in front of a literal is part of it, or the least integer could not be written.
        let kind = match operand.kind {
            ExprKind::Integer(value) => ExprKind::Integer(-value),
            ExprKind::Float(value) => ExprKind::Float(-value),
            kind => ExprKind::Negate(Box::new(Expr {
                kind,
                span: operand.span,
            })),
        };
        Ok((Expr { kind, span }, height))
    }

    fn primary(&mut self) -> Parsed<(Expr, usize)> {
        self.note(Expected::Expression);
        self.note(Expected::Field);
        let Some(token) = self.token() else {
            return self.unexpected();
        };
        let span = token.span;
        let kind = match &token.kind {
            TokenKind::Text(value) => ExprKind::Text(value.clone()),
            TokenKind::Number => number_literal(self.source(span), span)?,
            TokenKind::Quantity { digits } => {
                let Some((value, unit)) = self.source(span).split_at_checked(*digits) else {
                    return self.unexpected();
                };
                ExprKind::Duration(duration_nanos(value, unit, span)?)
            }
            TokenKind::Symbol(Symbol::Open) => {
                self.at += 1;
                let (inner, height) = self.nested(span.start, Self::disjunction)?;
                self.expect_symbol(Symbol::Close)?;
                let span = self.since(span.start);
                // The parentheses leave nothing behind but the place.
                return Ok((
                    Expr {
                        kind: inner.kind,
                        span,
                    },
                    height,
                ));
            }
            TokenKind::Word => return self.word_operand(span),
            TokenKind::Symbol(_) => return self.unexpected(),
        };
        self.at += 1;
        Ok((Expr { kind, span }, 1))
    }

    fn word_operand(&mut self, span: Span) -> Parsed<(Expr, usize)> {
        let word = self.source(span);
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword);
        if self.is_symbol_at(self.at + 1, Symbol::Dot) {
            let source = if is("input") {
                Source::Input
            } else if is("message") {
                Source::Message
            } else if is("error") {
                Source::Error
            } else {
                return Err(SyntaxError::new(
                    format!("`{word}.` is none of input., message. and error."),
                    span,
                ));
            };
            self.at += 2;
            let name = self.name(Expected::Field)?.text;
            let kind = ExprKind::Field { source, name };
            return Ok((
                Expr {
                    kind,
                    span: self.since(span.start),
                },
                1,
            ));
        }
        if self.is_symbol_at(self.at + 1, Symbol::Open) {
            if is("now") {
                self.at += 2;
                self.expect_symbol(Symbol::Close)?;
                let span = self.since(span.start);
                return Ok((
                    Expr {
                        kind: ExprKind::Now,
                        span,
                    },
                    1,
                ));
            }
            if is("leak_sensitive") {
                self.at += 2;
                let (inner, height) = self.nested(span.start, Self::disjunction)?;
                self.expect_symbol(Symbol::Close)?;
                let kind = ExprKind::LeakSensitive(Box::new(inner));
                return Ok((
                    Expr {
                        kind,
                        span: self.since(span.start),
                    },
                    height,
                ));
            }
            return Err(SyntaxError::new(
                format!("there is no function `{word}`: now() and leak_sensitive(…) are"),
                span,
            ));
        }
        self.at += 1;
        let kind = if is("true") {
            ExprKind::Bool(true)
        } else if is("false") {
            ExprKind::Bool(false)
        } else if is("null") {
            ExprKind::Null
        } else {
            ExprKind::Field {
                source: Source::Bare,
                name: word.to_string(),
            }
        };
        Ok((Expr { kind, span }, 1))
    }
}

fn depth_of(field_type: &FieldType) -> usize {
    match field_type {
        FieldType::Scalar(_) => 0,
        FieldType::FixedList { element, .. } | FieldType::List(element) => depth_of(element) + 1,
    }
}

fn duration_nanos(value: &str, unit: &str, span: Span) -> Parsed<u64> {
    let Some(factor) = units::duration_factor(unit) else {
        return Err(SyntaxError::new(
            format!("`{unit}` is no unit of time: ns, us, ms, s, m or h"),
            span,
        ));
    };
    value
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(factor))
        .ok_or_else(|| {
            SyntaxError::new(
                "expected a whole number of its unit, within 64 bits of nanoseconds",
                span,
            )
        })
}

fn number_literal(text: &str, span: Span) -> Parsed<ExprKind> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse::<u64>() {
            Ok(value) => Ok(ExprKind::Integer(i128::from(value))),
            Err(_) => Err(SyntaxError::new("this integer is wider than 64 bits", span)),
        };
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(ExprKind::Float(value)),
        _ => Err(SyntaxError::new("this number is not finite", span)),
    }
}
