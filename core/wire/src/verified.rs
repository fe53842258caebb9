//! A frame that passed the FlatBuffers verifier as a ServerMessage, so that its values can be read
//! in place later without verifying it again. It has the crate's only `unsafe` besides flatc's code.
//! What the values mean it must not know.

use flatbuffers::VerifierOptions;

use crate::frame::Frame;
use crate::generated as fb;
use crate::violation::Violation;
use crate::DEPTH_LIMIT;

/// The identifier of a ServerMessage.
pub(crate) const SERVER_IDENTIFIER: &[u8; 4] = b"NXSM";

/// The verifier's limits for a frame of this length (F-3).
pub(crate) fn limits(len: usize) -> VerifierOptions {
    VerifierOptions {
        max_depth: DEPTH_LIMIT,
        max_tables: len / 4,
        max_apparent_size: len.saturating_mul(8),
        ignore_missing_null_terminator: false,
    }
}

/// What precedes verification: the size and the identifier (F-3).
pub(crate) fn check_envelope(
    bytes: &[u8],
    identifier: &[u8; 4],
    limit: usize,
) -> Result<(), Violation> {
    if bytes.len() > limit {
        let len = bytes.len();
        return Err(Violation::new(
            "F-3",
            format!("a frame has {len} bytes, above the limit of {limit}"),
        ));
    }
    match bytes.get(4..8) {
        None => Err(Violation::new("F-3", "a frame has fewer than 8 bytes")),
        Some(found) if found != identifier => {
            Err(Violation::new("F-3", "a frame carries another identifier"))
        }
        Some(_) => Ok(()),
    }
}

/// Says why the verifier refused a frame. Its own text is many lines; the first one is enough.
pub(crate) fn unverifiable(problem: &flatbuffers::InvalidFlatbuffer) -> Violation {
    let text = problem.to_string();
    let first = text.lines().next().unwrap_or("unknown defect");
    Violation::new("F-3", format!("a frame does not verify: {first}"))
}

/// A frame whose bytes are a verified ServerMessage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct VerifiedServer {
    frame: Frame,
}

impl VerifiedServer {
    /// Checks and verifies a frame of at most `limit` bytes.
    pub(crate) fn new(frame: &Frame, limit: usize) -> Result<Self, Violation> {
        check_envelope(frame, SERVER_IDENTIFIER, limit)?;
        flatbuffers::root_with_opts::<fb::ServerMessage<'_>>(&limits(frame.len()), frame)
            .map_err(|problem| unverifiable(&problem))?;
        Ok(Self {
            frame: frame.clone(),
        })
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(crate) fn message(&self) -> fb::ServerMessage<'_> {
        // SAFETY: `new`, the only way to make Self, verified these very bytes as this root, and a
        // Frame never changes.
        unsafe { flatbuffers::root_unchecked::<fb::ServerMessage<'_>>(&self.frame) }
    }
}
