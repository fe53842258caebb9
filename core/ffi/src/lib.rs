//! The C interface, as include/nervix_client.h and include/nervix_client_ext.h declare it.
//!
//! Owns translation and nothing else: pointers and lengths to text, results to objects and errors, numbers of enums. Every
//! entry keeps panics inside. Knows nothing of frames, connections or recovery.

mod arguments;
mod arrow;
mod cancel;
mod errors;
mod event;
mod options;
mod outcome;
mod process;
mod schema;
mod session;
mod suggestions;

#[cfg(test)]
mod tests;
