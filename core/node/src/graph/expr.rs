//! Expressions checked against the fields they may read, and their evaluation row by row.
//!
//! Integers of any width compare with each other, and floats with each other; arithmetic wants both sides of one type,
//! which a literal takes from the other side. NULL is unknown, as in SQL: it propagates, `AND` and `OR` decide without it
//! where they can, and a filter keeps only rows for which it is true. `AND` and `OR` stop at the side that decides, so
//! the right side of `x != 0 AND y / x > 1` does not fail on a zero.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::failure::Failure;
use crate::lang::ast::{BinaryOp, Expr, ExprKind, Field, FieldType, Scalar, Source};
use crate::lang::{instant, Span};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Of NULL alone: fits everywhere.
    Null,
    /// An integer literal that has not met a type yet.
    AnyInteger,
    /// A decimal literal that has not met a type yet.
    AnyFloat,
    Scalar(Scalar),
    Duration,
    List(FieldType),
}

impl Type {
    pub fn of(field_type: &FieldType) -> Self {
        match field_type {
            FieldType::Scalar(scalar) => Type::Scalar(*scalar),
            list => Type::List(list.clone()),
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Type::Null => "NULL".to_string(),
            Type::AnyInteger => "an integer".to_string(),
            Type::AnyFloat => "a decimal number".to_string(),
            Type::Scalar(scalar) => scalar.keyword().to_string(),
            Type::Duration => "a duration".to_string(),
            Type::List(field_type) => field_type.to_string(),
        }
    }
}

/// The least and the greatest value of an integer type; None for the other types.
fn integer_range(scalar: Scalar) -> Option<(i128, i128)> {
    Some(match scalar {
        Scalar::U8 => (0, i128::from(u8::MAX)),
        Scalar::I8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        Scalar::U16 => (0, i128::from(u16::MAX)),
        Scalar::I16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        Scalar::U32 => (0, i128::from(u32::MAX)),
        Scalar::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        Scalar::U64 => (0, i128::from(u64::MAX)),
        Scalar::I64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
        _ => return None,
    })
}

/// Where a field's value comes from when an expression is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    Input(usize),
    Message(usize),
    ErrorCode,
    ErrorMessage,
}

/// What an expression may read. A bare name is looked up in the input first, then in the message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    pub input: Option<&'a [Field]>,
    pub message: Option<&'a [Field]>,
    pub error: bool,
    /// Words for who must not read sensitive fields at all, if that is so.
    pub refuses_sensitive: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Constant(Constant),
    Slot(Slot),
    Now,
    Not(Box<Node>),
    Negate {
        ty: Type,
        operand: Box<Node>,
    },
    IsNull {
        operand: Box<Node>,
        negated: bool,
    },
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Compare {
        op: BinaryOp,
        left: Box<Node>,
        right: Box<Node>,
    },
    Arithmetic {
        op: BinaryOp,
        ty: Type,
        left: Box<Node>,
        right: Box<Node>,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Constant {
    Null,
    Bool(bool),
    Integer(i128),
    F32(f32),
    F64(f64),
    Text(String),
    Datetime(i64),
    Duration(i128),
}

/// An expression whose names and types are in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    node: Node,
    pub ty: Type,
    /// Whether its value gives away something of a sensitive field.
    pub sensitive: bool,
    /// Whether it can be NULL.
    pub nullable: bool,
}

impl Checked {
    fn constant(constant: Constant, ty: Type) -> Self {
        let nullable = constant == Constant::Null;
        Self {
            node: Node::Constant(constant),
            ty,
            sensitive: false,
            nullable,
        }
    }

    /// A parent of these operands: as sensitive and as nullable as they are.
    fn over(node: Node, ty: Type, operands: &[(bool, bool)]) -> Self {
        Self {
            node,
            ty,
            sensitive: operands.iter().any(|(sensitive, _)| *sensitive),
            nullable: operands.iter().any(|(_, nullable)| *nullable),
        }
    }

    fn traits(&self) -> (bool, bool) {
        (self.sensitive, self.nullable)
    }
}

/// What a whole column of values of an expression is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The column that is read, as it is.
    Column(Slot),
    /// One value for all rows.
    Uniform,
    /// Something of its own for each row.
    Computed,
}

