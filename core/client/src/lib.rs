//! What runs an engine: sockets, HTTP/2, name resolution, real time, threads that wait.
//!
//! Owns the bytes' way between an engine and a server, the runtime they travel on, and the blocking of host threads. Knows
//! nothing of requests, replies or recovery, which are the engine's, and nothing of C, which is the interface's.
//!
//! What one session holds is bounded by constants: unread events by `Limits` of the engine's subscriptions, replies in parts by the
//! transfer limit and `ASSEMBLING` of its exchanges, what is on its way here by the windows of `stream`, and what waits to be sent by
//! the requests in flight and the producers' credit.

mod authorities;
mod cancel;
mod clocks;
mod endpoints;
pub mod fork;
mod framing;
mod locks;
mod runtime;
mod session;
mod stream;
mod transport;

pub use authorities::Authorities;
pub use cancel::Cancel;
pub use endpoints::{Consumer, Delivery, Expected, Producer};
pub use session::{start, Credentials, Execution, Options, Session};
