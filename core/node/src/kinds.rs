//! The names of frames, as the schema and the control endpoint spell them.

use nervix_wire::types::{ClientRequest, ReplyBody, RequestRejection, ServerBody};

macro_rules! names {
    ($function:ident, $all:ident, $type:ident { $($variant:ident $(($ignored:tt))?),+ $(,)? }) => {
        pub const $all: &[&str] = &[$(stringify!($variant)),+];

        pub fn $function(value: &$type) -> &'static str {
            match value {
                $($type::$variant $(($ignored))? => stringify!($variant),)+
            }
        }
    };
}

names!(request_kind, REQUESTS, ClientRequest {
    CommandRequest(_), SuggestRequest(_), ListDomainsRequest, SelectDomainRequest(_), AttachTransactionRequest(_),
    InspectTransactionRequest(_), SubscribeRequest(_), UnsubscribeRequest(_), CancelRequest(_), ChoiceLookupRequest(_),
    AttachDomainClockRequest(_), DetachDomainClockRequest(_), OpenIngestorRequest(_), SubmitBatchRequest(_),
    CloseIngestorRequest(_), OpenEmitterRequest(_), ReadEmitterBatchRequest(_), SettleEmitterBatchRequest(_),
    CloseEmitterRequest(_),
});

names!(reply_kind, REPLIES, ReplyBody {
    CommandOutcome(_), AttachOutcome(_), SuggestOutcome(_), DomainList(_), DomainSelectionOutcome(_),
    InspectionOutcome(_), SubscribeOutcome(_), UnsubscribeOutcome(_), CancelOutcome(_), RequestCancelled(_),
    RequestRejected(_), TransferPart(_), ChoiceOutcome(_), DomainClockAttachOutcome(_), DomainClockDetachOutcome(_),
    OpenIngestorOutcome(_), SubmissionOutcome(_), CloseIngestorOutcome(_), OpenEmitterOutcome(_),
    ReadEmitterBatchOutcome(_), SettleEmitterBatchOutcome(_), CloseEmitterOutcome(_),
});

names!(unsolicited_kind, BODIES, ServerBody {
    Reply(_), ServerNotice(_), LeadershipObserved(_), DomainsObserved(_), DomainSnapshotObserved(_), ClusterObserved(_),
    SubscriptionRows(_), SubscriptionDeliveryLost(_), SubscriptionRowsSkipped(_), SubscriptionEnded(_),
    SessionEnding(_), DomainClockObserved(_), DomainClockAttachmentEnded(_), DomainClockTicked(_),
    ProducerAdmissionChanged(_), ProducerEnded(_),
});

/// The name of a server frame; a reply goes by what it replies.
pub fn body_kind(body: &ServerBody) -> &'static str {
    match body {
        ServerBody::Reply(reply) => reply_kind(&reply.body),
        other => unsolicited_kind(other),
    }
}

/// Why a request was rejected.
pub fn rejection(value: &RequestRejection) -> &'static str {
    match value {
        RequestRejection::InvalidRequest => "InvalidRequest",
        RequestRejection::UnsupportedRequest => "UnsupportedRequest",
        RequestRejection::UnsupportedValue => "UnsupportedValue",
        RequestRejection::DuplicateRequestId => "DuplicateRequestId",
        RequestRejection::ReplyTooLarge => "ReplyTooLarge",
        RequestRejection::TooManyRequestsInFlight => "TooManyRequestsInFlight",
        RequestRejection::ServerBusy => "ServerBusy",
    }
}

/// A client frame that could not be decoded.
pub const MALFORMED: &str = "Malformed";
/// Bytes that a test had sent as a server frame.
pub const INJECTED: &str = "Injected";

/// Whether a frame of the kind `actual` is meant by `wanted`: `Reply` is every reply, `None` any frame but a tick, since
/// nobody can say how many of those there are.
pub fn matches(wanted: Option<&str>, actual: &str) -> bool {
    match wanted {
        None => actual != "DomainClockTicked",
        Some("Reply") => REPLIES.contains(&actual),
        Some(wanted) => wanted == actual,
    }
}

pub fn is_request(kind: &str) -> bool {
    REQUESTS.contains(&kind)
}

pub fn is_server_frame(kind: &str) -> bool {
    REPLIES.contains(&kind) || BODIES.contains(&kind) || kind == INJECTED
}
