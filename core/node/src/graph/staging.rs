//! What a statement is to a transaction. Must not know which transactions there are or what they hold.

use nervix_wire::types::{
    AlterConfigurationOperation, CreateConfigurationOperation, CreateResourceOperation,
    DropConfigurationOperation, ModelKind, NodeRef, StartDomainOperation, StopDomainOperation,
    TransactionOperation,
};

use crate::lang::ast::{Kind, Statement};
use crate::lang::parse::parse;

/// What a statement does to the transaction that a session may hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Begin,
    Commit,
    Revert,
    /// Takes no position, and is carried out at once, transaction or not.
    Read,
    ShowTransactions,
    DescribeTransaction {
        id: Option<String>,
        operation: Option<u64>,
    },
    /// Appended where a transaction is held.
    Operation(TransactionOperation),
    /// Never part of a transaction, or no statement at all.
    Apart,
}

fn model_kind(kind: Kind) -> Option<ModelKind> {
    Some(match kind {
        Kind::Schema => ModelKind::Schema,
        Kind::Branch => ModelKind::Branch,
        Kind::Relay => ModelKind::Relay,
        Kind::Ingestor => ModelKind::Ingestor,
        Kind::Emitter => ModelKind::Emitter,
        Kind::Domain | Kind::Resource => return None,
    })
}

impl Act {
    /// What a text is; `domain` is the one that the request names.
    pub fn of(domain: Option<&str>, text: &str) -> Self {
        let Ok(statement) = parse(text) else {
            return Self::Apart;
        };
        let domain = domain.unwrap_or_default().to_owned();
        let node = |kind: Kind, name: &str| {
            model_kind(kind).map(|kind| NodeRef {
                kind,
                name: name.to_owned(),
            })
        };
        let operation = match &statement {
            Statement::Begin => return Self::Begin,
            Statement::Commit => return Self::Commit,
            Statement::Revert => return Self::Revert,
            Statement::ShowTransactions => return Self::ShowTransactions,
            Statement::DescribeTransaction { id, operation } => {
                return Self::DescribeTransaction {
                    id: id.clone(),
                    operation: *operation,
                }
            }
            Statement::ShowCreate { .. }
            | Statement::ShowClusterStatus
            | Statement::ShowIngestors
            | Statement::DescribeDomain { .. }
            | Statement::Describe { .. } => return Self::Read,
            Statement::CreateModel { model, .. } => {
                let name = &model.name().text;
                match (model.kind(), node(model.kind(), name)) {
                    (Kind::Resource, _) => Some(TransactionOperation::CreateResourceOperation(
                        CreateResourceOperation {
                            domain,
                            resource: name.clone(),
                        },
                    )),
                    (_, node) => node.map(|node| {
                        TransactionOperation::CreateConfigurationOperation(
                            CreateConfigurationOperation { domain, node },
                        )
                    }),
                }
            }
            Statement::Drop { kind, name } => node(*kind, &name.text).map(|node| {
                TransactionOperation::DropConfigurationOperation(DropConfigurationOperation {
                    domain,
                    node,
                })
            }),
            Statement::AlterRelay { name, .. } => node(Kind::Relay, &name.text).map(|node| {
                TransactionOperation::AlterConfigurationOperation(AlterConfigurationOperation {
                    domain,
                    node,
                })
            }),
            Statement::AlterSchema { name, .. } => node(Kind::Schema, &name.text).map(|node| {
                TransactionOperation::AlterConfigurationOperation(AlterConfigurationOperation {
                    domain,
                    node,
                })
            }),
            Statement::Start { .. } => Some(TransactionOperation::StartDomainOperation(
                StartDomainOperation { domain },
            )),
            Statement::Stop => Some(TransactionOperation::StopDomainOperation(
                StopDomainOperation { domain },
            )),
            _ => None,
        };
        operation.map_or(Self::Apart, Self::Operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: X-2
    #[test]
    fn statements_are_appended_or_not_by_what_they_are() {
        let of = |text| Act::of(Some("d"), text);
        assert_eq!(of("begin;"), Act::Begin);
        assert_eq!(of("COMMIT"), Act::Commit);
        assert_eq!(of("REVERT;"), Act::Revert);
        assert_eq!(of("SHOW INGESTORS;"), Act::Read);
        assert_eq!(of("DESCRIBE RELAY r;"), Act::Read);
        assert_eq!(of("CREATE UNPACED DOMAIN e;"), Act::Apart);
        assert_eq!(of("DROP DOMAIN d;"), Act::Apart);
        assert_eq!(of("nonsense"), Act::Apart);
        for operation in [
            "CREATE SCHEMA s (n U8);",
            "DROP RELAY r;",
            "ALTER SCHEMA s ADD m U8;",
            "START;",
            "STOP;",
        ] {
            assert!(matches!(of(operation), Act::Operation(_)), "{operation}");
        }
    }
}
