//! What an endpoint promised when it was opened, and why a restored one is not the same (P-8, E-5 of the consumers).
//!
//! Owns the description of an open producer or consumer and its comparison. Knows no requests.

use std::sync::Arc;

use nervix_wire::types::{
    ConsumerWindow, EmitterOpenRefusal, EmitterOpened, ProducerOpened, ProducerRefusal,
    ProducerWindow, RowField, RowSchema,
};
use nervix_wire::Violation;

/// What a host expects of an endpoint that it opens.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRequest {
    pub domain: String,
    /// The name of the ingestor or emitter.
    pub endpoint: String,
    /// Exactly the endpoint's fields, in order.
    pub fields: Vec<RowField>,
    /// Batches that may be outstanding.
    pub batches: u32,
    /// Bytes that may be outstanding.
    pub bytes: u64,
}

/// What an open established. Never changes on a handle.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    pub domain: String,
    pub endpoint: String,
    pub schema: Arc<RowSchema>,
    /// The generation of the domain's START.
    pub generation: u64,
    pub digest: [u8; 32],
    /// The most batches at once; None when they go one after the other.
    pub window: Option<u64>,
    pub ack_timeout_nanos: u64,
    pub retry_backoff_nanos: u64,
    pub retry_max_backoff_nanos: u64,
    pub batches: u32,
    pub bytes: u64,
    pub max_batch_rows: u32,
    pub max_batch_bytes: u64,
}

/// Why a handle is over, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReopenReason {
    DomainStopped = 1,
    EndpointRemoved = 2,
    SchemaChanged = 3,
    ContractChanged = 4,
    GenerationChanged = 5,
    ProtocolViolated = 6,
    Refused = 7,
}

/// Why an open was refused, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenRefusal {
    DomainNotFound = 1,
    DomainStopped = 2,
    EndpointNotFound = 3,
    NotClientEndpoint = 4,
    EndpointUnavailable = 5,
    SchemaMismatch = 6,
    TooManyEndpoints = 7,
    SessionCapacityExhausted = 8,
    NodeCapacityExhausted = 9,
    InvalidLimits = 10,
    InTransaction = 11,
}

impl OpenRefusal {
    /// Whether the same open may succeed later, unchanged.
    pub(crate) fn is_temporary(self) -> bool {
        matches!(
            self,
            Self::EndpointUnavailable
                | Self::TooManyEndpoints
                | Self::SessionCapacityExhausted
                | Self::NodeCapacityExhausted
                | Self::InTransaction
        )
    }

    /// What it means for a handle that was open before.
    pub(crate) fn ends_with(self) -> (ReopenReason, Option<OpenRefusal>) {
        match self {
            Self::DomainStopped => (ReopenReason::DomainStopped, None),
            Self::DomainNotFound | Self::EndpointNotFound => (ReopenReason::EndpointRemoved, None),
            Self::NotClientEndpoint => (ReopenReason::ContractChanged, None),
            Self::SchemaMismatch => (ReopenReason::SchemaChanged, None),
            other => (ReopenReason::Refused, Some(other)),
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::DomainNotFound => "the domain does not exist",
            Self::DomainStopped => "the domain is stopped",
            Self::EndpointNotFound => "the endpoint does not exist",
            Self::NotClientEndpoint => "the endpoint is not one for clients",
            Self::EndpointUnavailable => "the endpoint is not available now",
            Self::SchemaMismatch => "the expected fields are not those of the endpoint",
            Self::TooManyEndpoints => "the session has too many endpoints open",
            Self::SessionCapacityExhausted => "the session has no credit left",
            Self::NodeCapacityExhausted => "the node has no credit left",
            Self::InvalidLimits => "the credit that was asked for does not suit the endpoint",
            Self::InTransaction => "the session holds a transaction",
        }
    }
}

