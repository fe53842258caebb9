"""Sessions: connecting, commands, subscriptions, completion."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal

from nervix_ffi._handle import Handle, blocking
from nervix_ffi._library import extension, lib, library
from nervix_ffi._native import NULL, Out, check, encode, optional, read_text
from nervix_ffi._pump import Pump
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.completion import Suggestions, read_suggestions
from nervix_ffi.enums import Disposition
from nervix_ffi.errors import CommandFailed, CommandNotCompleted, Error, InvalidArgumentError, UncertainError, UnsupportedError
from nervix_ffi.events import Event, SchemaCache, read_event
from nervix_ffi.outcome import Outcome, read_outcome
from nervix_ffi.subscription import Subscription, subscribe_statement

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Execution", "Session", "connect"]


class Execution:
    """One logical command: its text, the domain selected when it was prepared, and its reference.

    Running it again recovers what it did instead of doing it twice. After UncertainError, CancelledError or DeadlineError run the
    same object again; a new one for the same text is another command (B-1).
    """

    def __init__(self, session: Session, query: str, pointer: CData) -> None:
        self._session = session
        self._handle = Handle("execution", pointer, lib.nx_execution_free)
        weakref.finalize(self, self._handle.close)
        self.query = query
        self.reference = read_text(lambda place, size: lib.nx_execution_reference(pointer, place, size))

    def __repr__(self) -> str:
        return f"<Execution {self.reference} of {self.query!r}>"

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of it. Running it afterwards raises ClosedError."""
        self._handle.close()

    def run(self, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Runs the command, or recovers what it did, and returns its outcome.

        ``timeout`` is in seconds. With ``check``, an outcome that is not COMPLETED is raised: CommandFailed for FAILED,
        UncertainError for OUTCOME_UNKNOWN, CommandNotCompleted for any other. Raises UncertainError, DeadlineError or
        CancelledError when the command may have happened (the error names ``reference`` and carries this ``execution``),
        ClosedError, ConnectError, TransportError, RejectedError or ProtocolError.
        """
        return self._session._run(self, Limit(timeout, cancel), check)


class Session:
    """A session with a Nervix cluster. Made by ``connect``.

    Usable from several threads; its commands run one after the other. It outlives its connections as far as the protocol allows:
    commands are recovered under their reference, subscriptions are opened again with a gap reported. Nothing is rolled back by
    closing it.
    """

    def __init__(self, pointer: CData) -> None:
        self._handle = Handle("session", pointer, lib.nx_session_free)
        self._schemas = SchemaCache()
        self._pump = Pump(_reader(weakref.ref(self)))
        weakref.finalize(self, self._handle.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._handle.closed

    def close(self) -> None:
        """Closes the session; calls that wait in it raise ClosedError. Never waits; closing again does nothing.

        What was read from it stays valid.
        """
        self._handle.close()
        self._pump.close()

    # ---- commands

    def prepare(self, query: str, *, timeout: float | None = None, cancel: Cancel | None = None) -> Execution:
        """Fixes a command: its text, the selected domain and a new reference. Sends nothing.

        Raises InvalidArgumentError for an empty text or one that has no UTF-8.
        """
        return self._prepare(query, Limit(timeout, cancel))

    def execute(self, query: str, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Prepares a command and runs it: see ``Execution.run``. An error's ``execution`` is the command to run again."""
        limit = Limit(timeout, cancel)
        return self._run(self._prepare(query, limit), limit, check)

    def use(self, domain: str, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome:
        """Selects the domain of later commands."""
        return self.execute(f"USE {domain};", timeout=timeout, cancel=cancel)

    def _prepare(self, query: str, limit: Limit) -> Execution:
        data = encode(query, "the command")
        with Out("nx_execution", lib.nx_execution_free) as out:
            # Preparing sends nothing: a limit that is over already is left for the run to report, with the reference.
            over = limit.triggered or limit.remaining() == 0.0
            blocking(
                self._handle,
                lambda session, token: partial(lib.nx_session_prepare, session, data, len(data), token, out.place),
                Limit(None, None) if over else limit,
            )
            return Execution(self, query, out.take())

    def _run(self, execution: Execution, limit: Limit, check: bool) -> Outcome:
        with Out("nx_outcome", lib.nx_outcome_free) as out, execution._handle as command:
            try:
                blocking(
                    self._handle,
                    lambda session, token: partial(lib.nx_session_execute, session, command, token, out.place),
                    limit,
                )
            except Error as failure:
                failure.execution = execution
                raise
            outcome = read_outcome(out.pointer)
        if check and not outcome.completed:
            raise _not_completed(execution, outcome)
        return outcome

    # ---- subscriptions

    def subscribe(
        self,
        source: str,
        *,
        where: str | None = None,
        name: str | None = None,
        delivery: Literal["BLOCKING", "DROPPING"] | None = None,
        sample_rate: float | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Subscription:
        """Subscribes to a relay of the selected domain.

        ``source`` is the relay's name, or a whole CREATE SUBSCRIPTION statement, which goes without the other options. ``where``
        is the condition that rows must meet, as a statement spells it; ``name`` the subscription's name, unique in the session
        (made up when absent); ``delivery`` BLOCKING to hold the relay back when reading is slow, DROPPING (the server's default)
        to lose rows instead, reported; ``sample_rate`` the share of batches to take, above 0 and up to 1. ``timeout`` is in
        seconds. Rows that passed before it opened, or while it is interrupted, are not delivered. Raises CommandFailed when
        the server refuses, and whatever ``Execution.run`` raises.
        """
        statement = subscribe_statement(source, where=where, name=name, delivery=delivery, sample_rate=sample_rate)
        outcome = self.execute(statement, timeout=timeout, cancel=cancel)
        if outcome.subscription is None or outcome.schema is None:
            raise InvalidArgumentError(f"the command completed and opened no subscription: {statement}")
        return Subscription(self, outcome.subscription.name, outcome.subscription.generation, outcome.schema)

    def next_event(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Event:
        """The next event of any subscription that is not read through its Subscription object.

        A Subscription takes its events from here from the first time that it is read. Waits through losses of the connection.
        Raises DeadlineError after ``timeout`` seconds, CancelledError, or ClosedError.
        """
        event = self._pump.next(self._pump.unclaimed, Limit(timeout, cancel))
        assert event is not None, "the channel of the session itself is never over"
        return event

    def events(self, *, cancel: Cancel | None = None) -> Iterator[Event]:
        """The events that ``next_event`` returns, without end; raises what it raises."""
        while True:
            yield self.next_event(cancel=cancel)

    def _read_event(self, limit: Limit) -> Event:
        with Out("nx_event", lib.nx_event_release) as out:
            try:
                blocking(
                    self._handle, lambda session, token: partial(lib.nx_session_next_event, session, token, out.place), limit
                )
                return read_event(out.pointer, self._schemas)
            except BaseException:
                if out.pointer != NULL:
                    # It arrived together with a signal whose handler raised: the next reader gets it.
                    with suppress(Error):
                        self._pump.keep(read_event(out.pointer, self._schemas))
                raise

    # ---- completion

    def suggest(
        self,
        text: str,
        cursor: int | None = None,
        *,
        page_size: int = 20,
        continuation: str | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Suggestions:
        """Completions of ``text`` at ``cursor``, a position in characters (its end when absent).

        ``page_size`` is 1 to 100; ``continuation`` comes from the page before. Raises InvalidArgumentError for a cursor outside of the
        text or another page size.
        """
        data = encode(text, "the text to complete")
        at = len(text) if cursor is None else cursor
        if not 0 <= at <= len(text):
            raise InvalidArgumentError(f"the cursor {at} is outside of the text, which has {len(text)} characters")
        if not 1 <= page_size <= 100:
            raise InvalidArgumentError(f"a page has 1 to 100 completions, not {page_size}")
        token_text, token_len = optional(continuation, "the continuation")
        offset = len(text[:at].encode("utf-8"))
        with Out("nx_suggestions", lib.nx_suggestions_free) as out:
            blocking(
                self._handle,
                lambda session, token: partial(
                    lib.nx_session_suggest, session, data, len(data), offset, page_size, token_text, token_len, token, out.place
                ),
                Limit(timeout, cancel),
            )
            return read_suggestions(out.pointer, text)


class _reader:  # noqa: N801 - a function with a weak reference
    """Reads events of a session without keeping it alive."""

    __slots__ = ("_session",)

    def __init__(self, session: weakref.ref[Session]) -> None:
        self._session = session

    def __call__(self, limit: Limit) -> Event:
        session = self._session()
        assert session is not None, "who waits for events holds the session"
        return session._read_event(limit)


def _not_completed(execution: Execution, outcome: Outcome) -> Error:
    failure: Error
    if outcome.disposition == Disposition.OUTCOME_UNKNOWN:
        uncertain = UncertainError(
            f"the server does not know what became of the command with reference {outcome.reference}; it may have happened: "
            f"run the same execution again to learn it ({outcome.message})"
        )
        uncertain.outcome = outcome
        uncertain.reference = outcome.reference
        failure = uncertain
    elif outcome.disposition == Disposition.FAILED:
        failure = CommandFailed(execution.query, outcome)
    else:
        failure = CommandNotCompleted(execution.query, outcome)
    failure.execution = execution
    return failure


def _milliseconds(seconds: float, what: str) -> int:
    value = round(float(seconds) * 1000) if seconds == seconds and abs(seconds) < 1e12 else 0
    if value < 1:
        raise InvalidArgumentError(f"{what} is a number of seconds, at least 0.001; {seconds!r} is not")
    return value


def _options(seeds: Iterable[str], request_timeout: float | None, retry_timeout: float | None) -> Handle:
    if isinstance(seeds, str):
        raise TypeError("seeds is a sequence of server origins, not one text")
    servers = [encode(seed, "a seed") for seed in seeds]
    if not extension("connect_options"):
        if servers or request_timeout is not None or retry_timeout is not None:
            raise UnsupportedError(
                "seeds, request_timeout and retry_timeout need a library with the connect_options extension, which "
                f"{library().path} lacks; connect without them"
            )
        return Handle("connect options", NULL, lambda _: None)
    options = Handle("connect options", lib.nxx_connect_options_new(), lib.nxx_connect_options_free)
    try:
        with options as pointer:
            for server in servers:
                check(lib.nxx_connect_options_add_seed(pointer, server, len(server)))
            if request_timeout is not None:
                check(lib.nxx_connect_options_request_timeout(pointer, _milliseconds(request_timeout, "request_timeout")))
            if retry_timeout is not None:
                check(lib.nxx_connect_options_retry_timeout(pointer, _milliseconds(retry_timeout, "retry_timeout")))
    except BaseException:
        options.close()
        raise
    return options


def connect(
    server: str,
    *,
    username: str | None = None,
    password: str | None = None,
    domain: str | None = None,
    seeds: Iterable[str] = (),
    request_timeout: float | None = None,
    retry_timeout: float | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> Session:
    """Opens a session.

    ``server`` is an http or https origin, for example ``http://127.0.0.1:47391``. ``username`` and ``password`` come both or not at
    all. ``domain`` is the domain of later commands. ``seeds`` are more servers to try, now and after a loss of the connection;
    ``request_timeout`` bounds the wait for one reply and ``retry_timeout`` one call with all its retries and redirects (seconds,
    120 each unless given). ``timeout`` bounds this call, in seconds.

    Raises InvalidArgumentError for a malformed origin or half a pair of credentials, ConnectError when no server answers or the
    credentials are refused, DeadlineError, CancelledError, and UnsupportedError when the library lacks the options asked for.
    """
    limit = Limit(timeout, cancel)
    origin = encode(server, "the server")
    scope, scope_len = optional(domain, "the domain")
    user, user_len = optional(username, "the username")
    secret, secret_len = optional(password, "the password")
    options = _options(seeds, request_timeout, retry_timeout)
    try:
        with Out("nx_session", lib.nx_session_free) as out, options as pointer:

            def call(_: CData, token: CData) -> partial[CData]:
                if pointer == NULL:
                    return partial(
                        lib.nx_session_connect,
                        origin,
                        len(origin),
                        scope,
                        scope_len,
                        user,
                        user_len,
                        secret,
                        secret_len,
                        token,
                        out.place,
                    )
                return partial(
                    lib.nxx_session_connect,
                    origin,
                    len(origin),
                    scope,
                    scope_len,
                    user,
                    user_len,
                    secret,
                    secret_len,
                    pointer,
                    token,
                    out.place,
                )

            blocking(None, call, limit)
            return Session(out.take())
    finally:
        options.close()
