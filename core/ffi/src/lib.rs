//! The C interface, as include/nervix_client.h and include/nervix_client_ext.h declare it.
//!
//! Owns translation and nothing else: pointers and lengths to text, results to objects and errors, numbers of enums. Every
//! entry keeps panics inside. Knows nothing of frames, connections or recovery.

mod arguments;
mod arrow;
mod batch;
mod builder;
mod cancel;
mod clock;
mod consumer;
mod counted;
mod endpoint;
mod errors;
mod event;
mod fields;
mod options;
mod outcome;
mod process;
mod producer;
mod schema;
mod session;
mod suggestions;

#[cfg(test)]
mod tests;
