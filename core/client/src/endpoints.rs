//! Producers, consumers and deliveries as hosts hold them (P-1 to P-8, EC-1 to EC-6).
//!
//! Owns what is refused before anything is sent, and that each of them keeps its session running until it is dropped, which
//! never waits. Knows nothing of attachments or credit, which are the engine's.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nervix_batch::{difference, levels, Batch, Refusal};
use nervix_engine::{
    Call, Contract, Decision, Done, EndpointId, EndpointState, Error, ErrorKind, OpenRefusal,
    OpenRequest, ReopenReason, Role, Settlement, SubmissionOutcome,
};
use nervix_wire::types::{ProducerAdmission, RowField};

use crate::cancel::Cancel;
use crate::session::{unexpected, Session};

/// The most batches that a host may ask credit for (P-1).
const MAX_BATCHES: u32 = 1024;

/// The most bytes that a host may ask credit for (P-1).
const MAX_BYTES: u64 = 32 << 20;

/// Lists around a scalar that still fit into the nesting of a frame, both in the open and in its answer (F-6).
const MAX_LISTS: usize = 28;

/// The longest reason of a rejection (EC-4).
const MAX_REASON: usize = 1024;

/// What a host expects of the endpoint it opens.
#[derive(Debug, Clone)]
pub struct Expected<'a> {
    pub domain: &'a str,
    pub endpoint: &'a str,
    /// Exactly the endpoint's fields, in order.
    pub fields: &'a [RowField],
    /// Batches that may be outstanding.
    pub batches: u32,
    /// Bytes that may be outstanding.
    pub bytes: u64,
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

pub(crate) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Argument(why) => Error::new(ErrorKind::InvalidArgument, why),
        Refusal::Type(why) => Error::new(ErrorKind::Type, why),
        Refusal::Stream(why) => Error::new(ErrorKind::Protocol, why),
    }
}

impl Expected<'_> {
    /// Refuses what the server must not be asked for.
    fn check(&self) -> Result<OpenRequest, Error> {
        if !(1..=MAX_BATCHES).contains(&self.batches) {
            let batches = self.batches;
            return Err(invalid(format!(
                "batches is {batches}: credit is 1 to {MAX_BATCHES} batches"
            )));
        }
        if !(1..=MAX_BYTES).contains(&self.bytes) {
            let bytes = self.bytes;
            return Err(invalid(format!(
                "bytes is {bytes}: credit is 1 to {MAX_BYTES} bytes"
            )));
        }
        if self.fields.is_empty() {
            return Err(invalid(
                "there are no fields: describe every field of the endpoint",
            ));
        }
        for field in self.fields {
            let lists = levels(&field.field_type).count().saturating_sub(1);
            if lists > MAX_LISTS {
                let name = &field.name;
                return Err(invalid(format!(
                    "the field {name:?} nests {lists} lists, and a frame has room for {MAX_LISTS}"
                )));
            }
        }
        Ok(OpenRequest {
            domain: self.domain.to_owned(),
            endpoint: self.endpoint.to_owned(),
            fields: self.fields.to_vec(),
            batches: self.batches,
            bytes: self.bytes,
        })
    }
}

/// What producers and consumers have in common.
#[derive(Debug)]
struct Endpoint {
    session: Session,
    id: EndpointId,
    contract: Arc<Contract>,
}