/// Checks an expression, without saying yet which type it must have.
pub fn check(expr: &Expr, scope: &Scope<'_>) -> Result<Checked, Failure> {
    match &expr.kind {
        ExprKind::Null => Ok(Checked::constant(Constant::Null, Type::Null)),
        ExprKind::Bool(value) => Ok(Checked::constant(
            Constant::Bool(*value),
            Type::Scalar(Scalar::Bool),
        )),
        ExprKind::Integer(value) => Ok(Checked::constant(
            Constant::Integer(*value),
            Type::AnyInteger,
        )),
        ExprKind::Float(value) => Ok(Checked::constant(Constant::F64(*value), Type::AnyFloat)),
        ExprKind::Text(value) => Ok(Checked::constant(
            Constant::Text(value.clone()),
            Type::Scalar(Scalar::String),
        )),
        ExprKind::Duration(nanos) => Ok(Checked::constant(
            Constant::Duration(i128::from(*nanos)),
            Type::Duration,
        )),
        ExprKind::Field { source, name } => check_field(*source, name, expr.span, scope),
        ExprKind::Now => Ok(Checked {
            node: Node::Now,
            ty: Type::Scalar(Scalar::Datetime),
            sensitive: false,
            nullable: false,
        }),
        ExprKind::LeakSensitive(inner) => {
            let inner = check(inner, scope)?;
            Ok(Checked {
                sensitive: false,
                ..inner
            })
        }
        ExprKind::Not(inner) => {
            let operand = check_as(inner, scope, &Type::Scalar(Scalar::Bool))?;
            let traits = [operand.traits()];
            Ok(Checked::over(
                Node::Not(Box::new(operand.node)),
                operand.ty,
                &traits,
            ))
        }
        ExprKind::Negate(inner) => check_negation(inner, expr.span, scope),
        ExprKind::IsNull { operand, negated } => {
            let operand = settle(check(operand, scope)?, expr.span)?;
            Ok(Checked {
                node: Node::IsNull {
                    operand: Box::new(operand.node),
                    negated: *negated,
                },
                ty: Type::Scalar(Scalar::Bool),
                sensitive: operand.sensitive,
                nullable: false,
            })
        }
        ExprKind::Binary { op, left, right } => check_binary(*op, left, right, expr.span, scope),
    }
}

/// Checks an expression that must have a type; a literal takes it, NULL has it.
pub fn check_as(expr: &Expr, scope: &Scope<'_>, wanted: &Type) -> Result<Checked, Failure> {
    let found = check(expr, scope)?;
    let described = found.ty.describe();
    match adapt(found, wanted, expr.span)? {
        found if found.ty == *wanted || found.ty == Type::Null => Ok(found),
        _ => Err(Failure::at(
            format!("expected {}, found {described}", wanted.describe()),
            expr.span,
        )),
    }
}

/// Checks a filter: a condition.
pub fn check_filter(expr: &Expr, scope: &Scope<'_>) -> Result<Checked, Failure> {
    check_as(expr, scope, &Type::Scalar(Scalar::Bool))
}

fn check_field(
    source: Source,
    name: &str,
    span: Span,
    scope: &Scope<'_>,
) -> Result<Checked, Failure> {
    if source == Source::Error {
        let slot = match name {
            "code" => Slot::ErrorCode,
            "message" => Slot::ErrorMessage,
            _ => {
                return Err(Failure::at(
                    format!("an error has a code and a message, and no `{name}`"),
                    span,
                ))
            }
        };
        if !scope.error {
            return Err(Failure::at(
                "error.code and error.message exist only where an error is sent on",
                span,
            ));
        }
        return Ok(Checked {
            node: Node::Slot(slot),
            ty: Type::Scalar(Scalar::String),
            sensitive: false,
            nullable: false,
        });
    }
    let find = |fields: Option<&[Field]>| {
        fields?
            .iter()
            .enumerate()
            .find(|(_, field)| field.name.text == name)
            .map(|(index, field)| (index, field.clone()))
    };
    let input = || find(scope.input).map(|(index, field)| (Slot::Input(index), field));
    let message = || find(scope.message).map(|(index, field)| (Slot::Message(index), field));
    let found = match source {
        Source::Input => input(),
        Source::Message => message(),
        Source::Bare | Source::Error => input().or_else(message),
    };
    let Some((slot, field)) = found else {
        return Err(Failure::at(
            format!("there is no field `{name}` here"),
            span,
        ));
    };
    if let Some(who) = scope.refuses_sensitive.filter(|_| field.sensitive) {
        return Err(Failure::at(
            format!("the field `{name}` is sensitive, and {who} must not read it"),
            span,
        ));
    }
    Ok(Checked {
        node: Node::Slot(slot),
        ty: Type::of(&field.field_type),
        sensitive: field.sensitive,
        nullable: field.optional,
    })
}

