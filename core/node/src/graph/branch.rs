//! Branches of a relay: their keys, and rows told apart by them. A key's fields are scalars.

use std::collections::HashMap;
use std::sync::Arc;

use nervix_wire::types::CellValue;

use super::columns::Column;
use crate::lang::ast::Field;

/// The key of a concrete branch.
#[derive(Debug, Clone)]
pub struct BranchKey {
    /// What readers see, sensitive values withheld.
    pub cells: Arc<[CellValue]>,
    /// Equal exactly for equal keys.
    pub identity: Vec<u8>,
    /// What those who must not see the key's values get instead.
    pub fingerprint: [u8; 32],
}

/// The rows of one branch, ascending.
#[derive(Debug)]
pub struct Group {
    pub key: Option<Arc<BranchKey>>,
    pub rows: Vec<usize>,
}

/// Tells rows apart by the columns of their key, in the order of each branch's first row.
pub fn split(
    key: &[(&Field, &Column<'_>)],
    rows: impl Iterator<Item = usize>,
) -> Result<Vec<Group>, String> {
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut identity = Vec::new();
    let mut before = Vec::new();
    let mut last = None;
    for row in rows {
        std::mem::swap(&mut before, &mut identity);
        identity.clear();
        for (declared, column) in key {
            if !declared.optional && column.is_null(row) {
                return Err(format!(
                    "row {row}, field `{}`: it is null, and the branch's key requires it",
                    declared.name.text
                ));
            }
            column.append_identity(row, &mut identity);
        }
        // Rows of one branch often follow each other.
        let index = match last.filter(|_| before == identity) {
            Some(index) => index,
            None => match known.get(identity.as_slice()) {
                Some(index) => *index,
                None => {
                    known.insert(identity.clone(), groups.len());
                    groups.push(Group {
                        key: Some(Arc::new(branch_key(key, row, &identity))),
                        rows: Vec::new(),
                    });
                    groups.len() - 1
                }
            },
        };
        last = Some(index);
        if let Some(group) = groups.get_mut(index) {
            group.rows.push(row);
        }
    }
    Ok(groups)
}

fn branch_key(key: &[(&Field, &Column<'_>)], row: usize, identity: &[u8]) -> BranchKey {
    BranchKey {
        cells: key
            .iter()
            .map(|(declared, column)| {
                if declared.sensitive {
                    CellValue::RedactedCell
                } else {
                    column.cell(row)
                }
            })
            .collect(),
        fingerprint: *blake3::hash(identity).as_bytes(),
        identity: identity.to_vec(),
    }
}
