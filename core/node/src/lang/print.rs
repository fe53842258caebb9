//! Statements to canonical NSPL: one line, keywords in capitals, defaults left out. Read again it is the same statement.

use std::fmt::{Display, Formatter, Result, Write};

use super::ast::{
    AckMode, Assignment, BackupScope, BinaryOp, Branch, DeliveryMode, Emitter, ExistingUser, Expr,
    ExprKind, Field, FieldType, Flush, GeneralError, Ingestor, Inherit, MessageError, Model, Name,
    Pace, Relay, RelayChange, RestoreScope, Schema, SchemaChange, Source, StartAt, Statement,
    Subscription, Timestamp, Window,
};
use super::instant;
use super::units::{print_duration, print_size};

struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "'{}'", self.0.replace('\'', "''"))
    }
}

/// Items with `, ` between.
struct Listed<'a, T>(&'a [T]);

impl<T: Display> Display for Listed<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (index, item) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            item.fmt(f)?;
        }
        Ok(())
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.text)
    }
}

impl Display for FieldType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            FieldType::Scalar(scalar) => f.write_str(scalar.keyword()),
            FieldType::List(element) => write!(f, "VEC<{element}>"),
            FieldType::FixedList { element, length } => {
                let mut innermost = element.as_ref();
                let mut lengths = length.to_string();
                while let FieldType::FixedList { element, length } = innermost {
                    write!(lengths, ", {length}")?;
                    innermost = element;
                }
                write!(f, "ARRAY<{innermost}, {lengths}>")
            }
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {}", self.name, self.field_type)?;
        if self.optional {
            f.write_str(" OPTIONAL")?;
        }
        if self.sensitive {
            f.write_str(" SENSITIVE")?;
        }
        Ok(())
    }
}

impl Display for Schema {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "SCHEMA {} ({})", self.name, Listed(&self.fields))
    }
}

impl Display for Branch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Branch {
            name,
            schema,
            ttl_nanos,
        } = self;
        write!(
            f,
            "BRANCH {name} SCHEMA {schema} TTL {}",
            print_duration(*ttl_nanos)
        )
    }
}

impl Display for Relay {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "RELAY {} SCHEMA {} ", self.name, self.schema)?;
        match &self.branch {
            Some(branch) => write!(f, "BRANCHED BY {branch}")?,
            None => f.write_str("UNBRANCHED")?,
        }
        match self.capacity {
            Some(capacity) => write!(f, " CAPACITY {capacity}"),
            None => Ok(()),
        }
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Window::Sequential => f.write_str("SEQUENTIAL"),
            Window::Parallel(max) => write!(f, "PARALLEL MAX {max}"),
        }
    }
}

impl Display for AckMode {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "MODE ACK {} ACK TIMEOUT {} RETRY POLICY BACKOFF {} MAX {}",
            self.window,
            print_duration(self.ack_timeout_nanos),
            print_duration(self.backoff_nanos),
            print_duration(self.max_backoff_nanos)
        )
    }
}

impl Display for Timestamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Timestamp::Now => f.write_str("TIMESTAMP NOW"),
            Timestamp::At(field) => write!(f, "TIMESTAMP AT {field}"),
        }
    }
}

impl Display for Inherit {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Inherit::All { except } if except.is_empty() => f.write_str("INHERIT ALL"),
            Inherit::All { except } => write!(f, "INHERIT ALL EXCEPT {}", Listed(except)),
            Inherit::Fields(fields) => write!(f, "INHERIT {}", Listed(fields)),
        }
    }
}

impl Display for Assignment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} = {}", self.target, self.value)
    }
}

