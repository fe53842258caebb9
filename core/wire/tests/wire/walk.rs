//! A reader of frames by their layout alone, which shares no code with what it tests. It lists every
//! place in a frame whose change breaks a rule, and the change.

use std::collections::{HashMap, HashSet};

use super::layout::TABLES;

pub struct Table {
    pub name: &'static str,
    pub fields: &'static [Field],
}

pub struct Field {
    pub name: &'static str,
    pub slot: u16,
    pub kind: Kind,
    pub rules: &'static [Rule],
}

pub enum Kind {
    /// A scalar of so many bytes.
    Scalar(usize),
    /// An enum of so many values.
    Enum(u8),
    Scalars,
    Tables(&'static str),
    Table(&'static str),
    /// The members; the tag is in the field's slot, the value in the next.
    Union(&'static [&'static str]),
    /// A string or struct.
    Leaf,
}

pub enum Rule {
    Present,
    NonZero,
    NonEmpty,
    Length,
    Within(u64, u64),
    Ascending,
}

/// A change that must make a frame refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Defect {
    pub table: &'static str,
    pub field: &'static str,
    pub what: &'static str,
}

/// A defect and how to cause it.
pub struct Mutation {
    pub defect: Defect,
    change: Change,
}

enum Change {
    /// Put these bytes at this place.
    Put(usize, Vec<u8>),
    /// Take the field of this slot out of this table.
    Remove(usize, u16),
}

