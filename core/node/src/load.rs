//! Running a file of statements before serving. Must not know how a statement runs.

use std::path::Path;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::graph::Disposition;
use crate::statements;

/// Runs a file's statements one by one, USE setting the domain of those after it.
pub fn load(cluster: &Arc<Cluster>, path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let mut domain = None;
    for statement in statements::split(&text) {
        if let Some(selected) = statements::use_domain(statement.text) {
            if !cluster.has_domain(&selected) {
                return Err(complaint(
                    path,
                    &text,
                    statement.start,
                    &format!("there is no domain `{selected}`"),
                ));
            }
            domain = Some(selected);
            continue;
        }
        let result = match statements::request_of_its_own(statement.text) {
            Some(request) => Err(format!(
                "a client sends {request} for this; it cannot be loaded"
            )),
            None => {
                let result = cluster.run_statement(domain.as_deref(), statement.text);
                match result.disposition {
                    Disposition::Completed { .. } => Ok(()),
                    Disposition::Failed => Err(result.message),
                }
            }
        };
        result.map_err(|message| complaint(path, &text, statement.start, &message))?;
    }
    Ok(())
}

fn complaint(path: &Path, text: &str, at: usize, message: &str) -> String {
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("{}:{line}: {message}", path.display())
}