impl Display for Flush {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Flush::Immediate => f.write_str("FLUSH IMMEDIATE"),
            Flush::Each {
                every_nanos,
                max_bytes,
            } => {
                write!(f, "FLUSH EACH {}", print_duration(*every_nanos))?;
                match max_bytes {
                    Some(bytes) => write!(f, " MAX BATCH SIZE {}", print_size(*bytes)),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Display for MessageError {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            MessageError::Log => f.write_str("ON MESSAGE ERROR LOG"),
            MessageError::Ignore => f.write_str("ON MESSAGE ERROR IGNORE"),
            MessageError::SendTo { relay, set } => {
                write!(f, "ON MESSAGE ERROR SEND TO {relay} SET {}", Listed(set))
            }
        }
    }
}

impl Display for GeneralError {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            GeneralError::Log => f.write_str("ON GENERAL ERROR LOG"),
            GeneralError::Ignore => f.write_str("ON GENERAL ERROR IGNORE"),
        }
    }
}

fn print_set(f: &mut Formatter<'_>, set: &[Assignment]) -> Result {
    if set.is_empty() {
        return Ok(());
    }
    write!(f, " SET {}", Listed(set))
}

fn print_where(f: &mut Formatter<'_>, filter: Option<&Expr>) -> Result {
    match filter {
        Some(filter) => write!(f, " WHERE {filter}"),
        None => Ok(()),
    }
}

impl Display for Ingestor {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "INGESTOR {} FROM CLIENT SCHEMA {} {} ON QUIESCE SUSPEND {} TO {} {}",
            self.name, self.schema, self.mode, self.timestamp, self.relay, self.inherit
        )?;
        print_set(f, &self.set)?;
        if let Some(branching) = &self.branching {
            write!(f, " BRANCHED BY {}", branching.branch)?;
            print_set(f, &branching.set)?;
        }
        print_where(f, self.filter.as_ref())?;
        write!(
            f,
            " {} {} {}",
            self.flush, self.message_error, self.general_error
        )
    }
}

impl Display for Emitter {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let attachment = if self.attached {
            "ATTACHED"
        } else {
            "DETACHED"
        };
        write!(
            f,
            "{attachment} EMITTER {} FROM {} TO CLIENT SCHEMA {} {} {}",
            self.name,
            Listed(&self.relays),
            self.schema,
            self.mode,
            self.inherit
        )?;
        print_set(f, &self.set)?;
        print_where(f, self.filter.as_ref())?;
        write!(
            f,
            " BATCH MAX MESSAGES {} MAX SIZE {} {} {} {}",
            self.max_messages,
            print_size(self.max_bytes),
            self.flush,
            self.message_error,
            self.general_error
        )
    }
}

impl Display for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Model::Schema(model) => model.fmt(f),
            Model::Branch(model) => model.fmt(f),
            Model::Relay(model) => model.fmt(f),
            Model::Ingestor(model) => model.fmt(f),
            Model::Emitter(model) => model.fmt(f),
            Model::Resource(name) => write!(f, "RESOURCE {name}"),
        }
    }
}

/// `PACED DOMAIN d WITH PERIOD 100ms SKEW 10ms`.
pub fn print_domain(name: &str, pace: Pace) -> String {
    match pace {
        Pace::Unpaced => format!("UNPACED DOMAIN {name}"),
        Pace::Paced {
            period_nanos,
            skew_nanos,
        } => format!(
            "PACED DOMAIN {name} WITH PERIOD {} SKEW {}",
            print_duration(period_nanos),
            print_duration(skew_nanos)
        ),
    }
}

impl Display for RelayChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            RelayChange::Schema(schema) => write!(f, "SCHEMA {schema}"),
            RelayChange::Unbranched => f.write_str("UNBRANCHED"),
            RelayChange::BranchedBy(branch) => write!(f, "BRANCHED BY {branch}"),
            RelayChange::Capacity(capacity) => write!(f, "CAPACITY {capacity}"),
        }
    }
}

impl Display for SchemaChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            SchemaChange::Add(field) => write!(f, "ADD {field}"),
            SchemaChange::Drop(field) => write!(f, "DROP {field}"),
        }
    }
}

