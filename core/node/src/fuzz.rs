//! What the fuzz targets in core/fuzz reach of the node. Owns nothing: each entry drives a part of the node with whatever it
//! is given, and panics where that part breaks a promise of its own.

use std::net::SocketAddr;
use std::sync::mpsc;

use crate::args::{self, Parsed};
use crate::graph::{ClusterStatus, Disposition, Now, World};
pub use crate::lang::canonical::CANONICAL as STATEMENTS;
use crate::lang::parse::{expected_at_end, parse_script};
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

/// A node in this process that serves until the process ends: the URI of its sessions, and its control endpoint.
pub fn serve(arguments: &[&str]) -> Result<(String, SocketAddr), String> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    let Parsed::Run(options) = args::parse(arguments)? else {
        return Err("these arguments start no node".into());
    };
    let (started, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = started.send(Err(error.to_string()));
                return;
            }
        };
        runtime.block_on(async {
            let node = start(options).await.map(|(cluster, control)| {
                let uri = cluster.nodes().into_iter().next().map(|(_, uri, _)| uri);
                (uri.unwrap_or_default(), control)
            });
            let serving = node.is_ok();
            let _ = started.send(node);
            if serving {
                std::future::pending::<()>().await;
            }
        });
    });
    wait.recv().map_err(|error| error.to_string())?
}
