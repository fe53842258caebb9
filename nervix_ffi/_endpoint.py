"""What producers and consumers have in common: how they are opened, what the open established, how they end.

Owns a handle's description and its closing. Must not know batches, submissions or deliveries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nervix_ffi._handle import TOKEN, Handle, blocking
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import Out, check, encode, read_bytes
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.enums import AckWindow, EndpointState, OpenRefusal, ReopenReason, read
from nervix_ffi.errors import Error, InvalidArgumentError, OpenRefused, RejectedError, ReopenRequiredError
from nervix_ffi.fields import FieldsLike, fields_of, native_fields
from nervix_ffi.schema import Schema, own_schema

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData
    from nervix_ffi.session import Session

__all__ = ["Endpoint", "Grant", "Kind", "Policy", "open_endpoint"]


@dataclass(frozen=True)
class Grant:
    """The credit that the server granted, and the limits of one batch. Bytes are those of Arrow IPC streams."""

    batches: int
    bytes: int
    max_batch_rows: int
    max_batch_bytes: int


@dataclass(frozen=True)
class Policy:
    """How an endpoint handles batches. ``outstanding`` is 1 for SEQUENTIAL; times are in nanoseconds."""

    window: AckWindow | int
    outstanding: int
    ack_timeout: int
    retry_backoff: int
    retry_max_backoff: int


@dataclass(frozen=True)
class Kind:
    """The functions of one kind of endpoint."""

    what: Literal["producer", "consumer"]
    open: Callable[..., CData]
    schema: Callable[[CData, CData], CData]
    generation: Callable[[CData], int]
    contract: Callable[[CData, CData, CData], object]
    grant: Callable[[CData, CData, CData, CData, CData], object]
    policy: Callable[[CData, CData, CData, CData, CData, CData], object]
    state: Callable[[CData], int]
    reopen_reason: Callable[[CData, CData, CData], bool]
    close: Callable[[CData, CData], CData]
    free: Callable[[CData], object]

    @property
    def c_type(self) -> str:
        """The library's type."""
        return f"nx_{self.what}"


class Endpoint:
    """A handle on an endpoint of the graph. What the open established never changes on it."""

    def __init__(self, kind: Kind, session: Session, domain: str, name: str, pointer: CData) -> None:
        self._kind = kind
        self._session = session
        self._handle = Handle(kind.what, pointer)
        self._ended = False
        self.domain = domain
        self.name = name
        with Out("nx_schema", lib.nx_schema_free) as out:
            check(kind.schema(pointer, out.place))
            #: The fields; batches are built from it.
            self.schema: Schema = own_schema(out.take())
        #: The START of the domain that the endpoint was opened in.
        self.generation = int(kind.generation(pointer))
        contract, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        kind.contract(pointer, contract, length)
        #: The 32-byte digest of the endpoint's contract.
        self.contract = read_bytes(contract, length)
        self.grant = _read_grant(kind, pointer)
        self.policy = _read_policy(kind, pointer)

    def __repr__(self) -> str:
        state = "released" if self._handle.closed else getattr(self.state, "name", self.state)
        return f"<{type(self).__name__} {self.domain}.{self.name} generation={self.generation} {state}>"

    @property
    def state(self) -> EndpointState | int:
        """What it is in now. Raises ClosedError after ``release``."""
        return read(EndpointState, self._handle.call(self._kind.state))

    @property
    def reopen_reason(self) -> ReopenReason | int | None:
        """Why it has to be opened anew; None unless its state is REOPEN_REQUIRED (B-16)."""
        return self._reopen()[0]

    @property
    def reopen_refusal(self) -> OpenRefusal | int | None:
        """How the server refused, when ``reopen_reason`` is REFUSED."""
        return self._reopen()[1]

    def _reopen(self) -> tuple[ReopenReason | int | None, OpenRefusal | int | None]:
        reason, refusal = ffi.new("nx_reopen_reason *"), ffi.new("nx_open_refusal *")
        if not self._handle.call(self._kind.reopen_reason, reason, refusal):
            return None, None
        found = read(ReopenReason, int(reason[0]))
        return found, read(OpenRefusal, int(refusal[0])) if found == ReopenReason.REFUSED else None

    def _call(self, function: Callable[..., CData], limit: Limit, *arguments: object, out: Out | None = None) -> bool:
        """Makes a call that waits: see ``blocking``. A ReopenRequiredError says why."""
        try:
            return blocking(self._handle, function, limit, *arguments, out=out)
        except ReopenRequiredError as failure:
            with suppress(Error):
                failure.reason, failure.refusal = self._reopen()
            raise

    def close(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> None:
        """Closes it and waits until the server released it. Nothing is settled by it, and nothing is lost.

        Raises DeadlineError or CancelledError when the wait ends first: closing goes on in the background. What is kept for this
        handle can still be read. Closing again does nothing.
        """
        self._ended = True
        self._call(self._kind.close, Limit(timeout, cancel), TOKEN)

    def _close_soon(self) -> None:
        """Closes it without waiting; what is kept for this handle can still be read."""
        with suppress(Error):
            self.close(timeout=0)

    def release(self) -> None:
        """Lets go of it without waiting: closes it, and forgets what is kept for it. Calls that wait in it raise ClosedError."""
        self._ended = True
        self._handle.close()


def _read_grant(kind: Kind, pointer: CData) -> Grant:
    batches, total = ffi.new("uint32_t *"), ffi.new("uint64_t *")
    rows, size = ffi.new("uint32_t *"), ffi.new("uint64_t *")
    kind.grant(pointer, batches, total, rows, size)
    return Grant(int(batches[0]), int(total[0]), int(rows[0]), int(size[0]))


def _read_policy(kind: Kind, pointer: CData) -> Policy:
    window, outstanding = ffi.new("nx_ack_window *"), ffi.new("uint64_t *")
    timeout, backoff, longest = (ffi.new("uint64_t *") for _ in range(3))
    kind.policy(pointer, window, outstanding, timeout, backoff, longest)
    return Policy(read(AckWindow, int(window[0])), int(outstanding[0]), int(timeout[0]), int(backoff[0]), int(longest[0]))


def _refused(failure: RejectedError) -> OpenRefused:
    refused = OpenRefused(*failure.args)
    refused.refusal = failure.refusal
    return refused


def open_endpoint(
    kind: Kind, session: Session, domain: str, name: str, fields: FieldsLike, batches: int, size: int, limit: Limit
) -> CData:
    """Opens an endpoint and returns the library's handle. Raises OpenRefused when the server refuses."""
    scope, endpoint = encode(domain, "the domain"), encode(name, f"the name of the {kind.what}'s endpoint")
    for value, bits, what in ((batches, 32, "batches"), (size, 64, "bytes")):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**bits:
            raise InvalidArgumentError(f"credit is a positive number of {what}, not {value!r}")
    with native_fields(fields_of(fields)) as described, Out(kind.c_type, kind.free) as out:
        try:
            blocking(
                session._handle,
                kind.open,
                limit,
                *(scope, len(scope), endpoint, len(endpoint), described, batches, size, TOKEN, out.place),
            )
        except RejectedError as failure:
            if failure.refusal is None:
                raise
            raise _refused(failure) from None
        return out.take()