impl Display for Subscription {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "SUBSCRIPTION {} TO {}", self.name, self.relay)?;
        if self.delivery == DeliveryMode::Blocking {
            f.write_str(" BLOCKING")?;
        }
        if let Some(rate) = self.sample_rate {
            write!(f, " BATCH SAMPLE RATE {rate:?}")?;
        }
        print_where(f, self.filter.as_ref())
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let creation = |if_not_exists: &bool| {
            if *if_not_exists {
                "CREATE IF NOT EXISTS"
            } else {
                "CREATE"
            }
        };
        match self {
            Statement::CreateDomain {
                if_not_exists,
                name,
                pace,
            } => write!(
                f,
                "{} {}",
                creation(if_not_exists),
                print_domain(&name.text, *pace)
            ),
            Statement::CreateModel {
                if_not_exists,
                model,
            } => write!(f, "{} {model}", creation(if_not_exists)),
            Statement::Drop { kind, name } => write!(f, "DROP {} {name}", kind.keyword()),
            Statement::AlterRelay { name, changes } => {
                write!(f, "ALTER RELAY {name} SET {}", Listed(changes))
            }
            Statement::AlterSchema { name, changes } => {
                write!(f, "ALTER SCHEMA {name} {}", Listed(changes))
            }
            Statement::Use { domain } => write!(f, "USE {domain}"),
            Statement::ListDomains => f.write_str("LIST DOMAINS"),
            Statement::Start { at, rate } => {
                f.write_str("START")?;
                match at {
                    Some(StartAt::Now) => f.write_str(" AT NOW")?,
                    Some(StartAt::Instant(nanos)) => write!(f, " AT '{}'", instant::print(*nanos))?,
                    None => (),
                }
                match rate {
                    Some(rate) => write!(f, " TIME RATE {rate:?}"),
                    None => Ok(()),
                }
            }
            Statement::Stop => f.write_str("STOP"),
            Statement::ShowCreate { kind, name } => {
                write!(f, "SHOW CREATE {} {name}", kind.keyword())
            }
            Statement::ShowClusterStatus => f.write_str("SHOW CLUSTER STATUS"),
            Statement::ShowIngestors => f.write_str("SHOW INGESTORS"),
            Statement::ShowTransactions => f.write_str("SHOW TRANSACTIONS"),
            Statement::DescribeDomain { name: None } => f.write_str("DESCRIBE DOMAIN"),
            Statement::DescribeDomain { name: Some(name) } => write!(f, "DESCRIBE DOMAIN {name}"),
            Statement::Describe { kind, name } => write!(f, "DESCRIBE {} {name}", kind.keyword()),
            Statement::DescribeTransaction { id, operation } => {
                f.write_str("DESCRIBE TRANSACTION")?;
                if let Some(id) = id {
                    write!(f, " {}", Quoted(id))?;
                }
                match operation {
                    Some(operation) => write!(f, " OPERATION {operation}"),
                    None => Ok(()),
                }
            }
            Statement::Begin => f.write_str("BEGIN"),
            Statement::Commit => f.write_str("COMMIT"),
            Statement::Revert => f.write_str("REVERT"),
            Statement::CreateSubscription(subscription) => write!(f, "CREATE {subscription}"),
            Statement::DeleteSubscription { name } => write!(f, "DELETE SUBSCRIPTION {name}"),
            Statement::AttachDomainClock => f.write_str("ATTACH DOMAIN CLOCK"),
            Statement::DetachDomainClock => f.write_str("DETACH DOMAIN CLOCK"),
            Statement::UploadResource { name, directory } => {
                write!(f, "UPLOAD RESOURCE {name} VERSION {}", Quoted(directory))
            }
            Statement::Backup {
                scope,
                path,
                resources,
                state,
            } => {
                match scope {
                    BackupScope::Cluster => f.write_str("BACKUP CLUSTER")?,
                    BackupScope::Domain(name) => write!(f, "BACKUP DOMAIN {name}")?,
                }
                write!(f, " TO {}", Quoted(path))?;
                if !resources {
                    f.write_str(" WITHOUT RESOURCES")?;
                }
                if !state {
                    f.write_str(" WITHOUT STATE")?;
                }
                Ok(())
            }
            Statement::Restore {
                scope,
                path,
                existing_user,
                dry_run,
                resume,
                state,
            } => {
                match scope {
                    RestoreScope::Cluster => f.write_str("RESTORE CLUSTER")?,
                    RestoreScope::Domain { name, rename } => {
                        write!(f, "RESTORE DOMAIN {name}")?;
                        if let Some(rename) = rename {
                            write!(f, " AS {rename}")?;
                        }
                    }
                }
                write!(f, " FROM {}", Quoted(path))?;
                match existing_user {
                    Some(ExistingUser::Fail) => f.write_str(" ON EXISTING USER FAIL")?,
                    Some(ExistingUser::Skip) => f.write_str(" ON EXISTING USER SKIP")?,
                    Some(ExistingUser::Replace) => f.write_str(" ON EXISTING USER REPLACE")?,
                    None => (),
                }
                if *dry_run {
                    f.write_str(" DRY RUN")?;
                }
                if *resume {
                    f.write_str(" RESUME")?;
                }
                if !state {
                    f.write_str(" WITHOUT STATE")?;
                }
                Ok(())
            }
        }
    }
}

