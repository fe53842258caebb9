"""Producers: handing batches to an ingestor of the graph, and learning what became of each."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nervix_ffi._endpoint import Endpoint, Kind
from nervix_ffi._handle import TOKEN
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import Out, check, read_text
from nervix_ffi._told import told
from nervix_ffi.batch import Batch, BatchData, batch_of, read_once
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.enums import (
    Admission,
    BatchDefect,
    ProcessingFailure,
    SubmissionRefusal,
    SubmissionResult,
    SubmissionUncertainty,
    read,
)
from nervix_ffi.errors import Error, InvalidArgumentError, NotAdmitted, OutcomeUnknown, ProcessingFailed, SubmissionNotCompleted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nervix_ffi._ffi import CData
    from nervix_ffi.session import Session

__all__ = ["PRODUCER", "Producer", "Submission", "SubmissionOutcome"]

PRODUCER = Kind(
    what="producer",
    open=lib.nx_session_open_ingestor,
    schema=lib.nx_producer_schema,
    generation=lib.nx_producer_generation,
    contract=lib.nx_producer_contract,
    grant=lib.nx_producer_grant,
    policy=lib.nx_producer_policy,
    state=lib.nx_producer_state,
    reopen_reason=lib.nx_producer_reopen_reason,
    close=lib.nx_producer_close,
    free=lib.nx_producer_free,
)


#: What the result does not say by itself (B-14).
_ADVICE: dict[int, str] = {
    SubmissionResult.PROCESSING_FAILED: " (it may have had effects)",
    SubmissionResult.OUTCOME_UNKNOWN: " (it may have been processed)",
}


@dataclass(frozen=True)
class SubmissionOutcome:
    """What became of a submitted batch (P-5).

    NOT_ADMITTED has a ``refusal``, and a ``defect`` when that is INVALID_BATCH; PROCESSING_FAILED has a ``failure``,
    OUTCOME_UNKNOWN an ``uncertainty``. ``message`` is empty for COMPLETED. Neither of the last two says that the batch had no
    effect (B-14).
    """

    result: SubmissionResult | int
    message: str = ""
    refusal: SubmissionRefusal | int | None = None
    defect: BatchDefect | int | None = None
    failure: ProcessingFailure | int | None = None
    uncertainty: SubmissionUncertainty | int | None = None

    @property
    def completed(self) -> bool:
        """Whether the graph completed the batch."""
        return self.result == SubmissionResult.COMPLETED

    def describe(self) -> str:
        """The outcome for a person."""
        words = [self.result, self.refusal, self.defect, self.failure, self.uncertainty]
        named = " ".join(getattr(word, "name", f"number {word}") for word in words if word is not None)
        return f"the batch ended {named}{_ADVICE.get(self.result, '')}" + (f": {told(self.message)}" if self.message else "")


def _read_outcome(outcome: CData) -> SubmissionOutcome:
    """A copy of an outcome of the library; the caller still owns that one."""
    result = read(SubmissionResult, lib.nx_submission_outcome_result(outcome))
    refusal = defect = failure = uncertainty = None
    if result == SubmissionResult.NOT_ADMITTED:
        refusal = read(SubmissionRefusal, _cause("nx_submission_refusal", lib.nx_submission_outcome_refusal, outcome))
        if refusal == SubmissionRefusal.INVALID_BATCH:
            defect = read(BatchDefect, _cause("nx_batch_defect", lib.nx_submission_outcome_defect, outcome))
    elif result == SubmissionResult.PROCESSING_FAILED:
        failure = read(ProcessingFailure, _cause("nx_processing_failure", lib.nx_submission_outcome_failure, outcome))
    elif result == SubmissionResult.OUTCOME_UNKNOWN:
        uncertainty = read(
            SubmissionUncertainty, _cause("nx_submission_uncertainty", lib.nx_submission_outcome_uncertainty, outcome)
        )
    return SubmissionOutcome(
        result=result,
        message=read_text(lambda place, size: lib.nx_submission_outcome_message(outcome, place, size)),
        refusal=refusal,
        defect=defect,
        failure=failure,
        uncertainty=uncertainty,
    )


def _cause(c_type: str, call: Callable[[CData, CData], CData], outcome: CData) -> int:
    place = ffi.new(f"{c_type} *")
    check(call(outcome, place))
    return int(place[0])


_FAILURES: dict[int, type[SubmissionNotCompleted]] = {
    SubmissionResult.NOT_ADMITTED: NotAdmitted,
    SubmissionResult.PROCESSING_FAILED: ProcessingFailed,
    SubmissionResult.OUTCOME_UNKNOWN: OutcomeUnknown,
}


class Submission:
    """A batch that was handed over. It holds credit until its outcome is taken, by ``result``, or it is let go (B-14).

    Stopping to wait for it changes nothing: do not submit its batch again, ask again. ``identity`` is unique in its producer.
    """

    #: How long to wait for the outcome that another thread has just taken, in seconds; it needs no more than a moment.
    HANDOVER = 10.0

    def __init__(self, producer: Producer, identity: int) -> None:
        self.producer = producer
        self.identity = identity
        self._outcome: SubmissionOutcome | None = None
        self._taken = threading.Event()
        #: The outcome as the library handed it out.
        self._landed: list[CData] = []

    def __repr__(self) -> str:
        return f"<Submission {self.identity} of {self.producer.name}>"

    @property
    def outcome(self) -> SubmissionOutcome | None:
        """The outcome, when it was taken already. Never waits."""
        self._look()
        return self._outcome

    def done(self) -> bool:
        """Whether the outcome is there. Never waits. Raises ClosedError when the producer was released before it was taken."""
        return self._look() or self.producer._resolved(self.identity)

    def result(self, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> SubmissionOutcome:
        """Waits for the outcome and takes it; calling it again returns the same. Without ``timeout`` it waits for as long as the
        session lasts: a server says nothing about when the graph is done with a batch.

        With ``check``, an outcome that is not COMPLETED is raised: NotAdmitted, ProcessingFailed or OutcomeUnknown. Raises
        DeadlineError after ``timeout`` seconds (0 takes an outcome that is there) or CancelledError, which leave the submission as it
        is, and ClosedError. Each has this ``submission``, and so has KeyboardInterrupt, or what another signal's handler raises.
        """
        try:
            outcome = self._result(Limit(timeout, cancel, MOMENT), check)
        except BaseException as failure:
            _name(failure, self)
            raise
        return outcome

    def _result(self, limit: Limit, check: bool) -> SubmissionOutcome:
        if not self._look():
            self._rejoin(limit)
        outcome = self._outcome
        if outcome is None:
            raise InvalidArgumentError(f"submission {self.identity} was let go before its outcome arrived")
        if check and not outcome.completed:
            raise _FAILURES.get(outcome.result, SubmissionNotCompleted)(outcome)
        return outcome

    def _rejoin(self, limit: Limit) -> None:
        with Out("nx_submission_outcome", lib.nx_submission_outcome_free, self._landed) as out:
            try:
                self.producer._call(lib.nx_producer_rejoin, limit, self.identity, TOKEN, out.place, out=out)
            except InvalidArgumentError:
                if not self._handed_over():
                    raise
            self._look()

    def _handed_over(self) -> bool:
        """Whether another thread, which took it or let it go between the look and the call, has put down what it found."""
        return self._look() or self._taken.wait(self.HANDOVER) or self._look()

    def _look(self) -> bool:
        """Reads the outcome that a call took, this one or one that a signal handler ended. Whether there is one."""
        if not self._taken.is_set() and (landed := self._landed.copy()):
            self._keep(_read_outcome(landed[0]))
        return self._taken.is_set()

    def _keep(self, outcome: SubmissionOutcome | None) -> None:
        self._outcome = outcome
        self._taken.set()
        self._landed.clear()

    def release(self) -> SubmissionOutcome | None:
        """Lets it go: its outcome when there is one; None otherwise, and the credit returns when it arrives. Never waits."""
        if not self._look():
            try:
                with Out("nx_submission_outcome", lib.nx_submission_outcome_free, self._landed) as out:
                    check(self.producer._handle.call(lib.nx_producer_release, self.identity, out.place, out=out))
            except InvalidArgumentError:
                if not self._handed_over():
                    raise
            if not self._look():
                self._keep(None)
        return self._outcome


#: Stands for the identity of no submission.
NOTHING = 2**64 - 1


def _nothing() -> CData:
    """A place for the identity of a submission."""
    return ffi.new("uint64_t *", NOTHING)


def _submitted(place: CData) -> bool:
    return int(place[0]) != NOTHING


def _name(failure: BaseException, submission: Submission | None, batch: Batch | None = None) -> None:
    """Has what ended a call, Ctrl-C and the like included, carry what was submitted, or else the batch that may be (B-14)."""
    with suppress(AttributeError, TypeError):
        vars(failure).update(submission=submission, batch=batch)
    if submission is not None and not isinstance(failure, Error):
        _note(
            failure,
            f"The batch is submission {submission.identity} of {submission.producer.name} and may have been processed: ask this "
            "exception's submission for its outcome instead of submitting the batch again.",
        )


def _tell_of_source(failure: BaseException, batch: Batch | None) -> None:
    """Says what is left of a source that can be read only once, when nothing was submitted."""
    if not isinstance(failure, Error):
        left = "and some of it may have been: make it anew" if batch is None else "so submit this exception's batch instead"
        _note(failure, f"Nothing was submitted. The source can be read only once, {left}.")
    elif batch is not None and not isinstance(failure, InvalidArgumentError):  # That batch would be refused again.
        failure.args = (f"{failure} (the source can be read only once: submit this exception's batch instead)",)


def _note(failure: BaseException, text: str) -> None:
    if hasattr(failure, "add_note"):  # It came with Python 3.11.
        failure.add_note(text)


class Producer(Endpoint):
    """Hands batches to an ingestor. Made by ``Session.open_producer``.

    It follows its ingestor across sessions while what the open established stays the same; otherwise calls raise
    ReopenRequiredError with a ``reason``. Each submission holds credit until its outcome is taken, so who takes none ends up waiting
    in ``submit``. A batch that the ingestor refused for the moment is sent again behind those that were submitted since: who needs
    them in order has one outstanding at a time, as with ``credit_batches=1``. Usable from several threads. A ``with`` block closes
    it at its end, and waits for every outcome; when an exception ends the block, it closes in the background. Outcomes can be taken
    after that, until ``release``.
    """

    def __init__(self, session: Session, domain: str, name: str, pointer: CData) -> None:
        super().__init__(PRODUCER, session, domain, name, pointer)
        # Reentrant, because a signal handler may itself submit.
        self._lock = threading.RLock()
        #: The submissions that someone holds, and some that nobody does any more.
        self._submissions: dict[int, weakref.ref[Submission]] = {}
        self._kept = 64

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._handle.closed:
            return
        if kind is None:
            self.close()
        else:
            self._close_soon()

    @property
    def admission(self) -> Admission | int:
        """Whether the ingestor takes batches now; SUSPENDED also while there is no attachment."""
        return read(Admission, self._handle.call(lib.nx_producer_admission))

    def batch(self, data: BatchData, *, cast: bool = False) -> Batch:
        """A batch of the ingestor's fields: see ``Batch.from_arrow`` and ``Batch.from_rows``. Nothing is sent."""
        return batch_of(self.schema, data, cast)

    def submit(
        self, data: BatchData, *, cast: bool = False, timeout: float | None = None, cancel: Cancel | None = None
    ) -> Submission:
        """Hands over one batch, once there is credit for it, and returns without waiting for its outcome.

        ``data`` is a Batch, Arrow data of any library (``cast`` as in ``Batch.from_arrow``), or rows as mappings. It may be changed
        or released as soon as this returns. ``timeout`` is in seconds. Raises InvalidArgumentError for data that does not fit the
        fields or the limits of a batch, or for an iterator or a stream that gives nothing, DeadlineError or CancelledError when the
        wait for credit or for a restoration ended first, TransportError when there was no restoration within the session's
        ``retry_timeout``, ReopenRequiredError or ClosedError: in each case nothing was submitted, and the exception's ``submission``
        is None. Its ``batch`` is then what was made of the data: submit that one, since data that can be read only once, like a
        generator or a RecordBatchReader, was read for it. KeyboardInterrupt, or what another signal's handler raises, may come when
        the batch is submitted already, and has that ``submission`` then, and otherwise the ``batch``. Where both are None, such
        data may have been read in part, and has to be made anew.
        """
        place, made = _nothing(), list[Batch]()
        try:
            submission = self._submit(place, made, data, cast, Limit(timeout, cancel))
        except BaseException as failure:
            self._name(failure, place, made, data)
            raise
        return submission

    def submit_ipc(self, ipc: object, *, timeout: float | None = None, cancel: Cancel | None = None) -> Submission:
        """Hands over one Arrow IPC stream, bytes or any buffer, which the server judges (B-13): see ``submit``."""
        place = _nothing()
        try:
            limit = Limit(timeout, cancel)
            data = ffi.from_buffer("uint8_t[]", ipc)
            submission = self._hand_over(place, lib.nx_producer_submit_ipc, limit, data, len(data))
        except BaseException as failure:
            self._name(failure, place)
            raise
        return submission

    def _submit(self, place: CData, made: list[Batch], data: BatchData, cast: bool, limit: Limit) -> Submission:
        batch = self.batch(data, cast=cast)
        made.append(batch)
        try:
            return self._hand_over(place, lib.nx_producer_submit, limit, batch._handle)
        finally:
            if batch is not data and _submitted(place):
                batch.release()

    def _hand_over(self, place: CData, function: Callable[..., CData], limit: Limit, *batch: object) -> Submission:
        self._call(function, limit, *batch, TOKEN, place)
        return self._submission(int(place[0]))

    def _name(self, failure: BaseException, place: CData, made: Sequence[Batch] = (), data: object = None) -> None:
        """Has what ended a call carry the submission that the library wrote to ``place``, or else the batch ``made`` of ``data``."""
        if _submitted(place):
            _name(failure, self._submission(int(place[0])))
            return
        batch = made[0] if made else None
        _name(failure, None, batch)
        if read_once(data):
            _tell_of_source(failure, batch)

    def send(
        self,
        data: BatchData,
        *,
        cast: bool = False,
        check: bool = True,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> SubmissionOutcome:
        """Submits a batch and waits for its outcome: ``submit``, then ``Submission.result``.

        What it raises says how far it came: the ``submission`` of the exception, KeyboardInterrupt included, is the batch that was
        submitted, whose outcome ``submission.result`` still tells; None means that nothing was, and the exception's ``batch`` may be
        sent again, as in ``submit``. Where NotAdmitted or another outcome may call for sending again what can be read only once,
        make a ``batch`` of it first.
        """
        place, made = _nothing(), list[Batch]()
        try:
            limit = Limit(timeout, cancel)
            submission = self._submit(place, made, data, cast, limit)
            outcome = submission._result(Limit(limit.remaining(), cancel, MOMENT), check)
        except BaseException as failure:
            self._name(failure, place, made, data)
            raise
        return outcome

    def pending(self) -> list[Submission]:
        """The submissions whose outcome was not taken, oldest first."""
        return [self._submission(identity) for identity, _ in self._pending()]

    def _submission(self, identity: int) -> Submission:
        with self._lock:
            known = self._submissions.get(identity)
            submission = None if known is None else known()
            if submission is None:
                submission = Submission(self, identity)
                self._submissions[identity] = weakref.ref(submission)
                if len(self._submissions) > self._kept:
                    self._submissions = {number: kept for number, kept in self._submissions.items() if kept() is not None}
                    self._kept = 2 * len(self._submissions) + 64
            return submission

    def _resolved(self, identity: int) -> bool:
        return any(resolved for number, resolved in self._pending() if number == identity)

    def _pending(self) -> list[tuple[int, bool]]:
        count = ffi.new("size_t *")
        room = 0
        while True:
            identities, resolved = ffi.new("uint64_t[]", max(room, 1)), ffi.new("bool[]", max(room, 1))
            check(self._handle.call(lib.nx_producer_pending, identities, resolved, room, count))
            total = int(count[0])
            if total <= room:
                return [(int(identities[index]), bool(resolved[index])) for index in range(total)]
            room = total
