"""Consumers: taking batches from an emitter of the graph, and settling each."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from nervix_ffi._endpoint import Endpoint, Kind
from nervix_ffi._handle import TOKEN, Handle, blocking, borrowed, leaving
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import Out, check, encode, read_bytes, read_text
from nervix_ffi.batch import Batch
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.enums import Settlement, read
from nervix_ffi.errors import ClosedError, Error, InterruptedReadError, RejectedError, SettlementFailed, UncertainError
from nervix_ffi.values import Value

if TYPE_CHECKING:
    import pyarrow

    from nervix_ffi._ffi import CData
    from nervix_ffi.session import Session

__all__ = ["CONSUMER", "Consumer", "Delivery"]

CONSUMER = Kind(
    what="consumer",
    open=lib.nx_session_subscribe_emitter,
    schema=lib.nx_consumer_schema,
    generation=lib.nx_consumer_generation,
    contract=lib.nx_consumer_contract,
    grant=lib.nx_consumer_grant,
    policy=lib.nx_consumer_policy,
    state=lib.nx_consumer_state,
    reopen_reason=lib.nx_consumer_reopen_reason,
    close=lib.nx_consumer_close,
    free=lib.nx_consumer_free,
)

#: How long a delivery whose block raised waits for its retry to be confirmed, in seconds. A retry that was sent goes on without.
RETRY_PATIENCE = 2.0

#: The same for a block that Ctrl-C, the end of the program or of a generator left: time enough to send the retry.
RETRY_HASTE = 0.1


class _Life:
    """What the finalizer of a delivery has to know of it."""

    __slots__ = ("consumer", "epoch", "handle", "settled", "what")

    def __init__(self, handle: Handle, consumer: Consumer, what: str) -> None:
        self.handle = handle
        self.consumer = consumer
        self.epoch = consumer._epoch
        self.settled = False
        self.what = what

    def collected(self) -> None:
        """The delivery is garbage."""
        owed = not (self.settled or self.handle.closed or self.consumer._ended or self.consumer._epoch != self.epoch)
        if owed and not leaving():
            warnings.warn(
                f"{self.what} was neither settled nor released; it comes again after the emitter's ACK timeout. "
                "Call ack(), retry() or reject() on each delivery, or release() to leave it",
                ResourceWarning,
                stacklevel=2,
            )


class Delivery:
    """One attempt to deliver a batch of an emitter.

    Settle it with ``ack``, ``retry`` or ``reject``; nothing else does. What is not settled comes again, under the same ``identity``
    and another ``reference``, perhaps elsewhere: key effects by ``identity`` (B-15). ``members`` is its rows, ``source_relay`` the
    relay they came from, ``branch_fingerprint`` 32 bytes for rows of a concrete branch and None otherwise, ``execution_now`` the
    domain time when the batch was prepared, in nanoseconds.

    The end of a ``with`` block lets go of it without settling it. With ``settle="auto"`` at the open of the consumer, a block
    acknowledges the delivery when it ends and retries it when it raises, unless it was settled inside: it waits up to 2 s for the
    answer, and for what is no Exception, like KeyboardInterrupt, only until the retry was sent. One that is garbage collected
    unsettled gives a ResourceWarning.
    """

    def __init__(self, consumer: Consumer, pointer: CData) -> None:
        self.consumer = consumer
        self._handle = Handle("delivery", pointer)
        self._batch: Batch | None = None
        self._settlement: Settlement | int | None = None
        self.identity = _fixed(lib.nx_delivery_identity, pointer)
        self.reference = _fixed(lib.nx_delivery_reference, pointer)
        self._life = _Life(self._handle, consumer, f"delivery {self.identity.hex()} of {consumer.name}")
        self._finalizer = weakref.finalize(self, self._life.collected)
        self.source_relay = read_text(lambda place, size: lib.nx_delivery_source_relay(pointer, place, size))
        place, size = ffi.new("const uint8_t **"), ffi.new("size_t *")
        found = lib.nx_delivery_branch_fingerprint(pointer, place, size)
        self.branch_fingerprint = read_bytes(place, size) if found else None
        self.members = int(lib.nx_delivery_members(pointer))
        self.execution_now = int(lib.nx_delivery_execution_now(pointer))

    def __len__(self) -> int:
        return self.members

    def __bool__(self) -> bool:
        return True  # A delivery is one whatever it holds.

    def __repr__(self) -> str:
        return f"<Delivery {self.identity.hex()} of {self.consumer.name}, {self.members} rows>"

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self.consumer.settle == "auto" and not self._life.settled and not self._handle.closed:
                if kind is None:
                    self.ack()
                else:
                    with suppress(Error):  # It comes again without it, only later.
                        self.retry(timeout=RETRY_PATIENCE if issubclass(kind, Exception) else RETRY_HASTE, check=False)
        finally:
            self.release()

    @property
    def settlement(self) -> Settlement | int | None:
        """What the last settlement of this attempt was answered, None before one was."""
        return self._settlement

    def release(self) -> None:
        """Lets go of it, which settles nothing. Batches, rows and views that were read stay valid."""
        self._finalizer.detach()
        self._handle.close()

    @property
    def ipc(self) -> memoryview:
        """The Arrow IPC stream, read-only, without a copy. The view keeps the delivery's bytes, not this object."""
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        with self._handle as delivery:
            lib.nx_delivery_ipc(delivery, pointer, length)
            return borrowed(pointer[0], length[0], lib.nx_delivery_retain, delivery, lib.nx_delivery_release)

    def batch(self) -> Batch:
        """The rows. Decoded once; raises ProtocolError when they are not what was agreed (EC-3)."""
        if self._batch is None:
            with self._handle as delivery, Out("nx_batch", lib.nx_batch_release) as out:
                check(lib.nx_delivery_batch(delivery, out.place))
                self._batch = Batch(self.consumer.schema, out.take())
        return self._batch

    def rows(self) -> list[dict[str, Value]]:
        """The rows as dicts: see ``Batch.rows``."""
        return self.batch().rows()

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The rows as a pyarrow.RecordBatch over the delivery's own bytes: see ``Batch.to_arrow``."""
        return self.batch().to_arrow()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The rows as PyCapsules, for any consumer of the Arrow PyCapsule protocol."""
        return self.batch().__arrow_c_array__(requested_schema)

    # ---- settling

    def ack(self, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Settlement | int:
        """Acknowledges it: its rows are done.

        With ``check``, any answer but CONFIRMED is raised as SettlementFailed. Raises UncertainError when the answer was lost, and
        DeadlineError or CancelledError when the wait ended first: then it may be settled, and settling again may tell.
        Raises RejectedError when the attachment that delivered it has ended: it comes again, unless a call before this one settled
        it (B-15, B-16).
        """
        return self._settle("acknowledged", lib.nx_delivery_ack, (), Limit(timeout, cancel), check)

    def retry(self, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Settlement | int:
        """Has it delivered again, unchanged, after the emitter's backoff. Raises what ``ack`` raises."""
        return self._settle("given back", lib.nx_delivery_retry, (), Limit(timeout, cancel), check)

    def reject(
        self, reason: str, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True
    ) -> Settlement | int:
        """Refuses it for good; its rows follow the emitter's ON MESSAGE ERROR.

        ``reason`` is 1 to 1,024 bytes of UTF-8 without sensitive values; InvalidArgumentError for any other. Raises what ``ack``
        raises.
        """
        data = encode(reason, "the reason")
        return self._settle("rejected", lib.nx_delivery_reject, (data, len(data)), Limit(timeout, cancel), check)

    def _settle(
        self, done: str, call: Callable[..., CData], arguments: tuple[object, ...], limit: Limit, check: bool
    ) -> Settlement | int:
        place = ffi.new("nx_settlement *")
        try:
            resumed = blocking(self._handle, call, limit, *arguments, TOKEN, place)
        except (UncertainError, RejectedError):
            self._life.settled = True  # As far as it can be: nothing more is owed.
            raise
        settlement = read(Settlement, int(place[0]))
        if resumed and settlement == Settlement.STALE_REFERENCE:
            raise UncertainError(
                f"a signal interrupted the settlement of {self!r} and its answer was lost: it may have been {done}, or it comes again"
            )
        self._settlement = settlement
        self._finalizer.detach()
        self._life.settled = True
        if check and settlement != Settlement.CONFIRMED:
            name = getattr(settlement, "name", settlement)
            raise SettlementFailed(
                f"{self!r} was not {done} by this call: {name}; it comes again unless it was settled before", settlement
            )
        return settlement