/// How tightly the outermost operator of an expression binds; operands that bind looser need parentheses.
fn binding(expr: &Expr) -> u8 {
    match &expr.kind {
        ExprKind::Binary { op, .. } => match op {
            BinaryOp::Or => 1,
            BinaryOp::And => 2,
            BinaryOp::Add | BinaryOp::Subtract => 5,
            BinaryOp::Multiply | BinaryOp::Divide => 6,
            _ => 4,
        },
        ExprKind::Not(_) => 3,
        ExprKind::IsNull { .. } => 4,
        ExprKind::Negate(_) => 7,
        _ => 8,
    }
}

fn operand(f: &mut Formatter<'_>, expr: &Expr, at_least: u8) -> Result {
    if binding(expr) < at_least {
        write!(f, "({expr})")
    } else {
        expr.fmt(f)
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.kind {
            ExprKind::Null => f.write_str("NULL"),
            ExprKind::Bool(true) => f.write_str("TRUE"),
            ExprKind::Bool(false) => f.write_str("FALSE"),
            ExprKind::Integer(value) => write!(f, "{value}"),
            ExprKind::Float(value) => write!(f, "{value:?}"),
            ExprKind::Text(value) => Quoted(value).fmt(f),
            ExprKind::Duration(nanos) => f.write_str(&print_duration(*nanos)),
            ExprKind::Field { source, name } => {
                f.write_str(match source {
                    Source::Bare => "",
                    Source::Input => "input.",
                    Source::Message => "message.",
                    Source::Error => "error.",
                })?;
                f.write_str(name)
            }
            ExprKind::Now => f.write_str("now()"),
            ExprKind::LeakSensitive(inner) => write!(f, "leak_sensitive({inner})"),
            ExprKind::Not(inner) => {
                f.write_str("NOT ")?;
                operand(f, inner, 3)
            }
            ExprKind::Negate(inner) => {
                f.write_char('-')?;
                operand(f, inner, 7)
            }
            ExprKind::IsNull {
                operand: inner,
                negated,
            } => {
                operand(f, inner, 5)?;
                f.write_str(if *negated { " IS NOT NULL" } else { " IS NULL" })
            }
            ExprKind::Binary { op, left, right } => {
                let own = binding(self);
                // Comparisons do not chain; the others group to the left.
                operand(f, left, if op.is_comparison() { own + 1 } else { own })?;
                write!(f, " {} ", op.text())?;
                operand(f, right, own + 1)
            }
        }
    }
}
