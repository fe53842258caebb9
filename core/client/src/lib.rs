//! What runs an engine: sockets, HTTP/2, name resolution, real time, threads that wait.
//!
//! Owns the bytes' way between an engine and a server, the runtime they travel on, and the blocking of host threads. Knows
//! nothing of requests, replies or recovery, which are the engine's, and nothing of C, which is the interface's.

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