impl From<ProducerRefusal> for OpenRefusal {
    fn from(refusal: ProducerRefusal) -> Self {
        match refusal {
            ProducerRefusal::DomainNotFound => Self::DomainNotFound,
            ProducerRefusal::DomainStopped => Self::DomainStopped,
            ProducerRefusal::IngestorNotFound => Self::EndpointNotFound,
            ProducerRefusal::NotClientIngestor => Self::NotClientEndpoint,
            ProducerRefusal::EndpointUnavailable => Self::EndpointUnavailable,
            ProducerRefusal::SchemaMismatch => Self::SchemaMismatch,
            ProducerRefusal::TooManyProducers => Self::TooManyEndpoints,
            ProducerRefusal::SessionCapacityExhausted => Self::SessionCapacityExhausted,
            ProducerRefusal::NodeCapacityExhausted => Self::NodeCapacityExhausted,
            ProducerRefusal::InvalidLimits => Self::InvalidLimits,
            ProducerRefusal::InTransaction => Self::InTransaction,
        }
    }
}

impl From<EmitterOpenRefusal> for OpenRefusal {
    fn from(refusal: EmitterOpenRefusal) -> Self {
        match refusal {
            EmitterOpenRefusal::DomainNotFound => Self::DomainNotFound,
            EmitterOpenRefusal::DomainStopped => Self::DomainStopped,
            EmitterOpenRefusal::EmitterNotFound => Self::EndpointNotFound,
            EmitterOpenRefusal::NotClientEmitter => Self::NotClientEndpoint,
            EmitterOpenRefusal::EndpointUnavailable => Self::EndpointUnavailable,
            EmitterOpenRefusal::SchemaMismatch => Self::SchemaMismatch,
            EmitterOpenRefusal::TooManyConsumers => Self::TooManyEndpoints,
            EmitterOpenRefusal::SessionCapacityExhausted => Self::SessionCapacityExhausted,
            EmitterOpenRefusal::NodeCapacityExhausted => Self::NodeCapacityExhausted,
            EmitterOpenRefusal::InvalidLimits => Self::InvalidLimits,
            EmitterOpenRefusal::InTransaction => Self::InTransaction,
        }
    }
}

/// The answers to the two kinds of opens say the same, under types of their own.
macro_rules! contract_of {
    ($opened:expr, $endpoint:ident, $parallel:path) => {
        Contract {
            domain: $opened.domain.clone(),
            endpoint: $opened.$endpoint.clone(),
            schema: Arc::new(RowSchema {
                fields: $opened.fields.clone(),
                branch: None,
            }),
            generation: $opened.generation,
            digest: $opened.contract.bytes,
            window: match &$opened.window {
                $parallel(window) => Some(window.max),
                _ => None,
            },
            ack_timeout_nanos: $opened.ack_timeout_nanos,
            retry_backoff_nanos: $opened.retry_backoff_nanos,
            retry_max_backoff_nanos: $opened.retry_max_backoff_nanos,
            batches: $opened.granted_batches,
            bytes: $opened.granted_bytes,
            max_batch_rows: $opened.max_batch_rows,
            max_batch_bytes: $opened.max_batch_bytes,
        }
    };
}

impl Contract {
    pub(crate) fn of_producer(opened: &ProducerOpened) -> Self {
        contract_of!(opened, ingestor, ProducerWindow::ParallelProducerWindow)
    }

    pub(crate) fn of_consumer(opened: &EmitterOpened) -> Self {
        contract_of!(opened, emitter, ConsumerWindow::ParallelConsumerWindow)
    }

    /// Holds what was opened to what was asked for: the endpoint of other fields is refused, not opened, and credit that nobody
    /// asked for would let a server have a host fill its memory.
    pub(crate) fn answers(&self, asked: &OpenRequest) -> Result<(), Violation> {
        let rule = "P-1";
        if self.schema.fields != asked.fields {
            return Err(Violation::new(
                rule,
                "an endpoint was opened whose fields are not those that were expected",
            ));
        }
        if self.batches > asked.batches || self.bytes > asked.bytes {
            return Err(Violation::new(
                rule,
                "more credit was granted than was asked for",
            ));
        }
        Ok(())
    }

    /// Why a fresh open is not the endpoint that this handle had.
    pub(crate) fn drift(&self, fresh: &Contract) -> Option<ReopenReason> {
        if self.generation != fresh.generation {
            Some(ReopenReason::GenerationChanged)
        } else if self.schema != fresh.schema {
            Some(ReopenReason::SchemaChanged)
        } else if self != fresh {
            Some(ReopenReason::ContractChanged)
        } else {
            None
        }
    }
}
