//! What statements are. Equality ignores where in a text something stood, so that a printed statement read again is equal.

use super::Span;

/// A name as written.
#[derive(Debug, Clone)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    Bool,
    String,
    Bytes,
    Datetime,
}

impl Scalar {
    pub const ALL: [Scalar; 14] = [
        Scalar::U8,
        Scalar::I8,
        Scalar::U16,
        Scalar::I16,
        Scalar::U32,
        Scalar::I32,
        Scalar::U64,
        Scalar::I64,
        Scalar::F32,
        Scalar::F64,
        Scalar::Bool,
        Scalar::String,
        Scalar::Bytes,
        Scalar::Datetime,
    ];

    pub fn keyword(self) -> &'static str {
        match self {
            Scalar::U8 => "U8",
            Scalar::I8 => "I8",
            Scalar::U16 => "U16",
            Scalar::I16 => "I16",
            Scalar::U32 => "U32",
            Scalar::I32 => "I32",
            Scalar::U64 => "U64",
            Scalar::I64 => "I64",
            Scalar::F32 => "F32",
            Scalar::F64 => "F64",
            Scalar::Bool => "BOOL",
            Scalar::String => "STRING",
            Scalar::Bytes => "BYTES",
            Scalar::Datetime => "DATETIME",
        }
    }
}

/// `ARRAY<T, D1, D2>` is a fixed list of D1 fixed lists of D2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldType {
    Scalar(Scalar),
    FixedList {
        element: Box<FieldType>,
        length: u32,
    },
    List(Box<FieldType>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: Name,
    pub field_type: FieldType,
    pub optional: bool,
    pub sensitive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    pub name: Name,
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    pub name: Name,
    pub schema: Name,
    pub ttl_nanos: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    pub name: Name,
    pub schema: Name,
    /// None: unbranched.
    pub branch: Option<Name>,
    pub capacity: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    Sequential,
    Parallel(u64),
}

