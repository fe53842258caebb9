//! How endpoints make rows out of rows: INHERIT, SET, BRANCHED BY, WHERE and error routes, checked against the schemas
//! they connect. Must not know how rows flow.

use std::collections::BTreeSet;

use super::catalog::Catalog;
use super::expr::{check_as, check_filter, Checked, Scope, Type};
use super::failure::Failure;
use crate::lang::ast::{
    Assignment, Emitter, Field, Ingestor, Inherit, MessageError, Name, Scalar, Timestamp,
};

/// What becomes of sensitive values on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sensitivity {
    /// They stay inside: a sensitive value goes into a sensitive field only.
    Kept,
    /// They leave: only what leak_sensitive() lets through does.
    Leaves,
}

pub fn check_ingestor(catalog: &Catalog, ingestor: &Ingestor) -> Result<(), Failure> {
    let input = &catalog.find_schema(&ingestor.schema)?.fields;
    let relay = catalog.find_relay(&ingestor.relay)?;
    if let Timestamp::At(name) = &ingestor.timestamp {
        let field = find_field(input, name, &ingestor.schema)?;
        if Type::of(&field.field_type) != Type::Scalar(Scalar::Datetime) || field.optional {
            return Err(Failure::name(
                format!(
                    "TIMESTAMP AT needs a required DATETIME, and `{}` is none",
                    name.text
                ),
                name,
            ));
        }
    }
    let scope = Scope {
        input: Some(input),
        message: Some(relay.fields),
        ..Scope::default()
    };
    check_construction(
        &ingestor.inherit,
        &ingestor.set,
        input,
        &scope,
        &Target::of(relay.fields, &ingestor.relay),
        Sensitivity::Kept,
    )?;
    match (&ingestor.branching, relay.branch) {
        (None, None) => (),
        (Some(branching), Some((branch, key))) if branching.branch == branch.name => {
            let target = Target::of(key, &branching.branch);
            let assigned = check_set(&branching.set, &scope, &target, Sensitivity::Kept)?;
            check_complete(&target, &assigned)?;
        }
        (Some(branching), Some((branch, _))) => {
            return Err(Failure::name(
                format!(
                    "the relay `{}` is branched by `{}`",
                    ingestor.relay.text, branch.name.text
                ),
                &branching.branch,
            ))
        }
        (Some(branching), None) => {
            return Err(Failure::name(
                format!("the relay `{}` is not branched", ingestor.relay.text),
                &branching.branch,
            ))
        }
        (None, Some((branch, _))) => {
            return Err(Failure::name(
                format!(
                    "the relay `{}` is branched: say BRANCHED BY {} SET its key fields",
                    ingestor.relay.text, branch.name.text
                ),
                &ingestor.relay,
            ))
        }
    }
    if let Some(filter) = &ingestor.filter {
        check_filter(filter, &scope)?;
    }
    check_message_error(catalog, &ingestor.message_error, input)
}

pub fn check_emitter(catalog: &Catalog, emitter: &Emitter) -> Result<(), Failure> {
    let output = &catalog.find_schema(&emitter.schema)?.fields;
    let mut seen = BTreeSet::new();
    for name in &emitter.relays {
        if !seen.insert(name.text.as_str()) {
            return Err(Failure::name(
                format!("the relay `{}` is named twice", name.text),
                name,
            ));
        }
        let relay = catalog.find_relay(name)?;
        let scope = Scope {
            input: Some(relay.fields),
            message: Some(output),
            ..Scope::default()
        };
        check_construction(
            &emitter.inherit,
            &emitter.set,
            relay.fields,
            &scope,
            &Target::of(output, &emitter.schema),
            Sensitivity::Leaves,
        )?;
        if let Some(filter) = &emitter.filter {
            check_filter(filter, &scope)?;
        }
        check_message_error(catalog, &emitter.message_error, relay.fields)?;
    }
    Ok(())
}

/// What is to be constructed, and the name in the statement that stands for it.
struct Target<'a> {
    fields: &'a [Field],
    name: &'a Name,
}

impl<'a> Target<'a> {
    fn of(fields: &'a [Field], name: &'a Name) -> Self {
        Self { fields, name }
    }
}

fn find_field<'a>(fields: &'a [Field], name: &Name, of: &Name) -> Result<&'a Field, Failure> {
    fields
        .iter()
        .find(|field| field.name == *name)
        .ok_or_else(|| Failure::name(format!("`{}` has no field `{}`", of.text, name.text), name))
}

