//! The control endpoint: JSON over HTTP on a port of its own, one action a path. Must not do anything itself beyond
//! reading a body and saying what is wrong with it; the cluster, its faults and the server do the rest.

mod endpoints;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nervix_wire::types::{
    CommandCompleted, CommandDisposition, DomainClockTicked, ExecutionReferenceConflict,
    ExecutionReferenceConflictKind, Fingerprint, LeaderEndpoints, LeaderRedirect, NoticeLevel,
    OutcomeUnknown, PreviewStale, ProtocolViolated, RequestRejection, ServerBody, ServerNotice,
    SessionEndReason, TransactionDetached, TransactionPreviewIdentity, TransactionTakenOver,
    UnknownOutcomeCause,
};
use serde_json::{json, Map, Value};
use tokio::net::TcpListener;

use crate::args::duration_nanos;
use crate::cluster::{Cluster, Rows};
use crate::counts::{Condition, Direction};
use crate::faults::{
    Answer, CallFailure, Cut, Delay, LeaderMove, Rejection, Rule, Scope, Split, Spoil, When,
};
use crate::graph::Disposition;
use crate::hostile::{BadParts, Corruption};
use crate::kinds;
use crate::outbox::{Finish, Flood, OutFrame};
use crate::server::{Listening, Server};

/// How long the listener waits when it cannot accept, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const BODY_LIMIT: usize = 256 * 1024 * 1024;
const DEFAULT_WAIT_MILLIS: u64 = 10_000;
const LONGEST_WAIT_MILLIS: u64 = 600_000;

pub struct Control {
    pub cluster: Arc<Cluster>,
    pub server: Arc<Server>,
}

/// Serves the endpoint until the process ends.
pub async fn serve(control: Arc<Control>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let control = control.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let control = control.clone();
                async move { Ok::<_, Infallible>(control.answer(request).await) }
            });
            // A tester who hangs up in the middle is not our concern.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn respond(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        "content-type",
        http::HeaderValue::from_static("application/json"),
    );
    response
}

/// Why an action was not done.
enum Problem {
    /// The body is not what the action takes.
    Bad(String),
    /// What it waited for did not come.
    TimedOut(Value),
    NoSuchAction,
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self::Bad(message)
    }
}

type Done = Result<Value, Problem>;

/// What an action does once its whole body was read, so that a body that is refused has done nothing.
type Deed<'a> = Box<dyn FnOnce() -> Done + Send + 'a>;

type Read<'a> = Result<Deed<'a>, Problem>;

fn deed<'a>(does: impl FnOnce() -> Done + Send + 'a) -> Read<'a> {
    Ok(Box::new(does))
}

/// A deed that has nothing to tell and cannot fail.
fn silently<'a>(does: impl FnOnce() + Send + 'a) -> Read<'a> {
    deed(move || {
        does();
        Ok(json!({}))
    })
}