impl Endpoint {
    fn open(
        session: &Session,
        role: Role,
        expected: &Expected<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<Self, Error> {
        let request = expected.check()?;
        // Held before it is opened: nothing is left to do that could fail once it is.
        let session = session.share()?;
        match session.call(Call::Open(role, request), cancel, None)? {
            Done::Endpoint(id, contract) => Ok(Self {
                session,
                id,
                contract,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// In a child of the process that opened it, and in a session that failed, an endpoint is closed.
    fn state(&self) -> EndpointState {
        let state = self
            .session
            .enter(|engine, _| engine.endpoint_state(self.id));
        state.unwrap_or(EndpointState::Closed)
    }

    fn reopen_reason(&self) -> Option<(ReopenReason, Option<OpenRefusal>)> {
        let reason = self
            .session
            .enter(|engine, _| engine.reopen_reason(self.id));
        reason.ok().flatten()
    }

    fn close(&self, cancel: Option<&Cancel>) -> Result<(), Error> {
        // Closing begins whatever the token says: that only ends the wait for it.
        match self.session.begin(Call::Close(self.id), cancel)? {
            Done::Closed => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The hold on the session is dropped next.
        self.session.free_endpoint(self.id);
    }
}

/// An open ingestor. Usable from several threads; dropping it closes it without waiting.
#[derive(Debug)]
pub struct Producer {
    endpoint: Endpoint,
}

impl Producer {
    /// What the open established.
    pub fn contract(&self) -> &Arc<Contract> {
        &self.endpoint.contract
    }

    pub fn state(&self) -> EndpointState {
        self.endpoint.state()
    }

    /// Why the handle is over, when it is.
    pub fn reopen_reason(&self) -> Option<(ReopenReason, Option<OpenRefusal>)> {
        self.endpoint.reopen_reason()
    }

    /// Whether new batches are admitted now.
    pub fn admission(&self) -> ProducerAdmission {
        let endpoint = &self.endpoint;
        let admission = endpoint
            .session
            .enter(|engine, _| engine.admission(endpoint.id));
        admission.unwrap_or(ProducerAdmission::Suspended)
    }

    /// Waits for credit, then submits a batch of the producer's fields; the identity of the submission comes back.
    pub fn submit(&self, batch: &Batch, cancel: Option<&Cancel>) -> Result<u64, Error> {
        let contract = self.contract();
        if let Some(why) = difference(&contract.schema.fields, &batch.schema().fields) {
            return Err(invalid(format!(
                "the batch is not of the producer's fields: {why}"
            )));
        }
        let (rows, most) = (batch.rows(), contract.max_batch_rows);
        if usize::try_from(most).is_ok_and(|most| rows > most) {
            return Err(invalid(format!(
                "the batch has {rows} rows, and the producer takes {most} at once"
            )));
        }
        let stream = batch.stream().map_err(refused)?.clone();
        self.submit_stream(stream, cancel)
    }

    /// The same for a stream that the server judges, apart from its length.
    pub fn submit_ipc(&self, ipc: &[u8], cancel: Option<&Cancel>) -> Result<u64, Error> {
        self.check_length(ipc.len())?;
        self.submit_stream(Bytes::copy_from_slice(ipc), cancel)
    }

    fn check_length(&self, length: usize) -> Result<(), Error> {
        let most = self.contract().max_batch_bytes;
        match u64::try_from(length) {
            Ok(1..) if u64::try_from(length).is_ok_and(|length| length <= most) => Ok(()),
            _ => Err(invalid(format!(
                "the batch is a stream of {length} bytes, and the producer takes 1 to {most} at once"
            ))),
        }
    }

    fn submit_stream(&self, stream: Bytes, cancel: Option<&Cancel>) -> Result<u64, Error> {
        self.check_length(stream.len())?;
        let endpoint = &self.endpoint;
        match endpoint
            .session
            .call(Call::Submit(endpoint.id, stream), cancel, None)?
        {
            Done::Submitted(submission) => Ok(submission),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for the outcome of a submission and takes it.
    pub fn rejoin(
        &self,
        submission: u64,
        cancel: Option<&Cancel>,
    ) -> Result<SubmissionOutcome, Error> {
        let endpoint = &self.endpoint;
        match endpoint
            .session
            .call(Call::Rejoin(endpoint.id, submission), cancel, None)?
        {
            Done::Submission(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }

    /// The submissions whose outcome was not taken, in order, and whether each has one.
    pub fn pending(&self) -> Result<Vec<(u64, bool)>, Error> {
        let endpoint = &self.endpoint;
        endpoint
            .session
            .enter(|engine, _| engine.pending(endpoint.id))
    }

    /// Lets a submission go: its outcome when it has one.
    pub fn release(&self, submission: u64) -> Result<Option<SubmissionOutcome>, Error> {
        let endpoint = &self.endpoint;
        let released = endpoint
            .session
            .enter(|engine, now| engine.release_submission(now, endpoint.id, submission))?;
        released.ok_or_else(|| {
            invalid(format!(
                "the producer holds no submission {submission}: its outcome was taken, or it was never submitted"
            ))
        })
    }

    /// Closes the producer and waits until the server released it.
    pub fn close(&self, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.endpoint.close(cancel)
    }
}

/// An open emitter. Usable from several threads; dropping it closes it without waiting.
#[derive(Debug)]
pub struct Consumer {
    endpoint: Endpoint,
}

impl Consumer {
    /// What the open established.
    pub fn contract(&self) -> &Arc<Contract> {
        &self.endpoint.contract
    }

    pub fn state(&self) -> EndpointState {
        self.endpoint.state()
    }

    /// Why the handle is over, when it is.
    pub fn reopen_reason(&self) -> Option<(ReopenReason, Option<OpenRefusal>)> {
        self.endpoint.reopen_reason()
    }

    /// Waits for one delivery.
    pub fn next(&self, cancel: Option<&Cancel>) -> Result<Delivery, Error> {
        let endpoint = &self.endpoint;
        let session = endpoint.session.share()?;
        match session.call(Call::NextDelivery(endpoint.id), cancel, None)? {
            Done::Delivery(delivery) => Ok(Delivery {
                session,
                contract: Arc::clone(&endpoint.contract),
                delivery,
                batch: OnceLock::new(),
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// Closes the consumer and waits until the server released it.
    pub fn close(&self, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.endpoint.close(cancel)
    }
}

/// One attempt to have a batch processed. Dropping it settles nothing.
#[derive(Debug)]
pub struct Delivery {
    session: Session,
    contract: Arc<Contract>,
    delivery: nervix_engine::Delivery,
    batch: OnceLock<Result<Arc<Batch>, Error>>,
}

impl Delivery {
    /// What the server said of the attempt.
    pub fn facts(&self) -> &nervix_engine::Delivery {
        &self.delivery
    }

    /// The batch, decoded once and checked against the consumer's fields and the number of members (EC-3).
    pub fn batch(&self) -> Result<Arc<Batch>, Error> {
        if let Some(batch) = self.batch.get() {
            return batch.clone();
        }
        // Decoded outside of the cell, which a fork then never finds half filled by another thread.
        let batch = self.decode();
        self.batch.get_or_init(|| batch).clone()
    }

    fn decode(&self) -> Result<Arc<Batch>, Error> {
        let facts = &self.delivery;
        let schema = Arc::clone(&self.contract.schema);
        let wrong = |why: String| {
            let message = format!("the delivered batch is not what was agreed: {why}");
            Error::new(ErrorKind::Protocol, message)
        };
        let batch = Batch::read(schema, facts.batch.clone())
            .map_err(|refusal| wrong(refusal.to_string()))?;
        if u32::try_from(batch.rows()) != Ok(facts.members) {
            let (rows, members) = (batch.rows(), facts.members);
            return Err(wrong(format!("it has {rows} rows, and {members} members")));
        }
        Ok(Arc::new(batch))
    }

    /// Has the delivery done, so that it does not come again.
    pub fn ack(&self, cancel: Option<&Cancel>) -> Result<Settlement, Error> {
        self.settle(Decision::Ack, cancel)
    }

    /// Has the delivery come again, unchanged.
    pub fn retry(&self, cancel: Option<&Cancel>) -> Result<Settlement, Error> {
        self.settle(Decision::Retry, cancel)
    }

    /// Gives the delivery up for good, for a reason without sensitive values.
    pub fn reject(&self, reason: &str, cancel: Option<&Cancel>) -> Result<Settlement, Error> {
        if !(1..=MAX_REASON).contains(&reason.len()) {
            let length = reason.len();
            return Err(invalid(format!(
                "the reason has {length} bytes: it has 1 to {MAX_REASON}"
            )));
        }
        self.settle(Decision::Reject(reason.to_owned()), cancel)
    }

    fn settle(&self, decision: Decision, cancel: Option<&Cancel>) -> Result<Settlement, Error> {
        let what = Call::Settle(self.delivery.clone(), decision);
        match self.session.call(what, cancel, None)? {
            Done::Settled(settlement) => Ok(settlement),
            other => Err(unexpected(&other)),
        }
    }
}

impl Session {
    /// Opens an ingestor.
    pub fn open_ingestor(
        &self,
        expected: &Expected<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<Producer, Error> {
        let endpoint = Endpoint::open(self, Role::Producer, expected, cancel)?;
        Ok(Producer { endpoint })
    }

    /// Opens an emitter.
    pub fn subscribe_emitter(
        &self,
        expected: &Expected<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<Consumer, Error> {
        let endpoint = Endpoint::open(self, Role::Consumer, expected, cancel)?;
        Ok(Consumer { endpoint })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use nervix_wire::types::{
        FieldType, FieldTypeShape, ListFieldType, ScalarFieldType, ScalarType,
    };

    fn nested(lists: usize) -> RowField {
        let scalar = FieldType {
            shape: FieldTypeShape::ScalarFieldType(ScalarFieldType {
                scalar: ScalarType::U8,
            }),
        };
        let field_type = (0..lists).fold(scalar, |element, _| FieldType {
            shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
        });
        RowField {
            name: "a".to_owned(),
            field_type,
            nullable: false,
            sensitive: false,
        }
    }

    fn kind(fields: &[RowField], batches: u32, bytes: u64) -> Option<ErrorKind> {
        let expected = Expected {
            domain: "d",
            endpoint: "e",
            fields,
            batches,
            bytes,
        };
        expected.check().err().map(|error| error.kind)
    }

    // rule: P-1, EC-1
    #[test]
    fn credit_has_limits() {
        let fields = [nested(0)];
        let refused = Some(ErrorKind::InvalidArgument);
        assert_eq!(kind(&fields, 1, 1), None);
        assert_eq!(kind(&fields, 1024, 32 << 20), None);
        assert_eq!(kind(&fields, 0, 1), refused);
        assert_eq!(kind(&fields, 1025, 1), refused);
        assert_eq!(kind(&fields, 1, 0), refused);
        assert_eq!(kind(&fields, 1, (32 << 20) + 1), refused);
        assert_eq!(kind(&[], 1, 1), refused);
    }

    // rule: F-6, B-12
    #[test]
    fn fields_nest_as_deep_as_a_frame_does() {
        assert_eq!(kind(&[nested(28)], 1, 1), None);
        assert_eq!(kind(&[nested(29)], 1, 1), Some(ErrorKind::InvalidArgument));
    }
}
