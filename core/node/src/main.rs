//! nervix-loopback: an embedded stand-in for a Nervix cluster, for development and tests. Owns the process: arguments,
//! the runtime, the line that says where it serves, and its end.

mod answers;
mod args;
mod clock;
mod cluster;
mod control;
mod counts;
mod faults;
#[cfg(fuzzing)]
pub mod fuzz;
mod graph;
mod grpc;
mod hostile;
mod journal;
mod kinds;
mod lang;
mod load;
mod outbox;
mod records;
mod server;
mod session;
mod statements;
mod tls;
mod transactions;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nervix_wire::types::SessionEndReason;
use serde_json::{json, Value};
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::oneshot;

use crate::args::{Options, Parsed};
use crate::cluster::{Cluster, Lifetimes};
use crate::control::Control;
use crate::faults::Scope;
use crate::outbox::Finish;
use crate::server::Server;

/// How long sessions get to take their last frame.
const LAST_WORDS: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let options = match args::parse(std::env::args().skip(1)) {
        Ok(Parsed::Run(options)) => options,
        Ok(Parsed::Help) => {
            print!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("nervix-loopback: {message}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => {
            let served = runtime.block_on(serve(options));
            // A thread that waits for standard input's end must not keep the process.
            runtime.shutdown_background();
            served
        }
        Err(error) => Err(format!("no runtime can be started: {error}")),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("nervix-loopback: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate())
        .map_err(|error| format!("SIGTERM cannot be heard: {error}"))?;
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| format!("SIGINT cannot be heard: {error}"))?;
    let exit_with_parent = options.exit_with_parent;
    let (cluster, control_address) = start(options).await?;
    announce(&cluster, control_address)?;

    let parent = async {
        if exit_with_parent {
            end_of_input().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = parent => {}
    }
    say_goodbye(&cluster).await;
    Ok(())
}

/// Serves every node and the control endpoint, whose address comes back.
async fn start(options: Options) -> Result<(Arc<Cluster>, SocketAddr), String> {
    let tls = match &options.tls {
        Some((certificate, key)) => Some(tls::acceptor(certificate, key)?),
        None => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut bound = Vec::new();
    for offset in 0..options.nodes {
        let address = address_of(options.listen, offset)?;
        bound.push(
            server::bind(address)
                .map_err(|error| format!("{address} cannot be listened on: {error}"))?,
        );
    }
    let nodes = bound
        .iter()
        .enumerate()
        .map(|(index, bound)| {
            (
                format!("node-{}", index + 1),
                format!("{scheme}://{}", bound.address),
            )
        })
        .collect();
    let cluster = Arc::new(Cluster::new(
        nodes,
        options.accounts,
        Lifetimes {
            retry_validity_nanos: options.retry_validity_nanos,
            transaction_idle_nanos: options.transaction_idle_nanos,
        },
        options.frozen_time,
    ));
    if let Some(path) = &options.load {
        load::load(&cluster, path)?;
    }
    let server = Server::new(cluster.clone(), tls);
    for bound in bound {
        server.serve(bound);
    }
    let listener = tokio::net::TcpListener::bind(SocketAddr::new(options.listen.ip(), 0))
        .await
        .map_err(|error| format!("the control endpoint cannot listen: {error}"))?;
    let control_address = listener
        .local_addr()
        .map_err(|error| format!("the control endpoint has no address: {error}"))?;
    let control = Arc::new(Control {
        cluster: cluster.clone(),
        server,
    });
    tokio::spawn(control::serve(control, listener));
    tokio::spawn(cluster.clone().drive());
    Ok((cluster, control_address))
}

fn address_of(first: SocketAddr, offset: usize) -> Result<SocketAddr, String> {
    if first.port() == 0 {
        return Ok(first);
    }
    u16::try_from(offset)
        .ok()
        .and_then(|offset| first.port().checked_add(offset))
        .map(|port| SocketAddr::new(first.ip(), port))
        .ok_or_else(|| {
            format!(
                "there is no port for node {} after {}",
                offset + 1,
                first.port()
            )
        })
}

/// Prints the one line that a starter waits for.
fn announce(cluster: &Cluster, control: SocketAddr) -> Result<(), String> {
    let nodes: Vec<Value> = cluster
        .nodes()
        .into_iter()
        .map(|(name, uri, _)| json!({ "name": name, "uri": uri }))
        .collect();
    let line = json!({ "nodes": nodes, "leader": cluster.leader(), "control": format!("http://{control}") });
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| format!("standard output cannot be written: {error}"))
}

async fn end_of_input() {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut input = std::io::stdin().lock();
        while matches!(input.read(&mut buffer), Ok(read) if read > 0) {}
        let _ = ended.send(());
    });
    let _ = end.await;
}

async fn say_goodbye(cluster: &Cluster) {
    let finish = Finish::Status {
        code: grpc::OK,
        message: String::new(),
    };
    cluster.finish(
        &Scope::default(),
        Some(SessionEndReason::ServerShuttingDown),
        &finish,
    );
    let nobody = [counts::Condition {
        subject: counts::Subject::Sessions,
        count: 0,
        exactly: true,
    }];
    let _ = tokio::time::timeout(LAST_WORDS, cluster.counts.wait(&nobody)).await;
}