/// Gives a literal the type of what it meets. Anything else comes back as it is.
fn adapt(checked: Checked, to: &Type, span: Span) -> Result<Checked, Failure> {
    let Node::Constant(constant) = &checked.node else {
        return Ok(checked);
    };
    let misfit =
        |what: &str| Failure::at(format!("this {what} does not fit {}", to.describe()), span);
    let adapted = match (constant, to) {
        (Constant::Integer(value), Type::Scalar(scalar)) if checked.ty == Type::AnyInteger => {
            match scalar {
                #[allow(clippy::cast_precision_loss)]
                Scalar::F32 => Constant::F32(*value as f32),
                #[allow(clippy::cast_precision_loss)]
                Scalar::F64 => Constant::F64(*value as f64),
                scalar => {
                    let Some((least, greatest)) = integer_range(*scalar) else {
                        return Ok(checked);
                    };
                    if !(least..=greatest).contains(value) {
                        return Err(misfit("integer"));
                    }
                    return Ok(Checked {
                        ty: to.clone(),
                        ..checked
                    });
                }
            }
        }
        (Constant::F64(value), Type::Scalar(Scalar::F64)) if checked.ty == Type::AnyFloat => {
            Constant::F64(*value)
        }
        (Constant::F64(value), Type::Scalar(Scalar::F32)) if checked.ty == Type::AnyFloat => {
            #[allow(clippy::cast_possible_truncation)]
            let narrow = *value as f32;
            if !narrow.is_finite() {
                return Err(misfit("number"));
            }
            Constant::F32(narrow)
        }
        (Constant::Text(text), Type::Scalar(Scalar::Datetime)) => match instant::parse(text) {
            Some(nanos) => Constant::Datetime(nanos),
            None => {
                return Err(Failure::at(
                    "expected an RFC 3339 instant such as '2030-01-01T00:00:00Z'",
                    span,
                ))
            }
        },
        _ => return Ok(checked),
    };
    Ok(Checked::constant(adapted, to.clone()))
}

/// Gives a literal that met nothing its own type.
fn settle(checked: Checked, span: Span) -> Result<Checked, Failure> {
    let own = match (&checked.node, &checked.ty) {
        (Node::Constant(Constant::Integer(value)), Type::AnyInteger)
            if *value > i128::from(i64::MAX) =>
        {
            Scalar::U64
        }
        (_, Type::AnyInteger) => Scalar::I64,
        (_, Type::AnyFloat) => Scalar::F64,
        _ => return Ok(checked),
    };
    adapt(checked, &Type::Scalar(own), span)
}

fn is_integer(ty: &Type) -> bool {
    matches!(ty, Type::Scalar(scalar) if integer_range(*scalar).is_some())
}

fn is_float(ty: &Type) -> bool {
    matches!(ty, Type::Scalar(Scalar::F32 | Scalar::F64))
}

fn check_negation(inner: &Expr, span: Span, scope: &Scope<'_>) -> Result<Checked, Failure> {
    let operand = settle(check(inner, scope)?, span)?;
    let signed = match &operand.ty {
        Type::Scalar(scalar) => {
            is_float(&operand.ty) || integer_range(*scalar).is_some_and(|(least, _)| least < 0)
        }
        Type::Duration | Type::Null => true,
        _ => false,
    };
    if !signed {
        return Err(Failure::at(
            format!("{} has no negative values", operand.ty.describe()),
            span,
        ));
    }
    let traits = [operand.traits()];
    Ok(Checked::over(
        Node::Negate {
            ty: operand.ty.clone(),
            operand: Box::new(operand.node),
        },
        operand.ty,
        &traits,
    ))
}

