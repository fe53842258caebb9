//! What the fuzz targets in core/fuzz reach of the node. Owns nothing: each entry drives a part of the node with whatever it
//! is given, and panics where that part breaks a promise of its own.

use std::sync::Arc;
use std::thread::JoinHandle;

use nervix_wire::types::SessionEndReason;
use tokio::sync::oneshot;

use crate::args::{self, Parsed};
use crate::cluster::Cluster;
use crate::faults::Scope;
use crate::graph::{ClusterStatus, Disposition, Now, World};
pub use crate::lang::canonical::CANONICAL as STATEMENTS;
use crate::lang::parse::{expected_at_end, parse_script};
use crate::outbox::Finish;
use crate::{start, statements};

/// Whatever is a script prints as a script that says the same, and an error points into the text.
pub fn language(text: &str) {
    for (end, _) in text.char_indices() {
        if end > 200 {
            break;
        }
        expected_at_end(text.get(..end).unwrap_or_default());
    }
    statements::split(text);
    World::served_by_any_node(text);
    match parse_script(text) {
        Ok(script) => {
            for located in script {
                let printed = located.statement.to_string();
                let again = parse_script(&printed).unwrap_or_else(|error| {
                    panic!("{printed:?} is printed and no statement: {error}")
                });
                let printed_again: Vec<String> = again
                    .iter()
                    .map(|located| located.statement.to_string())
                    .collect();
                assert_eq!(printed_again, [printed]);
            }
        }
        Err(error) => assert!(
            text.get(error.span.start..error.span.end).is_some(),
            "{text:?}: {error}"
        ),
    }
}

/// A relay that takes what it is given.
pub struct Relay {
    world: World,
}

const DOMAIN: &str = "d";
const RELAY: &str = "r";
const NOW: Now = Now(1_700_000_000_000_000_000);

impl Relay {
    /// With these fields, as a schema writes them; None when they are none.
    pub fn new(fields: &str) -> Option<Self> {
        let mut world = World::new();
        for statement in [
            &format!("CREATE UNPACED DOMAIN {DOMAIN}"),
            &format!("CREATE SCHEMA s ({fields})"),
            &format!("CREATE RELAY {RELAY} SCHEMA s UNBRANCHED"),
        ] {
            let result = world.execute(NOW, &ClusterStatus::default(), Some(DOMAIN), statement);
            if !matches!(result.disposition, Disposition::Completed { .. }) {
                return None;
            }
        }
        world
            .subscribe(DOMAIN, &format!("CREATE SUBSCRIPTION all TO {RELAY}"))
            .ok()?;
        Some(Self { world })
    }

    /// The rows of a stream that was accepted.
    pub fn publish(&mut self, stream: &[u8]) -> Result<u64, String> {
        let published = self.world.publish_ipc(NOW, DOMAIN, RELAY, stream)?;
        Ok(published.rows)
    }

    /// The rows of a JSON text that was accepted.
    pub fn publish_json(&mut self, text: &[u8]) -> Result<u64, String> {
        let rows = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let published = self.world.publish_json(NOW, DOMAIN, RELAY, &rows)?;
        Ok(published.rows)
    }
}

/// A node in this process, with three places to reach it, that serves until it is dropped.
pub struct Node {
    uri: String,
    cluster: Arc<Cluster>,
    /// Dropped to end it.
    serving: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Runs statements, each in its domain, and serves.
    pub fn start(statements: &[(&str, &str)]) -> Result<Self, String> {
        let arguments = ["--listen", "127.0.0.1:0", "--nodes", "3"];
        let Parsed::Run(options) = args::parse(arguments.map(str::to_owned))? else {
            return Err("these arguments start no node".into());
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let (cluster, _) = runtime.block_on(start(options))?;
        let (serving, end) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(end);
        });
        let node = Self {
            uri: cluster.nodes().swap_remove(0).1,
            cluster,
            serving: Some(serving),
            thread: Some(thread),
        };
        for (domain, statement) in statements {
            node.execute(domain, statement)?;
        }
        Ok(node)
    }

    /// Runs a statement that no session sent; no domain is an empty one.
    pub fn execute(&self, domain: &str, statement: &str) -> Result<(), String> {
        let domain = Some(domain).filter(|domain| !domain.is_empty());
        let result = self.cluster.run_statement(domain, statement);
        match result.disposition {
            Disposition::Completed { .. } => Ok(()),
            Disposition::Failed => Err(format!("{statement}: {}", result.message)),
        }
    }

    /// Where it serves.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Does what a client does not like.
    pub fn disturb(&self, how: u8) {
        let finish = |last, finish| self.cluster.finish(&Scope::default(), last, &finish);
        match how % 10 {
            0 | 1 => {
                finish(None, Finish::Close { abort: how >= 128 });
            }
            2 => {
                finish(None, Finish::Reset(u32::from(how / 10)));
            }
            3 => {
                finish(None, Finish::GoAway(0));
            }
            4 => {
                let unavailable = Finish::Status {
                    code: 14,
                    message: "no".to_owned(),
                };
                finish(Some(SessionEndReason::ServerShuttingDown), unavailable);
            }
            5 => {
                self.cluster.expire_all();
            }
            6 => self.cluster.set_leader(None),
            _ => self.cluster.set_leader(Some(usize::from(how) % 3)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.serving = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