impl Mutation {
    pub fn apply(&self, frame: &[u8]) -> Vec<u8> {
        let mut changed = frame.to_vec();
        match &self.change {
            Change::Put(at, bytes) => {
                changed[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Remove(table, slot) => {
                // Tables share vtables, so this one gets its own, at the end of the frame.
                let old = vtable(frame, *table);
                changed.resize(frame.len().next_multiple_of(8), 0);
                let new = changed.len();
                changed.extend_from_slice(&frame[old..old + u16_at(frame, old)]);
                changed[new + usize::from(*slot)..][..2].fill(0);
                let back = i32::try_from(*table as i64 - new as i64).unwrap();
                changed[*table..table + 4].copy_from_slice(&back.to_le_bytes());
            }
        }
        changed
    }
}

fn vtable(bytes: &[u8], table: usize) -> usize {
    let back = i32::from_le_bytes(bytes[table..table + 4].try_into().unwrap());
    usize::try_from(table as i64 - i64::from(back)).unwrap()
}

pub fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

pub fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

pub fn follow(bytes: &[u8], at: usize) -> usize {
    at + u32_at(bytes, at)
}

/// Where the field of a slot stands, when it is present.
pub fn slot(bytes: &[u8], table: usize, slot: u16) -> Option<usize> {
    let vtable = vtable(bytes, table);
    let slot = usize::from(slot);
    if slot + 2 > u16_at(bytes, vtable) || u16_at(bytes, vtable + slot) == 0 {
        return None;
    }
    Some(table + u16_at(bytes, vtable + slot))
}

pub fn layout_of(name: &str) -> &'static Table {
    TABLES.iter().find(|table| table.name == name).unwrap()
}

/// Every mutation of a frame of the named root.
pub fn mutations(bytes: &[u8], root: &str) -> Vec<Mutation> {
    let mut found = Vec::new();
    visit(bytes, layout_of(root), follow(bytes, 0), &mut found);
    found
}

fn visit(bytes: &[u8], table: &'static Table, at: usize, found: &mut Vec<Mutation>) {
    for field in table.fields {
        let Some(place) = slot(bytes, at, field.slot) else {
            continue;
        };
        let mut change = |what, change| {
            found.push(Mutation {
                defect: Defect {
                    table: table.name,
                    field: field.name,
                    what,
                },
                change,
            });
        };
        for rule in field.rules {
            let mut put = |what, at, bytes: &[u8]| change(what, Change::Put(at, bytes.to_vec()));
            match rule {
                Rule::Present => change("absent", Change::Remove(at, field.slot)),
                Rule::NonZero => put("zero", place, &vec![0; size(&field.kind)]),
                Rule::NonEmpty => put("empty", follow(bytes, place), &[0; 4]),
                Rule::Length => {
                    let vector = follow(bytes, place);
                    let shorter = u32_at(bytes, vector) as u32 - 1;
                    put("another length", vector, &shorter.to_le_bytes());
                }
                Rule::Within(low, high) => {
                    let size = size(&field.kind);
                    put("below its range", place, &(low - 1).to_le_bytes()[..size]);
                    put("above its range", place, &(high + 1).to_le_bytes()[..size]);
                }
                Rule::Ascending => {
                    let vector = follow(bytes, place);
                    if u32_at(bytes, vector) > 1 {
                        let first = bytes[vector + 4..vector + 12].to_vec();
                        put("a repeated entry", vector + 12, &first);
                        put("a descent", vector + 4, &[255; 8]);
                    }
                }
            }
        }
        let mut put = |what, at, bytes: &[u8]| change(what, Change::Put(at, bytes.to_vec()));
        match field.kind {
            Kind::Enum(count) => {
                put("the value past its last", place, &[count]);
                put("the highest value", place, &[255]);
            }
            Kind::Union(members) => {
                let past = u8::try_from(members.len()).unwrap() + 1;
                put("the member past its last", place, &[past]);
                put("no member", place, &[0]);
                put("the highest member", place, &[255]);
                change("no value", Change::Remove(at, field.slot + 2));
                let value = slot(bytes, at, field.slot + 2).unwrap();
                let member = members[usize::from(bytes[place]) - 1];
                visit(bytes, layout_of(member), follow(bytes, value), found);
            }
            Kind::Table(name) => visit(bytes, layout_of(name), follow(bytes, place), found),
            Kind::Tables(name) => {
                let vector = follow(bytes, place);
                for entry in 1..=u32_at(bytes, vector) {
                    let element = follow(bytes, vector + 4 * entry);
                    visit(bytes, layout_of(name), element, found);
                }
            }
            Kind::Scalar(_) | Kind::Scalars | Kind::Leaf => {}
        }
    }
}

fn size(kind: &Kind) -> usize {
    match kind {
        Kind::Scalar(size) => *size,
        _ => panic!("a rule of scalars stands on another kind"),
    }
}

/// Every defect that a frame of the named root can have, from the layout alone.
pub fn possible_defects(root: &str) -> HashSet<Defect> {
    let mut defects = HashSet::new();
    let mut seen = HashMap::new();
    possible(layout_of(root), &mut seen, &mut defects);
    defects
}

fn possible(
    table: &'static Table,
    seen: &mut HashMap<&'static str, ()>,
    defects: &mut HashSet<Defect>,
) {
    if seen.insert(table.name, ()).is_some() {
        return;
    }
    for field in table.fields {
        let mut whats = Vec::new();
        for rule in field.rules {
            match rule {
                Rule::Present => whats.push("absent"),
                Rule::NonZero => whats.push("zero"),
                Rule::NonEmpty => whats.push("empty"),
                Rule::Length => whats.push("another length"),
                Rule::Within(..) => whats.extend(["below its range", "above its range"]),
                Rule::Ascending => whats.extend(["a repeated entry", "a descent"]),
            }
        }
        match field.kind {
            Kind::Enum(_) => whats.extend(["the value past its last", "the highest value"]),
            Kind::Union(members) => {
                whats.extend([
                    "the member past its last",
                    "no member",
                    "the highest member",
                    "no value",
                ]);
                for member in members {
                    possible(layout_of(member), seen, defects);
                }
            }
            Kind::Table(name) | Kind::Tables(name) => possible(layout_of(name), seen, defects),
            Kind::Scalar(_) | Kind::Scalars | Kind::Leaf => {}
        }
        defects.extend(whats.into_iter().map(|what| Defect {
            table: table.name,
            field: field.name,
            what,
        }));
    }
}