impl Control {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let done = match (request.method().clone(), path.as_str()) {
            (Method::GET, "health") => Ok(self.health()),
            (Method::GET, "counts") => Ok(self.cluster.counts.report(None)),
            (Method::GET, "batches") => Ok(json!({ "batches": self.cluster.counts.batches() })),
            (Method::GET, "journal") => {
                journal_since(request.uri().query()).map(|since| self.cluster.journal.report(since))
            }
            (Method::GET, "transactions") => {
                Ok(json!({ "transactions": self.cluster.transactions() }))
            }
            (Method::POST, _) => self.post(&path, request).await,
            _ => Err(Problem::NoSuchAction),
        };
        match done {
            Ok(body) => respond(StatusCode::OK, &body),
            Err(Problem::Bad(message)) => {
                respond(StatusCode::BAD_REQUEST, &json!({ "error": message }))
            }
            Err(Problem::TimedOut(counts)) => respond(
                StatusCode::REQUEST_TIMEOUT,
                &json!({ "error": "what was waited for did not come", "counts": counts }),
            ),
            Err(Problem::NoSuchAction) => respond(
                StatusCode::NOT_FOUND,
                &json!({ "error": format!("there is no action `{path}`; actions are posted; health, counts, batches, journal and transactions are got") }),
            ),
        }
    }

    fn health(&self) -> Value {
        let nodes: Vec<Value> = self
            .cluster
            .nodes()
            .into_iter()
            .map(|(name, uri, running)| json!({ "name": name, "uri": uri, "running": running }))
            .collect();
        json!({ "serving": true, "nodes": nodes, "leader": self.cluster.leader() })
    }

    async fn post(&self, path: &str, request: Request<Incoming>) -> Done {
        let raw = request
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/vnd.apache.arrow"));
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = Limited::new(request.into_body(), BODY_LIMIT)
            .collect()
            .await
            .map_err(|error| format!("the body cannot be read: {error}"))?
            .to_bytes();
        if path == "publish" && raw {
            let (domain, relay) = (parameter(&query, "domain")?, parameter(&query, "relay")?);
            let rows = self
                .cluster
                .publish(&domain, &relay, Rows::Ipc(&body))
                .await?;
            return Ok(json!({ "rows": rows }));
        }
        let body = if body.is_empty() {
            Value::Object(Map::new())
        } else {
            serde_json::from_slice(&body)
                .map_err(|error| format!("the body is not JSON: {error}"))?
        };
        let Value::Object(body) = body else {
            return Err(Problem::Bad("the body is not a JSON object".to_owned()));
        };
        let mut fields = Fields(body);
        match path {
            "publish" => self.publish(fields).await,
            "flood" => self.flood(fields).await,
            "wait" => self.wait(fields).await,
            "node" => self.node(fields).await,
            "accept" => self.accept(fields).await,
            _ => {
                let deed = self.read(path, &mut fields)?;
                fields.end()?;
                deed()
            }
        }
    }

    fn read(&self, path: &str, fields: &mut Fields) -> Read<'_> {
        match path {
            "counts" => self.counts(fields),
            "silence" => self.silence(fields),
            "execute" => self.execute(fields),
            "cut" => self.cut(fields),
            "end" => self.end(fields),
            "leader" => self.leader(fields),
            "delay" => self.delay(fields),
            "release" => silently(|| self.cluster.faults.release()),
            "clear" => silently(|| {
                self.cluster.forget_answers();
                self.cluster.faults.clear();
                self.cluster.use_alternate_domain_info(false);
            }),
            "drop_reply" => {
                let kind = self.request_kind(fields)?;
                let rule = self.rule(fields, Some(kind), ())?;
                silently(move || self.cluster.faults.arm_drop(rule))
            }
            "parts" => self.parts(fields),
            "inject" => self.inject(fields),
            "flood_frames" => self.flood_frames(fields),
            "flood_end" => {
                let session = fields.needed_number("session")?;
                deed(move || match self.cluster.flood(session, None)? {
                    Some(sent) => Ok(sent_counts(&sent)),
                    None => Err(Problem::Bad(format!("session {session} is not flooded"))),
                })
            }
            "corrupt" => self.corrupt(fields),
            "wrong_reference" => {
                let reference = fields
                    .text("reference")?
                    .unwrap_or_else(|| "another-reference".to_owned());
                let rule = self.rule(fields, None, reference)?;
                silently(move || self.cluster.faults.arm_wrong_reference(rule))
            }
            "reject" => self.reject(fields),
            "refuse_subscribe" => {
                let message = fields
                    .text("message")?
                    .unwrap_or_else(|| "the subscription is refused for now".to_owned());
                let rule = self.rule(fields, None, message)?;
                silently(move || self.cluster.faults.arm_refused_subscription(rule))
            }
            "disposition" => self.disposition(fields),
            "expire" => self.expire(fields),
            "transaction" => {
                let id = fields.text("id")?;
                let action = fields.needed_text("action")?;
                deed(move || {
                    let id = self.cluster.with_transaction(id, &action)?;
                    Ok(json!({ "id": id }))
                })
            }
            "auth" => self.auth(fields),
            "domain_info" => self.domain_info(fields),
            "clock" => self.clock(fields),
            "notice" => self.notice(fields),
            "suspend" => self.suspend(fields, true),
            "resume" => self.suspend(fields, false),
            "end_producer" => self.end_producer(fields),
            "end_consumer" => self.end_consumer(fields),
            "answer" => self.answer_with(fields),
            "describe_otherwise" => self.describe_otherwise(fields),
            "clock_installed" => self.clock_installed(fields),
            "clock_frame" => self.clock_frame(fields),
            "producer_frame" => self.producer_frame(fields),
            _ => Err(Problem::NoSuchAction),
        }
    }

    // ---- rows and statements

    async fn publish(&self, mut fields: Fields) -> Done {
        let (domain, relay) = (fields.needed_text("domain")?, fields.needed_text("relay")?);
        let rows = fields.needed("rows")?;
        fields.end()?;
        let rows = self
            .cluster
            .publish(&domain, &relay, Rows::Json(&rows))
            .await?;
        Ok(json!({ "rows": rows }))
    }

    async fn flood(&self, mut fields: Fields) -> Done {
        let (domain, relay) = (fields.needed_text("domain")?, fields.needed_text("relay")?);
        let rows = fields.needed("rows")?;
        let times = fields.needed_number("times")?;
        fields.end()?;
        let mut published = 0_u64;
        for _ in 0..times {
            let rows = self
                .cluster
                .publish(&domain, &relay, Rows::Json(&rows))
                .await?;
            published = published.saturating_add(rows);
        }
        Ok(json!({ "rows": published }))
    }

    fn execute(&self, fields: &mut Fields) -> Read<'_> {
        let statement = fields.needed_text("statement")?;
        let domain = fields.text("domain")?;
        deed(move || {
            let result = self.cluster.run_statement(domain.as_deref(), &statement);
            match result.disposition {
                Disposition::Completed { already_existed } => {
                    Ok(json!({ "message": result.message, "already_existed": already_existed }))
                }
                Disposition::Failed => Err(Problem::Bad(format!(
                    "the statement failed: {}",
                    result.message
                ))),
            }
        })
    }

    // ---- ending sessions

    fn cut(&self, fields: &mut Fields) -> Read<'_> {
        let finish = match fields.text("how")?.as_deref() {
            None | Some("close") => Finish::Close { abort: false },
            Some("abort") => Finish::Close { abort: true },
            Some("reset") => Finish::Reset(fields.small_number("code")?.unwrap_or(8)),
            Some("goaway") => Finish::GoAway(fields.small_number("code")?.unwrap_or(0)),
            Some("status") => Finish::Status {
                code: status_code(fields.small_number("code")?.unwrap_or(14))?,
                message: fields.text("message")?.unwrap_or_default(),
            },
            Some(other) => {
                return Err(Problem::Bad(format!(
                    "`how` is close, abort, reset, goaway or status, not `{other}`"
                )))
            }
        };
        let Some(direction) = direction(fields)? else {
            let scope = self.scope(fields, None)?;
            return deed(move || {
                let sessions = self.cluster.finish(&scope, None, &finish);
                Ok(json!({ "sessions": sessions }))
            });
        };
        let when = when(fields, "when")?.unwrap_or(When::After);
        let kind = frame_kind(fields, direction)?;
        let rule = self.rule(
            fields,
            kind,
            Cut {
                direction,
                when,
                finish,
            },
        )?;
        silently(move || self.cluster.faults.arm_cut(rule))
    }

    fn end(&self, fields: &mut Fields) -> Read<'_> {
        let reason = match fields.needed_text("reason")?.as_str() {
            "ServerShuttingDown" => SessionEndReason::ServerShuttingDown,
            "ProtocolViolated" => SessionEndReason::ProtocolViolated(ProtocolViolated {
                message: fields
                    .text("message")?
                    .unwrap_or_else(|| "the client broke the protocol".to_owned()),
            }),
            "LeaderRedirect" => SessionEndReason::LeaderRedirect(self.redirect(fields)?),
            other => {
                return Err(Problem::Bad(format!(
                "`reason` is ServerShuttingDown, ProtocolViolated or LeaderRedirect, not `{other}`"
            )))
            }
        };
        let scope = self.scope(fields, None)?;
        let finish = Finish::Status {
            code: status_code(fields.small_number("code")?.unwrap_or(0))?,
            message: String::new(),
        };
        deed(move || {
            let sessions = self.cluster.finish(&scope, Some(reason), &finish);
            Ok(json!({ "sessions": sessions }))
        })
    }

    // ---- nodes

    async fn node(&self, mut fields: Fields) -> Done {
        let name = fields.needed_text("node")?;
        let node = self.node_named(&name)?;
        let state = fields.needed_text("state")?;
        fields.end()?;
        match state.as_str() {
            "stopped" => {
                self.listen(node, Listening::Stopped).await?;
                self.cluster.set_running(node, false);
                self.server.close_connections(node).await;
            }
            "running" => {
                self.listen(node, Listening::Serve).await?;
                self.cluster.set_running(node, true);
            }
            other => {
                return Err(Problem::Bad(format!(
                    "`state` is stopped or running, not `{other}`"
                )))
            }
        }
        Ok(self.health())
    }

    async fn accept(&self, mut fields: Fields) -> Done {
        let listening = match fields.needed_text("mode")?.as_str() {
            "accept" => Listening::Serve,
            "refuse" => Listening::Refuse,
            "stall" => Listening::Stall,
            other => {
                return Err(Problem::Bad(format!(
                    "`mode` is accept, refuse or stall, not `{other}`"
                )))
            }
        };
        let nodes = match fields.text("node")? {
            Some(name) => {
                let node = self.node_named(&name)?;
                node..node + 1
            }
            None => 0..self.cluster.node_count(),
        };
        fields.end()?;
        for node in nodes {
            self.listen(node, listening).await?;
        }
        Ok(json!({}))
    }

    fn silence(&self, fields: &mut Fields) -> Read<'_> {
        let silent = fields.flag("silent")?.unwrap_or(true);
        let node = match fields.text("node")? {
            Some(name) => Some(self.node_named(&name)?),
            None => None,
        };
        deed(move || Ok(json!({ "connections": self.server.silence(node, silent) })))
    }

    async fn listen(&self, node: usize, listening: Listening) -> Result<(), Problem> {
        let listened = self.server.set_listening(node, listening).await;
        listened.map_err(|error| Problem::Bad(format!("the node's port does not do that: {error}")))
    }

    fn leader(&self, fields: &mut Fields) -> Read<'_> {
        let leader = match fields.needed("leader")? {
            Value::Null => None,
            Value::String(name) => Some(self.node_named(&name)?),
            _ => return Err(Problem::Bad("`leader` is a node's name or null".to_owned())),
        };
        if let Some(direction) = direction(fields)? {
            let when = when(fields, "when")?.unwrap_or(When::After);
            let kind = frame_kind(fields, direction)?;
            let effect = LeaderMove {
                direction,
                when,
                leader,
            };
            let rule = self.rule(fields, kind, effect)?;
            return silently(move || self.cluster.faults.arm_leader_move(rule));
        }
        deed(move || {
            self.cluster.set_leader(leader);
            Ok(json!({ "leader": self.cluster.leader() }))
        })
    }

    // ---- what requests meet

    fn delay(&self, fields: &mut Fields) -> Read<'_> {
        let effect = Delay {
            when: when(fields, "when")?.unwrap_or(When::After),
            millis: fields.number("millis")?,
        };
        let kind = self.request_kind(fields)?;
        let rule = self.rule(fields, Some(kind), effect)?;
        silently(move || self.cluster.faults.arm_delay(rule))
    }

    fn reject(&self, fields: &mut Fields) -> Read<'_> {
        let name = fields.needed_text("reason")?;
        let rejection = match name.as_str() {
            "InvalidRequest" => RequestRejection::InvalidRequest,
            "UnsupportedRequest" => RequestRejection::UnsupportedRequest,
            "UnsupportedValue" => RequestRejection::UnsupportedValue,
            "DuplicateRequestId" => RequestRejection::DuplicateRequestId,
            "ReplyTooLarge" => RequestRejection::ReplyTooLarge,
            "TooManyRequestsInFlight" => RequestRejection::TooManyRequestsInFlight,
            "ServerBusy" => RequestRejection::ServerBusy,
            other => {
                return Err(Problem::Bad(format!(
                    "`{other}` is no reason to reject a request"
                )))
            }
        };
        let effect = Rejection {
            rejection,
            field: fields.text("field")?,
            message: fields
                .text("message")?
                .unwrap_or_else(|| format!("rejected as {name} by the control endpoint")),
        };
        let kind = self.request_kind(fields)?;
        let rule = self.rule(fields, Some(kind), effect)?;
        silently(move || self.cluster.faults.arm_rejection(rule))
    }

    fn disposition(&self, fields: &mut Fields) -> Read<'_> {
        let name = fields.needed_text("disposition")?;
        let disposition = match name.as_str() {
            "CommandCompleted" => CommandDisposition::CommandCompleted(CommandCompleted {
                already_existed: fields.flag("already_existed")?.unwrap_or(false),
            }),
            "RequestFailed" => CommandDisposition::RequestFailed,
            "LeaderRedirect" => CommandDisposition::LeaderRedirect(self.redirect(fields)?),
            "TransactionDetached" => CommandDisposition::TransactionDetached(TransactionDetached {
                transaction_id: fields.needed_text("transaction_id")?,
            }),
            "TransactionTakenOver" => {
                CommandDisposition::TransactionTakenOver(TransactionTakenOver {
                    transaction_id: fields.needed_text("transaction_id")?,
                })
            }
            "OutcomeUnknown" => CommandDisposition::OutcomeUnknown(OutcomeUnknown {
                cause: match fields.text("cause")?.as_deref() {
                    None | Some("LeadershipLost") => UnknownOutcomeCause::LeadershipLost,
                    Some("StillApplying") => UnknownOutcomeCause::StillApplying,
                    Some("NotYetAuthoritative") => UnknownOutcomeCause::NotYetAuthoritative,
                    Some(other) => {
                        return Err(Problem::Bad(format!(
                            "`{other}` is no cause of an unknown outcome"
                        )))
                    }
                },
            }),
            "ExecutionReferenceConflict" => {
                CommandDisposition::ExecutionReferenceConflict(ExecutionReferenceConflict {
                    conflict: match fields.text("conflict")?.as_deref() {
                        None | Some("Content") => ExecutionReferenceConflictKind::Content,
                        Some("Domain") => ExecutionReferenceConflictKind::Domain,
                        Some("Owner") => ExecutionReferenceConflictKind::Owner,
                        Some("Position") => ExecutionReferenceConflictKind::Position,
                        Some(other) => {
                            return Err(Problem::Bad(format!("`{other}` is no kind of conflict")))
                        }
                    },
                })
            }
            "ExecutionReferenceExpired" => CommandDisposition::ExecutionReferenceExpired,
            "PreviewStale" => {
                let transaction_id = fields.needed_text("transaction_id")?;
                let preview = |position: u64, byte: u8| TransactionPreviewIdentity {
                    transaction_id: transaction_id.clone(),
                    position,
                    planning_basis: Fingerprint { bytes: [byte; 32] },
                };
                CommandDisposition::PreviewStale(PreviewStale {
                    expected: preview(0, 0),
                    current: preview(1, 1),
                })
            }
            other => {
                return Err(Problem::Bad(format!(
                    "`{other}` is no disposition of a command"
                )))
            }
        };
        let effect = Answer {
            disposition,
            message: fields.text("message")?.unwrap_or_else(|| name.clone()),
            execute: fields.flag("execute")?.unwrap_or(false),
        };
        let rule = self.rule(fields, None, effect)?;
        silently(move || self.cluster.faults.arm_answer(rule))
    }

    /// Where a redirect points: the node named by `leader`, or an address in `grpc_uri`, or nowhere.
    fn redirect(&self, fields: &mut Fields) -> Result<LeaderRedirect, Problem> {
        let leader = fields.text("leader")?;
        let address = fields.text("grpc_uri")?;
        let Some(name) = leader else {
            return Ok(LeaderRedirect { leader: None });
        };
        let known = self
            .cluster
            .nodes()
            .into_iter()
            .find(|(node, _, _)| *node == name);
        let grpc_uri = match (address, known) {
            (Some(address), _) if address.is_empty() => None,
            (Some(address), _) => Some(address),
            (None, Some((_, uri, _))) => Some(uri),
            (None, None) => {
                return Err(Problem::Bad(format!(
                    "there is no node `{name}`; give its `grpc_uri`"
                )))
            }
        };
        Ok(LeaderRedirect {
            leader: Some(LeaderEndpoints {
                node: name,
                grpc_uri,
                web_console_uri: None,
            }),
        })
    }

    fn expire(&self, fields: &mut Fields) -> Read<'_> {
        let reference = fields.text("reference")?;
        deed(move || match reference {
            Some(reference) if self.cluster.expire(&reference) => Ok(json!({ "expired": 1 })),
            Some(reference) => Err(Problem::Bad(format!(
                "no command is recorded under `{reference}`"
            ))),
            None => Ok(json!({ "expired": self.cluster.expire_all() })),
        })
    }

    fn auth(&self, fields: &mut Fields) -> Read<'_> {
        let effect = match fields.needed_text("answer")?.as_str() {
            "unauthenticated" => CallFailure::Unauthenticated,
            "unavailable" => CallFailure::Unavailable,
            other => {
                return Err(Problem::Bad(format!(
                    "`answer` is unauthenticated or unavailable, not `{other}`"
                )))
            }
        };
        let rule = self.rule(fields, None, effect)?;
        silently(move || self.cluster.faults.arm_call_failure(rule))
    }

    // ---- what frames become

    fn parts(&self, fields: &mut Fields) -> Read<'_> {
        let effect =
            match (fields.number("bytes")?, fields.text("bad")?) {
                (Some(bytes), None) if bytes > 0 => Split::Parts {
                    bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                    notices: fields.flag("notices")?.unwrap_or(false),
                },
                (None, Some(name)) => Split::Bad(BadParts::parse(&name).ok_or_else(|| {
                    format!("`bad` is one of {}, not `{name}`", names(BadParts::ALL))
                })?),
                _ => return Err(Problem::Bad(
                    "give `bytes`, the positive size of a part, or `bad`, the defect of the parts"
                        .to_owned(),
                )),
            };
        let kind = match fields.text("kind")? {
            None => Some("Reply".to_owned()),
            Some(kind) if kinds::matches(Some("Reply"), &kind) || kind == "Reply" => Some(kind),
            Some(kind) => return Err(Problem::Bad(format!("`{kind}` is no reply"))),
        };
        let rule = self.rule(fields, kind, effect)?;
        silently(move || self.cluster.faults.arm_split(rule))
    }

    fn corrupt(&self, fields: &mut Fields) -> Read<'_> {
        let name = fields.needed_text("what")?;
        let effect = match name.as_str() {
            "compressed" => Spoil::Compressed,
            name => Spoil::Corrupt(Corruption::parse(name).ok_or_else(|| {
                format!(
                    "`what` is compressed or one of {}, not `{name}`",
                    names(Corruption::ALL)
                )
            })?),
        };
        let kind = match fields.text("kind")? {
            Some(kind) if !kinds::is_server_frame(&kind) => {
                return Err(Problem::Bad(format!("`{kind}` is no server frame")))
            }
            kind => kind,
        };
        let rule = self.rule(fields, kind, effect)?;
        silently(move || self.cluster.faults.arm_spoil(rule))
    }

    fn inject(&self, fields: &mut Fields) -> Read<'_> {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(fields.needed_text("frame")?)
            .map_err(|error| format!("`frame` is not base64: {error}"))?;
        let scope = self.scope(fields, None)?;
        let frame = OutFrame {
            kind: kinds::INJECTED,
            bytes: Bytes::from(bytes),
            opens: None,
        };
        deed(move || Ok(json!({ "sessions": self.cluster.broadcast(&scope, &frame) })))
    }

    fn flood_frames(&self, fields: &mut Fields) -> Read<'_> {
        let session = fields.needed_number("session")?;
        let Value::Array(encoded) = fields.needed("frames")? else {
            return Err(Problem::Bad(
                "`frames` is a list of frames in base64".to_owned(),
            ));
        };
        let mut frames = Vec::with_capacity(encoded.len());
        for frame in &encoded {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(frame.as_str().unwrap_or("-"))
                .map_err(|error| format!("a frame in `frames` is not base64: {error}"))?;
            frames.push(OutFrame {
                kind: kinds::INJECTED,
                bytes: Bytes::from(bytes),
                opens: None,
            });
        }
        let tick = match (fields.text("tick")?, fields.number("generation")?) {
            (None, None) => None,
            (Some(domain), Some(generation)) => Some(DomainClockTicked {
                domain,
                generation,
                tick_id: fields.number("after")?.unwrap_or(0),
                logical_boundary_unix_nanos: 0,
                authority_utc_unix_nanos: 0,
                serving_logical_unix_nanos: 0,
            }),
            _ => {
                return Err(Problem::Bad(
                    "`tick` is the domain of a clock, and goes with its `generation`".to_owned(),
                ))
            }
        };
        if tick.as_ref().is_some_and(|tick| tick.generation == 0) {
            return Err(Problem::Bad(
                "no clock ticks before its first generation".to_owned(),
            ));
        }
        if frames.is_empty() && tick.is_none() {
            return Err(Problem::Bad("a flood needs a frame or a `tick`".to_owned()));
        }
        let flood = Flood::new(frames, tick, fields.number("rounds")?);
        deed(move || {
            let before = self.cluster.flood(session, Some(flood))?;
            Ok(before.map_or_else(|| json!({}), |sent| sent_counts(&sent)))
        })
    }

    fn notice(&self, fields: &mut Fields) -> Read<'_> {
        let level = match fields.text("level")?.as_deref() {
            None | Some("Info") => NoticeLevel::Info,
            Some("Warning") => NoticeLevel::Warning,
            Some("Error") => NoticeLevel::Error,
            Some(other) => {
                return Err(Problem::Bad(format!(
                    "`level` is Info, Warning or Error, not `{other}`"
                )))
            }
        };
        let message = fields.needed_text("message")?;
        let scope = self.scope(fields, None)?;
        let frame = self
            .cluster
            .frame(ServerBody::ServerNotice(ServerNotice { level, message }));
        deed(move || Ok(json!({ "sessions": self.cluster.broadcast(&scope, &frame) })))
    }

    fn domain_info(&self, fields: &mut Fields) -> Read<'_> {
        let alternate = match fields.needed_text("layout")?.as_str() {
            "standard" => false,
            "alternate" => true,
            other => {
                return Err(Problem::Bad(format!(
                    "`layout` is standard or alternate, not `{other}`"
                )))
            }
        };
        silently(move || self.cluster.use_alternate_domain_info(alternate))
    }

    // ---- time

    fn clock(&self, fields: &mut Fields) -> Read<'_> {
        let frozen = fields.flag("frozen")?;
        let advance = match fields.text("advance")? {
            Some(text) => duration_nanos(&text)?,
            None => 0,
        };
        deed(move || {
            let (now, frozen) = self.cluster.with_clock(|clock| {
                match frozen {
                    Some(true) => clock.freeze(),
                    Some(false) => clock.unfreeze(),
                    None => {}
                }
                clock.advance(advance);
            });
            Ok(json!({ "now_unix_nanos": now, "frozen": frozen }))
        })
    }

    fn counts(&self, fields: &mut Fields) -> Read<'_> {
        let references = references(fields)?;
        deed(move || {
            let counts = &self.cluster.counts;
            Ok(counts.report(references.as_deref()))
        })
    }

    async fn wait(&self, mut fields: Fields) -> Done {
        let millis = fields.number("timeout_ms")?.unwrap_or(DEFAULT_WAIT_MILLIS);
        let references = references(&mut fields)?;
        let conditions = Condition::parse_all(&fields.0)?;
        let bound = Duration::from_millis(millis.min(LONGEST_WAIT_MILLIS));
        let counts = &self.cluster.counts;
        match tokio::time::timeout(bound, counts.wait(&conditions)).await {
            Ok(()) => Ok(counts.report(references.as_deref())),
            Err(_) => Err(Problem::TimedOut(counts.report(references.as_deref()))),
        }
    }

    // ---- what bodies have in common

    fn node_named(&self, name: &str) -> Result<usize, Problem> {
        self.cluster
            .node_named(name)
            .ok_or_else(|| Problem::Bad(format!("there is no node `{name}`")))
    }

    fn request_kind(&self, fields: &mut Fields) -> Result<String, Problem> {
        let kind = fields
            .text("kind")?
            .unwrap_or_else(|| "CommandRequest".to_owned());
        match kind.as_str() {
            "CancelRequest" => Err(Problem::Bad(
                "a CancelRequest is answered on arrival, whatever is armed".to_owned(),
            )),
            kind if !kinds::is_request(kind) => {
                Err(Problem::Bad(format!("`{kind}` is no request")))
            }
            _ => Ok(kind),
        }
    }

    fn scope(&self, fields: &mut Fields, kind: Option<String>) -> Result<Scope, Problem> {
        let node = match fields.text("node")? {
            Some(name) => Some(self.node_named(&name)?),
            None => None,
        };
        Ok(Scope {
            session: fields.number("session")?,
            node,
            kind,
        })
    }

    fn rule<T>(
        &self,
        fields: &mut Fields,
        kind: Option<String>,
        effect: T,
    ) -> Result<Rule<T>, Problem> {
        let nth = fields.number("nth")?.unwrap_or(1);
        let count = fields.number("count")?.unwrap_or(1);
        if nth == 0 || count == 0 {
            return Err(Problem::Bad("`nth` and `count` begin at 1".to_owned()));
        }
        Ok(Rule {
            scope: self.scope(fields, kind)?,
            skip: nth - 1,
            count,
            effect,
        })
    }
}

