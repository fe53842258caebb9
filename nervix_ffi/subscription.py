"""Subscriptions: reading the rows of a relay as they pass."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING

from nervix_ffi._pump import Channel
from nervix_ffi._statement import statement_of
from nervix_ffi._told import named
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.errors import ClosedError, CommandFailed, DeadlineError, InvalidArgumentError
from nervix_ffi.events import Ended, Event
from nervix_ffi.schema import Schema

if TYPE_CHECKING:
    from nervix_ffi.outcome import Outcome
    from nervix_ffi.session import Session

__all__ = ["Subscription", "subscribe_statement"]

#: How long the end of a subscription that the server no longer has may take to be read, in seconds; it is there already.
PATIENCE = 1.0

_STATEMENT = re.compile(r"\s*CREATE\s+SUBSCRIPTION\b", re.IGNORECASE)
_NAME = re.compile(r"\w+")


def subscribe_statement(
    source: str, *, where: str | None, name: str | None, delivery: str | None, sample_rate: float | Decimal | None
) -> str:
    """The CREATE SUBSCRIPTION statement for a relay, or ``source`` when it is one. Raises InvalidArgumentError."""
    options = {"where": where, "name": name, "delivery": delivery, "sample_rate": sample_rate}
    if not isinstance(source, str):
        raise TypeError(f"source is the name of a relay or a CREATE SUBSCRIPTION statement (str), not {type(source).__name__}")
    for option, value in (("where", where), ("name", name), ("delivery", delivery)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{option} is text (str), not {type(value).__name__}")
    if _STATEMENT.match(statement_of(source)):
        given = ", ".join(option for option, value in options.items() if value is not None)
        if given:
            raise InvalidArgumentError(f"a whole statement goes without {given}; write it into the statement")
        return source
    for text, what in ((source, "relay"), (name, "subscription")):
        if text is not None and not _NAME.fullmatch(text):
            raise InvalidArgumentError(f"{text!r} is no name of a {what}; pass a name, or a whole CREATE SUBSCRIPTION statement")
    words = [f"CREATE SUBSCRIPTION {name or f's_{uuid.uuid4().hex}'} TO {source}"]
    if delivery is not None:
        if delivery not in ("BLOCKING", "DROPPING"):
            raise InvalidArgumentError(f"delivery is 'BLOCKING' or 'DROPPING', not {delivery!r}")
        words.append(delivery)
    if sample_rate is not None:
        words.append(f"BATCH SAMPLE RATE {_share(sample_rate)}")
    if where is not None:
        words.append(f"WHERE {where}")
    return " ".join(words) + ";"


def _share(rate: float | Decimal) -> str:
    """A sample rate in decimals: for a float the shortest that are this float, never others."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float, Decimal)):
        raise TypeError(f"sample_rate is a number, not {type(rate).__name__}")
    if not 0 < rate <= 1:
        raise InvalidArgumentError(f"sample_rate is a share above 0 and up to 1, not {rate!r}")
    return f"{rate if isinstance(rate, Decimal) else Decimal(repr(float(rate))):f}"


class Watch:
    """A place that is over once a channel has its last event; it takes nothing."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def over(self) -> bool:
        """Whether the subscription is over."""
        return self._channel.gone or self._channel.ended()

    def take(self) -> Event | None:
        """Nothing."""
        return None


class Subscription:
    """A subscription of a session.

    Iterating it yields its events as they come: Rows, and between them the gaps (DeliveryLost, RowsSkipped, Interrupted, Overflow,
    RestorationFailed), until Ended, which is the last one, or until it is deleted. Rows can be missed and can be delivered again
    after a gap; there is no position to resume from. ``name``, ``generation`` and ``schema`` are those it was opened with: an
    interruption gives it another generation, and each Rows event has the schema of its own.

    Several subscriptions of one session may be read by several threads. While one is not read, what others read for it waits in
    a bounded queue; what does not fit is reported as DeliveryLost with ``local`` true (S-8).

    A ``with`` block deletes it at its end, unless an exception ends the block: then its reading just stops. Letting go of the object
    does not delete it either: it goes on until ``delete``, or the end of its session, and what arrives for it waits there, bounded.
    """

    def __init__(self, session: Session, name: str, generation: int, schema: Schema, since: int = 0) -> None:
        self._session = session
        self._channel = Channel(name, generation, since)
        self._attached = False
        self._ended = False
        self.name = name
        self.generation = generation
        self.schema = schema
        session._pump.opened(self._channel)

    def __repr__(self) -> str:
        return f"<Subscription {named(self.name)} generation={self.generation}>"

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._session.closed:
            self.delete()
        else:
            self.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        event = self._next(Limit(None, None))
        if event is None:
            raise StopIteration
        return event

    def next(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Event:
        """The next event. ``timeout`` is in seconds; 0 takes what has arrived.

        Raises DeadlineError when the time is over, CancelledError, and ClosedError when none can come.
        """
        event = self._next(Limit(timeout, cancel, MOMENT))
        if event is None:
            raise ClosedError(f"subscription {self.name} is over: it ended, was deleted or was closed; subscribe again")
        return event

    def _next(self, limit: Limit) -> Event | None:
        if self._channel.stopped or self._ended:
            return None
        if not self._attached:
            self._session._pump.attach(self._channel)
            self._attached = True
        event = self._session._pump.next(self._channel, limit)
        if isinstance(event, Ended):
            self._ended = True
            self.close()
        return event

    def close(self) -> None:
        """Stops reading, here only: a thread that waits in this object comes back.

        The server is told nothing and goes on; ``delete`` still deletes the subscription there.
        """
        self._session._pump.detach(self._channel)

    def delete(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome | None:
        """Deletes the subscription on the server and stops reading it. None when it was over already.

        Raises what ``Session.execute`` raises; it goes on then.
        """
        if self._ended or self._channel.gone:
            self.close()
            return None
        try:
            outcome = self._session.execute(f"DELETE SUBSCRIPTION {self.name};", timeout=timeout, cancel=cancel)
        except CommandFailed:
            if not self._over_meanwhile():
                raise
            outcome = None
        self._ended = True
        self.close()
        return outcome

    def _over_meanwhile(self) -> bool:
        """Whether the server has ended it, which it says before it refuses to delete it."""
        if not self._attached:
            self._session._pump.attach(self._channel)
            self._attached = True
        seen = Watch(self._channel)
        with suppress(DeadlineError):
            self._session._pump.next(seen, Limit(PATIENCE, None))
        return seen.over