fn check_binary(
    op: BinaryOp,
    left: &Expr,
    right: &Expr,
    span: Span,
    scope: &Scope<'_>,
) -> Result<Checked, Failure> {
    let bool_type = Type::Scalar(Scalar::Bool);
    if matches!(op, BinaryOp::And | BinaryOp::Or) {
        let left = check_as(left, scope, &bool_type)?;
        let right = check_as(right, scope, &bool_type)?;
        let traits = [left.traits(), right.traits()];
        let (left, right) = (Box::new(left.node), Box::new(right.node));
        let node = if op == BinaryOp::And {
            Node::And(left, right)
        } else {
            Node::Or(left, right)
        };
        return Ok(Checked::over(node, bool_type, &traits));
    }
    let (left_span, right_span) = (left.span, right.span);
    let (left, right) = (check(left, scope)?, check(right, scope)?);
    if op.is_comparison() {
        // An integer literal compares exactly with any integer, so it need not fit the other side's type.
        let wide = |ty: &Type| *ty == Type::AnyInteger || is_integer(ty);
        let (left, right) = if wide(&left.ty) && wide(&right.ty) {
            (left, right)
        } else {
            meet(left, left_span, right, right_span)?
        };
        let comparable = left.ty == right.ty && !matches!(left.ty, Type::List(_))
            || wide(&left.ty) && wide(&right.ty)
            || is_float(&left.ty) && is_float(&right.ty)
            || left.ty == Type::Null
            || right.ty == Type::Null;
        let ordered = !matches!(op, BinaryOp::Equal | BinaryOp::NotEqual);
        if !comparable || ordered && (left.ty == bool_type || right.ty == bool_type) {
            return Err(Failure::at(
                format!(
                    "{} and {} cannot be compared with {}",
                    left.ty.describe(),
                    right.ty.describe(),
                    op.text()
                ),
                span,
            ));
        }
        let traits = [left.traits(), right.traits()];
        let node = Node::Compare {
            op,
            left: Box::new(left.node),
            right: Box::new(right.node),
        };
        return Ok(Checked::over(node, bool_type, &traits));
    }
    let (left, right) = meet(left, left_span, right, right_span)?;
    let Some(ty) = arithmetic_type(op, &left.ty, &right.ty) else {
        return Err(Failure::at(
            format!(
                "{} {} {} is not defined",
                left.ty.describe(),
                op.text(),
                right.ty.describe()
            ),
            span,
        ));
    };
    let traits = [left.traits(), right.traits()];
    let node = Node::Arithmetic {
        op,
        ty: ty.clone(),
        left: Box::new(left.node),
        right: Box::new(right.node),
    };
    Ok(Checked::over(node, ty, &traits))
}

/// Gives literals the type of the other side, or their own.
fn meet(
    left: Checked,
    left_span: Span,
    right: Checked,
    right_span: Span,
) -> Result<(Checked, Checked), Failure> {
    let literal = |checked: &Checked| matches!(checked.ty, Type::AnyInteger | Type::AnyFloat);
    let (left, right) = match (literal(&left), literal(&right)) {
        (true, true) if left.ty == right.ty => {
            (settle(left, left_span)?, settle(right, right_span)?)
        }
        (true, true) => {
            let f64_type = Type::Scalar(Scalar::F64);
            (
                adapt(left, &f64_type, left_span)?,
                adapt(right, &f64_type, right_span)?,
            )
        }
        _ => {
            let left = adapt(left, &right.ty, left_span)?;
            let right = adapt(right, &left.ty, right_span)?;
            (left, right)
        }
    };
    Ok((settle(left, left_span)?, settle(right, right_span)?))
}

fn arithmetic_type(op: BinaryOp, left: &Type, right: &Type) -> Option<Type> {
    let datetime = Type::Scalar(Scalar::Datetime);
    match (left, right) {
        (left, right) if left == right && (is_integer(left) || is_float(left)) => {
            Some(left.clone())
        }
        (Type::Duration, Type::Duration) if matches!(op, BinaryOp::Add | BinaryOp::Subtract) => {
            Some(Type::Duration)
        }
        (left, Type::Duration)
            if *left == datetime && matches!(op, BinaryOp::Add | BinaryOp::Subtract) =>
        {
            Some(datetime)
        }
        (Type::Duration, right) if *right == datetime && op == BinaryOp::Add => Some(datetime),
        (left, right) if *left == datetime && left == right && op == BinaryOp::Subtract => {
            Some(Type::Duration)
        }
        (Type::Null, other) | (other, Type::Null)
            if is_integer(other) || is_float(other) || *other == Type::Null =>
        {
            Some(other.clone())
        }
        _ => None,
    }
}