/// How often each frame of a flood was sent, and its tick.
/// The references that alone are to be told of; all of them when none are named.
fn references(fields: &mut Fields) -> Result<Option<Vec<String>>, Problem> {
    fields
        .take("references")
        .map(serde_json::from_value)
        .transpose()
        .map_err(|_| Problem::Bad("`references` is a list of texts".to_owned()))
}

fn sent_counts(sent: &[u64]) -> Value {
    match sent.split_last() {
        Some((ticks, frames)) => json!({ "sent": frames, "ticks": ticks }),
        None => json!({}),
    }
}

fn names<T>(all: &[(&str, T)]) -> String {
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn when(fields: &mut Fields, name: &str) -> Result<Option<When>, Problem> {
    match fields.text(name)?.as_deref() {
        None => Ok(None),
        Some("before") => Ok(Some(When::Before)),
        Some("after") => Ok(Some(When::After)),
        Some(other) => Err(Problem::Bad(format!(
            "`{name}` is before or after, not `{other}`"
        ))),
    }
}

/// Which way the frame goes that something is to happen at.
fn direction(fields: &mut Fields) -> Result<Option<Direction>, Problem> {
    match fields.text("direction")?.as_deref() {
        None => Ok(None),
        Some("in") => Ok(Some(Direction::In)),
        Some("out") => Ok(Some(Direction::Out)),
        Some(other) => Err(Problem::Bad(format!(
            "`direction` is in or out, not `{other}`"
        ))),
    }
}

/// Of which kind that frame is.
fn frame_kind(fields: &mut Fields, direction: Direction) -> Result<Option<String>, Problem> {
    match (fields.text("kind")?, direction) {
        (None, _) => Ok(None),
        (Some(kind), Direction::In) if kinds::is_request(&kind) => Ok(Some(kind)),
        (Some(kind), Direction::Out) if kinds::is_server_frame(&kind) => Ok(Some(kind)),
        (Some(kind), Direction::In) => Err(Problem::Bad(format!("`{kind}` is no request"))),
        (Some(kind), Direction::Out) => Err(Problem::Bad(format!("`{kind}` is no server frame"))),
    }
}

/// The number that a request for the journal begins at.
fn journal_since(query: Option<&str>) -> Result<u64, Problem> {
    match query {
        None => Ok(0),
        Some(query) => parameter(query, "since")?
            .parse()
            .map_err(|_| Problem::Bad("`since` is the number of an entry".to_owned())),
    }
}

fn status_code(code: u32) -> Result<u16, Problem> {
    u16::try_from(code).map_err(|_| Problem::Bad(format!("{code} is no grpc-status")))
}

/// A parameter of a URL's query, percent-decoded.
fn parameter(query: &str, name: &str) -> Result<String, Problem> {
    let value = query
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
        .map(|(_, value)| value)
        .ok_or_else(|| format!("the query needs `{name}`"))?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap_or(0), rest.next().unwrap_or(0)];
            let decoded = std::str::from_utf8(&digits)
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(decoded.ok_or_else(|| format!("`{name}` is not percent-encoded text"))?);
        } else {
            bytes.push(if byte == b'+' { b' ' } else { byte });
        }
    }
    String::from_utf8(bytes).map_err(|_| Problem::Bad(format!("`{name}` is not UTF-8")))
}