def _fixed(call: Callable[[CData, CData, CData], object], delivery: CData) -> bytes:
    pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    call(delivery, pointer, length)
    return read_bytes(pointer, length)


class Consumer(Endpoint):
    """Takes batches from an emitter. Made by ``Session.open_consumer``.

    Iterating it yields deliveries as they come, until it is closed. After its attachment was lost a read raises
    InterruptedReadError once, and the next one reads on: deliveries from before cannot be settled any more and come again (B-16).
    ReopenRequiredError ends it. Usable from several threads. Closing it settles nothing: what is unsettled comes again.
    """

    def __init__(self, session: Session, domain: str, name: str, pointer: CData, settle: Literal["manual", "auto"]) -> None:
        super().__init__(CONSUMER, session, domain, name, pointer)
        #: ``auto`` when the ``with`` block of a delivery settles it.
        self.settle = settle
        #: How often the attachment was lost: deliveries of an earlier one cannot be settled.
        self._epoch = 0
        #: What arrived and was not handed out yet, for example because a signal handler raised; the next reads get it.
        self._landed: deque[CData] = deque()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._handle.closed:
            return
        if kind is None:
            self.close()
        else:
            self._close_soon()

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        try:
            return self.next()
        except ClosedError:
            if self._ended:
                raise StopIteration from None
            raise

    def next(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Delivery:
        """The next delivery. ``timeout`` is in seconds; 0 takes what the emitter has ready.

        Raises DeadlineError when the time is over, CancelledError, InterruptedReadError, ReopenRequiredError, or ClosedError. Of
        several threads that wait here, one alone gets the InterruptedReadError, and the others wait on.
        """
        limit = Limit(timeout, cancel, MOMENT)
        while True:
            self._handle.check()
            with suppress(IndexError):
                return Delivery(self, self._landed.popleft())
            epoch = self._epoch
            with Out("nx_delivery", lib.nx_delivery_release, self._landed) as out:
                try:
                    self._call(lib.nx_consumer_next, limit, TOKEN, out.place, out=out)
                except InterruptedReadError:
                    self._epoch = epoch + 1
                    self._landed.clear()
                    raise