// ---- evaluation

/// A value while an expression is evaluated. Lists have no operators: they are only ever null or not.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Integer(i128),
    F32(f32),
    F64(f64),
    Text(Cow<'a, str>),
    Bytes(&'a [u8]),
    Datetime(i64),
    Duration(i128),
    List,
}

/// What an expression reads of one row.
pub trait Row {
    fn value(&self, slot: Slot) -> Value<'_>;
}

/// Why an expression has no value for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalError {
    Overflow,
    DivisionByZero,
    NoDomainTime,
}

impl std::fmt::Display for EvalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EvalError::Overflow => "the result of an operation does not fit its type",
            EvalError::DivisionByZero => "an integer was divided by zero",
            EvalError::NoDomainTime => "now() has no value: the domain has no time",
        })
    }
}

impl Checked {
    pub fn shape(&self) -> Shape {
        match &self.node {
            Node::Slot(slot) => Shape::Column(*slot),
            Node::Constant(_) | Node::Now => Shape::Uniform,
            _ => Shape::Computed,
        }
    }

    /// The value for one row; `now` is the domain's time.
    pub fn evaluate<'a>(
        &'a self,
        row: &'a dyn Row,
        now: Option<i64>,
    ) -> Result<Value<'a>, EvalError> {
        evaluate(&self.node, row, now)
    }

    /// Whether a filter keeps the row: NULL does not.
    pub fn keeps(&self, row: &dyn Row, now: Option<i64>) -> Result<bool, EvalError> {
        Ok(self.evaluate(row, now)? == Value::Bool(true))
    }
}

fn evaluate<'a>(
    node: &'a Node,
    row: &'a dyn Row,
    now: Option<i64>,
) -> Result<Value<'a>, EvalError> {
    Ok(match node {
        Node::Constant(constant) => match constant {
            Constant::Null => Value::Null,
            Constant::Bool(value) => Value::Bool(*value),
            Constant::Integer(value) => Value::Integer(*value),
            Constant::F32(value) => Value::F32(*value),
            Constant::F64(value) => Value::F64(*value),
            Constant::Text(value) => Value::Text(Cow::Borrowed(value)),
            Constant::Datetime(value) => Value::Datetime(*value),
            Constant::Duration(value) => Value::Duration(*value),
        },
        Node::Slot(slot) => row.value(*slot),
        Node::Now => Value::Datetime(now.ok_or(EvalError::NoDomainTime)?),
        Node::Not(operand) => match evaluate(operand, row, now)? {
            Value::Bool(value) => Value::Bool(!value),
            other => other,
        },
        Node::Negate { ty, operand } => match evaluate(operand, row, now)? {
            Value::Integer(value) => integer(ty, value.checked_neg())?,
            Value::F32(value) => Value::F32(-value),
            Value::F64(value) => Value::F64(-value),
            Value::Duration(value) => Value::Duration(-value),
            other => other,
        },
        Node::IsNull { operand, negated } => {
            Value::Bool((evaluate(operand, row, now)? == Value::Null) != *negated)
        }
        Node::And(left, right) => junction(left, right, false, row, now)?,
        Node::Or(left, right) => junction(left, right, true, row, now)?,
        Node::Compare { op, left, right } => {
            let (left, right) = (evaluate(left, row, now)?, evaluate(right, row, now)?);
            if left == Value::Null || right == Value::Null {
                return Ok(Value::Null);
            }
            let ordering = compare(&left, &right);
            Value::Bool(match op {
                BinaryOp::Equal => ordering == Some(Ordering::Equal),
                BinaryOp::NotEqual => ordering != Some(Ordering::Equal),
                BinaryOp::Less => ordering == Some(Ordering::Less),
                BinaryOp::LessEqual => ordering.is_some_and(Ordering::is_le),
                BinaryOp::Greater => ordering == Some(Ordering::Greater),
                _ => ordering.is_some_and(Ordering::is_ge),
            })
        }
        Node::Arithmetic {
            op,
            ty,
            left,
            right,
        } => arithmetic(
            *op,
            ty,
            &evaluate(left, row, now)?,
            &evaluate(right, row, now)?,
        )?,
    })
}