/// The fields of a body, each taken once, so that what remains at the end was not meant to be there.
struct Fields(Map<String, Value>);

impl Fields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    fn needed(&mut self, name: &str) -> Result<Value, Problem> {
        self.take(name)
            .ok_or_else(|| Problem::Bad(format!("the body needs `{name}`")))
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Problem::Bad(format!("`{name}` is text"))),
        }
    }

    fn needed_text(&mut self, name: &str) -> Result<String, Problem> {
        self.text(name)?
            .ok_or_else(|| Problem::Bad(format!("the body needs `{name}`")))
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .map(Some)
                .ok_or_else(|| Problem::Bad(format!("`{name}` is a number that is not negative"))),
        }
    }

    fn small_number(&mut self, name: &str) -> Result<Option<u32>, Problem> {
        self.number(name)?
            .map(|number| {
                u32::try_from(number).map_err(|_| Problem::Bad(format!("`{name}` is below 2^32")))
            })
            .transpose()
    }

    fn needed_number(&mut self, name: &str) -> Result<u64, Problem> {
        self.number(name)?
            .ok_or_else(|| Problem::Bad(format!("the body needs `{name}`")))
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Problem::Bad(format!("`{name}` is true or false"))),
        }
    }

    fn end(&self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(Problem::Bad(format!("this action takes no `{name}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parameters_are_percent_decoded() {
        let read = |query: &str| parameter(query, "relay").ok();
        assert_eq!(read("domain=d&relay=a%20b+c"), Some("a b c".to_owned()));
        assert_eq!(read("domain=d"), None);
        assert_eq!(read("relay=%zz"), None);
        assert_eq!(read("relay=%ff"), None);
    }

    #[test]
    fn the_documentation_names_every_defect() {
        let documentation = include_str!("../README.md");
        let corruptions = Corruption::ALL.iter().map(|(name, _)| *name);
        for name in corruptions.chain(BadParts::ALL.iter().map(|(name, _)| *name)) {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn what_a_body_has_too_much_is_named() {
        let Value::Object(body) = json!({"message": "x", "extra": 1}) else {
            unreachable!()
        };
        let mut fields = Fields(body);
        assert!(matches!(fields.text("message"), Ok(Some(_))));
        assert!(matches!(fields.end(), Err(Problem::Bad(message)) if message.contains("extra")));
    }
}