fn check_construction(
    inherit: &Inherit,
    set: &[Assignment],
    input: &[Field],
    scope: &Scope<'_>,
    target: &Target<'_>,
    sensitivity: Sensitivity,
) -> Result<(), Failure> {
    let mut assigned = BTreeSet::new();
    let known = |name: &Name| {
        input
            .iter()
            .find(|field| field.name == *name)
            .ok_or_else(|| {
                Failure::name(
                    format!("there is no field `{}` to inherit", name.text),
                    name,
                )
            })
    };
    let mut take = |field: &Field, at: &Name| -> Result<(), Failure> {
        check_inherited(field, target, sensitivity)
            .map_err(|message| Failure::name(message, at))?;
        assigned.insert(field.name.text.clone());
        Ok(())
    };
    match inherit {
        Inherit::All { except } => {
            for name in except {
                known(name)?;
            }
            for field in input.iter().filter(|field| !except.contains(&field.name)) {
                take(field, target.name)?;
            }
        }
        Inherit::Fields(names) => {
            for name in names {
                take(known(name)?, name)?;
            }
        }
    }
    assigned.extend(check_set(set, scope, target, sensitivity)?);
    check_complete(target, &assigned)
}

fn check_inherited(
    field: &Field,
    target: &Target<'_>,
    sensitivity: Sensitivity,
) -> Result<(), String> {
    let name = &field.name.text;
    let Some(into) = target.fields.iter().find(|into| into.name == field.name) else {
        return Err(format!(
            "`{}` has no field `{name}`: leave it out with EXCEPT",
            target.name.text
        ));
    };
    if into.field_type != field.field_type {
        return Err(format!(
            "the field `{name}` is {} in `{}` and cannot be inherited from {}",
            into.field_type, target.name.text, field.field_type
        ));
    }
    if field.optional && !into.optional {
        return Err(format!(
            "the field `{name}` is required in `{}` and cannot be inherited from an OPTIONAL one",
            target.name.text
        ));
    }
    if !field.sensitive {
        return Ok(());
    }
    match sensitivity {
        Sensitivity::Leaves => Err(format!(
            "the field `{name}` is sensitive and cannot be inherited: leave it out with EXCEPT, or SET it with leak_sensitive()"
        )),
        Sensitivity::Kept if !into.sensitive => Err(format!(
            "the field `{name}` is sensitive and cannot go into a field of `{}` that is not",
            target.name.text
        )),
        Sensitivity::Kept => Ok(()),
    }
}

/// Checks assignments and says which fields they give a value.
fn check_set(
    set: &[Assignment],
    scope: &Scope<'_>,
    target: &Target<'_>,
    sensitivity: Sensitivity,
) -> Result<BTreeSet<String>, Failure> {
    let mut assigned = BTreeSet::new();
    for Assignment {
        target: name,
        value,
    } in set
    {
        let field = find_field(target.fields, name, target.name)?;
        let Checked {
            sensitive,
            nullable,
            ..
        } = check_as(value, scope, &Type::of(&field.field_type))?;
        if nullable && !field.optional {
            return Err(Failure::at(
                format!(
                    "this can be NULL, and the field `{}` is required",
                    name.text
                ),
                value.span,
            ));
        }
        if sensitive && (sensitivity == Sensitivity::Leaves || !field.sensitive) {
            return Err(Failure::at(
                format!(
                    "this is sensitive: only leak_sensitive() lets it into the field `{}`",
                    name.text
                ),
                value.span,
            ));
        }
        assigned.insert(name.text.clone());
    }
    Ok(assigned)
}

/// Every required field has a value.
fn check_complete(target: &Target<'_>, assigned: &BTreeSet<String>) -> Result<(), Failure> {
    match target
        .fields
        .iter()
        .find(|field| !field.optional && !assigned.contains(&field.name.text))
    {
        Some(field) => Err(Failure::name(
            format!(
                "the field `{}` of `{}` is required and is given no value",
                field.name.text, target.name.text
            ),
            target.name,
        )),
        None => Ok(()),
    }
}

fn check_message_error(
    catalog: &Catalog,
    error: &MessageError,
    input: &[Field],
) -> Result<(), Failure> {
    let MessageError::SendTo { relay: name, set } = error else {
        return Ok(());
    };
    let relay = catalog.find_relay(name)?;
    if relay.branch.is_some() {
        return Err(Failure::name(
            format!(
                "errors go to unbranched relays, and `{}` is branched",
                name.text
            ),
            name,
        ));
    }
    let scope = Scope {
        input: Some(input),
        error: true,
        ..Scope::default()
    };
    let target = Target::of(relay.fields, name);
    let assigned = check_set(set, &scope, &target, Sensitivity::Kept)?;
    check_complete(&target, &assigned)
}