/// AND (`decider` false) and OR (`decider` true) over true, false and unknown.
fn junction<'a>(
    left: &'a Node,
    right: &'a Node,
    decider: bool,
    row: &'a dyn Row,
    now: Option<i64>,
) -> Result<Value<'a>, EvalError> {
    let left = evaluate(left, row, now)?;
    if left == Value::Bool(decider) {
        return Ok(left);
    }
    let right = evaluate(right, row, now)?;
    Ok(if right == Value::Bool(decider) || left != Value::Null {
        right
    } else {
        Value::Null
    })
}

/// None for what has no order, such as a NaN.
fn compare(left: &Value<'_>, right: &Value<'_>) -> Option<Ordering> {
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Integer(left), Value::Integer(right)) => Some(left.cmp(right)),
        (Value::F32(left), Value::F32(right)) => left.partial_cmp(right),
        (Value::F64(left), Value::F64(right)) => left.partial_cmp(right),
        (Value::F32(left), Value::F64(right)) => f64::from(*left).partial_cmp(right),
        (Value::F64(left), Value::F32(right)) => left.partial_cmp(&f64::from(*right)),
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
        (Value::Datetime(left), Value::Datetime(right)) => Some(left.cmp(right)),
        (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// A result that must fit its type.
fn integer<'a>(ty: &Type, value: Option<i128>) -> Result<Value<'a>, EvalError> {
    let value = value.ok_or(EvalError::Overflow)?;
    let range = match ty {
        Type::Scalar(scalar) => integer_range(*scalar),
        _ => None,
    };
    match range {
        Some((least, greatest)) if (least..=greatest).contains(&value) => Ok(Value::Integer(value)),
        _ => Err(EvalError::Overflow),
    }
}

fn datetime<'a>(value: Option<i128>) -> Result<Value<'a>, EvalError> {
    value
        .and_then(|value| i64::try_from(value).ok())
        .map(Value::Datetime)
        .ok_or(EvalError::Overflow)
}

fn arithmetic<'a>(
    op: BinaryOp,
    ty: &Type,
    left: &Value<'_>,
    right: &Value<'_>,
) -> Result<Value<'a>, EvalError> {
    fn exact(op: BinaryOp, left: i128, right: i128) -> Result<Option<i128>, EvalError> {
        Ok(match op {
            BinaryOp::Add => left.checked_add(right),
            BinaryOp::Subtract => left.checked_sub(right),
            BinaryOp::Multiply => left.checked_mul(right),
            _ if right == 0 => return Err(EvalError::DivisionByZero),
            _ => left.checked_div(right),
        })
    }
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => integer(ty, exact(op, *left, *right)?),
        (Value::F32(left), Value::F32(right)) => Ok(Value::F32(match op {
            BinaryOp::Add => left + right,
            BinaryOp::Subtract => left - right,
            BinaryOp::Multiply => left * right,
            _ => left / right,
        })),
        (Value::F64(left), Value::F64(right)) => Ok(Value::F64(match op {
            BinaryOp::Add => left + right,
            BinaryOp::Subtract => left - right,
            BinaryOp::Multiply => left * right,
            _ => left / right,
        })),
        (Value::Duration(left), Value::Duration(right)) => exact(op, *left, *right)?
            .map(Value::Duration)
            .ok_or(EvalError::Overflow),
        (Value::Datetime(left), Value::Duration(right)) => {
            datetime(exact(op, i128::from(*left), *right)?)
        }
        (Value::Duration(left), Value::Datetime(right)) => {
            datetime(exact(op, *left, i128::from(*right))?)
        }
        (Value::Datetime(left), Value::Datetime(right)) => {
            exact(op, i128::from(*left), i128::from(*right))?
                .map(Value::Duration)
                .ok_or(EvalError::Overflow)
        }
        _ => Ok(Value::Null),
    }
}