/// `MODE ACK …`: how much may be unacknowledged at once, for how long, and how retries wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckMode {
    pub window: Window,
    pub ack_timeout_nanos: u64,
    pub backoff_nanos: u64,
    pub max_backoff_nanos: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timestamp {
    Now,
    At(Name),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inherit {
    All { except: Vec<Name> },
    Fields(Vec<Name>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    pub target: Name,
    pub value: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    Immediate,
    Each {
        every_nanos: u64,
        /// An ingestor always says so; an emitter has its BATCH limits beside.
        max_bytes: Option<u64>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum MessageError {
    Log,
    Ignore,
    SendTo { relay: Name, set: Vec<Assignment> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeneralError {
    Log,
    Ignore,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Branching {
    pub branch: Name,
    pub set: Vec<Assignment>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ingestor {
    pub name: Name,
    pub schema: Name,
    pub mode: AckMode,
    pub timestamp: Timestamp,
    pub relay: Name,
    pub inherit: Inherit,
    pub set: Vec<Assignment>,
    pub branching: Option<Branching>,
    pub filter: Option<Expr>,
    pub flush: Flush,
    pub message_error: MessageError,
    pub general_error: GeneralError,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Emitter {
    pub name: Name,
    pub attached: bool,
    pub relays: Vec<Name>,
    pub schema: Name,
    pub mode: AckMode,
    pub inherit: Inherit,
    pub set: Vec<Assignment>,
    pub filter: Option<Expr>,
    pub max_messages: u64,
    pub max_bytes: u64,
    pub flush: Flush,
    pub message_error: MessageError,
    pub general_error: GeneralError,
}

/// What a domain holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    Schema(Schema),
    Branch(Branch),
    Relay(Relay),
    Ingestor(Box<Ingestor>),
    Emitter(Box<Emitter>),
    Resource(Name),
}

/// What a name can be of. Models live in a domain; each kind has names of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Domain,
    Schema,
    Branch,
    Relay,
    Ingestor,
    Emitter,
    Resource,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Domain,
        Kind::Schema,
        Kind::Branch,
        Kind::Relay,
        Kind::Ingestor,
        Kind::Emitter,
        Kind::Resource,
    ];

    pub fn keyword(self) -> &'static str {
        match self {
            Kind::Domain => "DOMAIN",
            Kind::Schema => "SCHEMA",
            Kind::Branch => "BRANCH",
            Kind::Relay => "RELAY",
            Kind::Ingestor => "INGESTOR",
            Kind::Emitter => "EMITTER",
            Kind::Resource => "RESOURCE",
        }
    }

    /// The word for a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Domain => "domain",
            Kind::Schema => "schema",
            Kind::Branch => "branch",
            Kind::Relay => "relay",
            Kind::Ingestor => "ingestor",
            Kind::Emitter => "emitter",
            Kind::Resource => "resource",
        }
    }
}

impl Model {
    pub fn kind(&self) -> Kind {
        match self {
            Model::Schema(_) => Kind::Schema,
            Model::Branch(_) => Kind::Branch,
            Model::Relay(_) => Kind::Relay,
            Model::Ingestor(_) => Kind::Ingestor,
            Model::Emitter(_) => Kind::Emitter,
            Model::Resource(_) => Kind::Resource,
        }
    }

    pub fn name(&self) -> &Name {
        match self {
            Model::Schema(model) => &model.name,
            Model::Branch(model) => &model.name,
            Model::Relay(model) => &model.name,
            Model::Ingestor(model) => &model.name,
            Model::Emitter(model) => &model.name,
            Model::Resource(name) => name,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Unpaced,
    Paced { period_nanos: u64, skew_nanos: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    Now,
    Instant(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayChange {
    Schema(Name),
    Unbranched,
    BranchedBy(Name),
    Capacity(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaChange {
    Add(Field),
    Drop(Name),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    Blocking,
    Dropping,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    pub name: Name,
    pub relay: Name,
    pub delivery: DeliveryMode,
    /// The share of relay batches delivered, over 0 and at most 1.
    pub sample_rate: Option<f64>,
    pub filter: Option<Expr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupScope {
    Cluster,
    Domain(Name),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreScope {
    Cluster,
    Domain { name: Name, rename: Option<Name> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingUser {
    Fail,
    Skip,
    Replace,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    CreateDomain {
        if_not_exists: bool,
        name: Name,
        pace: Pace,
    },
    CreateModel {
        if_not_exists: bool,
        model: Model,
    },
    Drop {
        kind: Kind,
        name: Name,
    },
    AlterRelay {
        name: Name,
        changes: Vec<RelayChange>,
    },
    AlterSchema {
        name: Name,
        changes: Vec<SchemaChange>,
    },
    Use {
        domain: Name,
    },
    ListDomains,
    Start {
        at: Option<StartAt>,
        rate: Option<f64>,
    },
    Stop,
    ShowCreate {
        kind: Kind,
        name: Name,
    },
    ShowClusterStatus,
    ShowIngestors,
    ShowTransactions,
    /// A domain may be left out, for the selected one.
    DescribeDomain {
        name: Option<Name>,
    },
    Describe {
        kind: Kind,
        name: Name,
    },
    DescribeTransaction {
        id: Option<String>,
        operation: Option<u64>,
    },
    Begin,
    Commit,
    Revert,
    CreateSubscription(Subscription),
    DeleteSubscription {
        name: Name,
    },
    AttachDomainClock,
    DetachDomainClock,
    UploadResource {
        name: Name,
        directory: String,
    },
    Backup {
        scope: BackupScope,
        path: String,
        resources: bool,
        state: bool,
    },
    Restore {
        scope: RestoreScope,
        path: String,
        existing_user: Option<ExistingUser>,
        dry_run: bool,
        resume: bool,
        state: bool,
    },
}

/// Where a field is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Bare,
    Input,
    Message,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl BinaryOp {
    pub fn text(self) -> &'static str {
        match self {
            BinaryOp::Or => "OR",
            BinaryOp::And => "AND",
            BinaryOp::Equal => "=",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterEqual => ">=",
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
        }
    }

    pub fn is_comparison(self) -> bool {
        matches!(
            self,
            BinaryOp::Equal
                | BinaryOp::NotEqual
                | BinaryOp::Less
                | BinaryOp::LessEqual
                | BinaryOp::Greater
                | BinaryOp::GreaterEqual
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Duration(u64),
    Field {
        source: Source,
        name: String,
    },
    Now,
    LeakSensitive(Box<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    IsNull {
        operand: Box<Expr>,
        negated: bool,
    },
    Binary {
        op: BinaryOp,
        left: Box<Expr>,
        right: Box<Expr>,
    },
}

#[derive(Debug, Clone)]
pub struct Expr {
    pub kind: ExprKind,
    pub span: Span,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}
