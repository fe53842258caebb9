//! What a publication hands to subscriptions: payloads of at most 256 rows of one branch that become frames when sent.

use super::SubscriptionId;
use nervix_wire::types::{CellValue, RowsSkippedCause, SubscriptionHandle};

/// What one publication gave rise to.
#[derive(Debug, Default)]
pub struct Published {
    /// Rows that entered the relay.
    pub rows: u64,
    /// At most one entry a subscription, in the order the subscriptions were opened.
    pub deliveries: Vec<Delivery>,
}

#[derive(Debug)]
pub struct Delivery {
    pub subscription: SubscriptionId,
    /// In relay order; each payload is one frame.
    pub frames: Vec<RowsPayload>,
    /// Rows that were withheld because something failed on them.
    pub skipped: Vec<(RowsSkippedCause, u64, String)>,
}

/// One frame's rows. Cheap to hold and to clone (it shares the published batch); cells are made when it is encoded.
#[derive(Debug, Clone)]
pub struct RowsPayload {}

impl RowsPayload {
    pub fn row_count(&self) -> usize {
        0
    }
    /// The finished SubscriptionRows frame for this handle.
    pub fn encode(&self, handle: &SubscriptionHandle) -> Result<Vec<u8>, nervix_wire::EncodeError> {
        Err(nervix_wire::EncodeError::NoRows)
    }
    pub fn key(&self) -> Option<Vec<CellValue>> {
        None
    }
    pub fn rows(&self) -> Vec<Vec<CellValue>> {
        vec![]
    }
}
