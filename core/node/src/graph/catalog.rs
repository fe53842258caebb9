//! The models of one domain: which exist, who uses whom, and whether they fit together.

use std::collections::{BTreeMap, BTreeSet};

use super::construct;
use super::failure::Failure;
use crate::lang::ast::{
    Branch, Emitter, Field, FieldType, Ingestor, Kind, MessageError, Model, Name, Relay,
    RelayChange, Schema, SchemaChange,
};

/// More fields than this would make replies that list them too large for any reader.
const MAX_FIELDS: usize = 1_024;

/// A frame has no room for a cell with more elements, and a null fixed list takes up its whole length in Arrow.
const MAX_FIXED_ELEMENTS: u64 = 262_144;

/// The models of a domain, by kind and name.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    models: BTreeMap<(Kind, String), Model>,
}

/// A relay with everything it refers to.
#[derive(Debug, Clone, Copy)]
pub struct RelayView<'a> {
    pub relay: &'a Relay,
    pub fields: &'a [Field],
    pub branch: Option<(&'a Branch, &'a [Field])>,
}

impl Catalog {
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Model> {
        self.models.get(&(kind, name.to_string()))
    }

    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &str> {
        self.models
            .keys()
            .filter(move |(of, _)| *of == kind)
            .map(|(_, name)| name.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.models.values()
    }

    pub fn schema(&self, name: &str) -> Option<&Schema> {
        match self.get(Kind::Schema, name) {
            Some(Model::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    pub fn branch(&self, name: &str) -> Option<&Branch> {
        match self.get(Kind::Branch, name) {
            Some(Model::Branch(branch)) => Some(branch),
            _ => None,
        }
    }

    pub fn relay(&self, name: &str) -> Option<&Relay> {
        match self.get(Kind::Relay, name) {
            Some(Model::Relay(relay)) => Some(relay),
            _ => None,
        }
    }

    /// The relay with its fields and its branch. Everything in a catalog refers to what is there, so None means that the
    /// relay itself is not.
    pub fn relay_view(&self, name: &str) -> Option<RelayView<'_>> {
        let relay = self.relay(name)?;
        let fields = &self.schema(&relay.schema.text)?.fields;
        let branch = match &relay.branch {
            None => None,
            Some(name) => {
                let branch = self.branch(&name.text)?;
                Some((branch, self.schema(&branch.schema.text)?.fields.as_slice()))
            }
        };
        Some(RelayView {
            relay,
            fields,
            branch,
        })
    }

    /// The model a statement names, or the refusal that points at the name.
    pub fn find(&self, kind: Kind, name: &Name) -> Result<&Model, Failure> {
        self.get(kind, &name.text)
            .ok_or_else(|| unknown(kind, name))
    }

    pub fn find_schema(&self, name: &Name) -> Result<&Schema, Failure> {
        self.schema(&name.text)
            .ok_or_else(|| unknown(Kind::Schema, name))
    }

    pub fn find_branch(&self, name: &Name) -> Result<&Branch, Failure> {
        self.branch(&name.text)
            .ok_or_else(|| unknown(Kind::Branch, name))
    }

    pub fn find_relay(&self, name: &Name) -> Result<RelayView<'_>, Failure> {
        self.relay_view(&name.text)
            .ok_or_else(|| unknown(Kind::Relay, name))
    }

    /// Adds a model that is not there yet, once it fits.
    pub fn create(&mut self, model: Model) -> Result<(), Failure> {
        let kind = model.kind();
        let name = model.name();
        if self.get(kind, &name.text).is_some() {
            return Err(Failure::name(
                format!("the {} `{}` already exists", kind.word(), name.text),
                name,
            ));
        }
        self.check(&model)?;
        self.models.insert((kind, name.text.clone()), model);
        Ok(())
    }

    /// Removes a model that nothing uses.
    pub fn drop_model(&mut self, kind: Kind, name: &Name) -> Result<(), Failure> {
        self.find(kind, name)?;
        let user = self
            .models
            .values()
            .find(|model| uses(model).contains(&(kind, name.text.as_str())));
        if let Some(user) = user {
            return Err(Failure::name(
                format!(
                    "the {} `{}` is used by the {} `{}`; drop that first",
                    kind.word(),
                    name.text,
                    user.kind().word(),
                    user.name().text
                ),
                name,
            ));
        }
        self.models.remove(&(kind, name.text.clone()));
        Ok(())
    }

    /// The relays whose rows look different after a change of this schema.
    pub fn relays_of_schema(&self, schema: &str) -> Vec<String> {
        let uses_it = |relay: &Relay| {
            relay.schema.text == schema
                || relay
                    .branch
                    .as_ref()
                    .and_then(|branch| self.branch(&branch.text))
                    .is_some_and(|branch| branch.schema.text == schema)
        };
        self.models
            .values()
            .filter_map(|model| match model {
                Model::Relay(relay) if uses_it(relay) => Some(relay.name.text.clone()),
                _ => None,
            })
            .collect()
    }

    /// Changes a relay; true when its rows look different from now on.
    pub fn alter_relay(&mut self, name: &Name, changes: &[RelayChange]) -> Result<bool, Failure> {
        let before = self.find_relay(name)?.relay.clone();
        let mut after = before.clone();
        for change in changes {
            match change {
                RelayChange::Schema(schema) => {
                    self.find_schema(schema)?;
                    after.schema = schema.clone();
                }
                RelayChange::Unbranched => after.branch = None,
                RelayChange::BranchedBy(branch) => {
                    self.find_branch(branch)?;
                    after.branch = Some(branch.clone());
                }
                RelayChange::Capacity(capacity) => after.capacity = Some(*capacity),
            }
        }
        let changed = before.schema != after.schema || before.branch != after.branch;
        self.replace(Model::Relay(after))?;
        Ok(changed)
    }

    pub fn alter_schema(&mut self, name: &Name, changes: &[SchemaChange]) -> Result<(), Failure> {
        let mut after = self.find_schema(name)?.clone();
        for change in changes {
            match change {
                SchemaChange::Add(field) => after.fields.push(field.clone()),
                SchemaChange::Drop(field) => {
                    let before = after.fields.len();
                    after.fields.retain(|existing| existing.name != *field);
                    if after.fields.len() == before {
                        return Err(Failure::name(
                            format!("the schema `{}` has no field `{}`", name.text, field.text),
                            field,
                        ));
                    }
                    if after.fields.is_empty() {
                        return Err(Failure::name("a schema keeps at least one field", field));
                    }
                }
            }
        }
        check_schema(&after)?;
        self.replace(Model::Schema(after))
    }

    /// Puts a changed model in, if every model still fits afterwards.
    fn replace(&mut self, model: Model) -> Result<(), Failure> {
        let mut after = self.clone();
        let key = (model.kind(), model.name().text.clone());
        after.models.insert(key, model);
        for model in after.models.values() {
            after.check(model).map_err(|failure| {
                failure.elsewhere(&format!(
                    "the {} `{}` would no longer fit",
                    model.kind().word(),
                    model.name().text
                ))
            })?;
        }
        *self = after;
        Ok(())
    }

    /// Whether a model fits to the others.
    fn check(&self, model: &Model) -> Result<(), Failure> {
        match model {
            Model::Schema(schema) => check_schema(schema),
            Model::Branch(branch) => self.check_branch(branch),
            Model::Relay(relay) => {
                self.find_schema(&relay.schema)?;
                match &relay.branch {
                    Some(branch) => self.find_branch(branch).map(|_| ()),
                    None => Ok(()),
                }
            }
            Model::Ingestor(ingestor) => construct::check_ingestor(self, ingestor),
            Model::Emitter(emitter) => construct::check_emitter(self, emitter),
            Model::Resource(_) => Ok(()),
        }
    }

    fn check_branch(&self, branch: &Branch) -> Result<(), Failure> {
        let schema = self.find_schema(&branch.schema)?;
        match schema
            .fields
            .iter()
            .find(|field| !matches!(field.field_type, FieldType::Scalar(_)))
        {
            Some(field) => Err(Failure::name(
                format!(
                    "`{}` is a list, and the key of a branch has none",
                    field.name.text
                ),
                &branch.schema,
            )),
            None => Ok(()),
        }
    }
}

fn unknown(kind: Kind, name: &Name) -> Failure {
    Failure::name(format!("there is no {} `{}`", kind.word(), name.text), name)
}

fn check_schema(schema: &Schema) -> Result<(), Failure> {
    if let Some(field) = schema.fields.get(MAX_FIELDS) {
        return Err(Failure::name(
            format!("a schema has at most {MAX_FIELDS} fields"),
            &field.name,
        ));
    }
    let mut seen = BTreeSet::new();
    for field in &schema.fields {
        if !seen.insert(field.name.text.as_str()) {
            return Err(Failure::name(
                format!("the field `{}` is declared twice", field.name.text),
                &field.name,
            ));
        }
        if fixed_elements(&field.field_type).is_none_or(|elements| elements > MAX_FIXED_ELEMENTS) {
            return Err(Failure::name(
                format!(
                    "the fixed list `{}` has more than {MAX_FIXED_ELEMENTS} elements, which no frame can carry",
                    field.name.text
                ),
                &field.name,
            ));
        }
    }
    Ok(())
}

/// How many elements the fixed lists of a type come to; None past 64 bits.
fn fixed_elements(field_type: &FieldType) -> Option<u64> {
    match field_type {
        FieldType::Scalar(_) => Some(1),
        FieldType::List(element) => fixed_elements(element),
        FieldType::FixedList { element, length } => {
            fixed_elements(element)?.checked_mul(u64::from(*length))
        }
    }
}

/// What a model refers to.
fn uses(model: &Model) -> Vec<(Kind, &str)> {
    fn error_relay(error: &MessageError) -> Option<(Kind, &str)> {
        match error {
            MessageError::SendTo { relay, .. } => Some((Kind::Relay, relay.text.as_str())),
            MessageError::Log | MessageError::Ignore => None,
        }
    }
    match model {
        Model::Schema(_) | Model::Resource(_) => Vec::new(),
        Model::Branch(branch) => vec![(Kind::Schema, branch.schema.text.as_str())],
        Model::Relay(Relay { schema, branch, .. }) => {
            let mut used = vec![(Kind::Schema, schema.text.as_str())];
            used.extend(branch.iter().map(|name| (Kind::Branch, name.text.as_str())));
            used
        }
        Model::Ingestor(ingestor) => {
            let Ingestor {
                schema,
                relay,
                branching,
                message_error,
                ..
            } = ingestor.as_ref();
            let mut used = vec![
                (Kind::Schema, schema.text.as_str()),
                (Kind::Relay, relay.text.as_str()),
            ];
            used.extend(
                branching
                    .iter()
                    .map(|branching| (Kind::Branch, branching.branch.text.as_str())),
            );
            used.extend(error_relay(message_error));
            used
        }
        Model::Emitter(emitter) => {
            let Emitter {
                schema,
                relays,
                message_error,
                ..
            } = emitter.as_ref();
            let mut used = vec![(Kind::Schema, schema.text.as_str())];
            used.extend(relays.iter().map(|name| (Kind::Relay, name.text.as_str())));
            used.extend(error_relay(message_error));
            used
        }
    }
}
