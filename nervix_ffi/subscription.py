"""Subscriptions: reading the rows of a relay as they pass."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from nervix_ffi._pump import Channel
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.errors import ClosedError, InvalidArgumentError
from nervix_ffi.events import Ended, Event
from nervix_ffi.schema import Schema

if TYPE_CHECKING:
    from nervix_ffi.outcome import Outcome
    from nervix_ffi.session import Session

__all__ = ["Subscription", "subscribe_statement"]

_STATEMENT = re.compile(r"\s*CREATE\s+SUBSCRIPTION\b", re.IGNORECASE)
_NAME = re.compile(r"\w+")


def subscribe_statement(
    source: str, *, where: str | None, name: str | None, delivery: str | None, sample_rate: float | None
) -> str:
    """The CREATE SUBSCRIPTION statement for a relay, or ``source`` when it is one. Raises InvalidArgumentError."""
    options = {"where": where, "name": name, "delivery": delivery, "sample_rate": sample_rate}
    if _STATEMENT.match(source):
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
        if not 0 < sample_rate <= 1:
            raise InvalidArgumentError(f"sample_rate is a share above 0 and up to 1, not {sample_rate!r}")
        words.append(f"BATCH SAMPLE RATE {float(sample_rate):f}".rstrip("0").rstrip("."))
    if where is not None:
        words.append(f"WHERE {where}")
    return " ".join(words) + ";"


class Subscription:
    """A subscription of a session.

    Iterating it yields its events as they come: Rows, and between them the gaps (DeliveryLost, RowsSkipped, Interrupted, Overflow,
    RestorationFailed), until Ended, which is the last one, or until it is deleted. Rows can be missed and can be delivered again
    after a gap; there is no position to resume from. ``name``, ``generation`` and ``schema`` are those it was opened with: an
    interruption gives it another generation, and each Rows event has the schema of its own.

    Several subscriptions of one session may be read by several threads. While one is not read, what others read for it waits in
    a bounded queue; what does not fit is reported as DeliveryLost with ``local`` true (S-8).

    A ``with`` block deletes it at its end, unless an exception ends the block: then its reading just stops.
    """

    def __init__(self, session: Session, name: str, generation: int, schema: Schema) -> None:
        self._session = session
        self._channel = Channel(name, generation)
        self._attached = False
        self._finished = False
        self.name = name
        self.generation = generation
        self.schema = schema

    def __repr__(self) -> str:
        return f"<Subscription {self.name} generation={self.generation}>"

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
        """The next event. Raises DeadlineError after ``timeout`` seconds, CancelledError, and ClosedError when none can come."""
        event = self._next(Limit(timeout, cancel))
        if event is None:
            raise ClosedError(f"subscription {self.name} is over: it ended or was deleted; subscribe again")
        return event

    def _next(self, limit: Limit) -> Event | None:
        if self._finished:
            return None
        if not self._attached:
            self._session._pump.attach(self._channel)
            self._attached = True
        event = self._session._pump.next(self._channel, limit)
        if event is None or isinstance(event, Ended):
            self.close()
        return event

    def close(self) -> None:
        """Stops reading, here only: the server is told nothing, and a thread that waits in this object comes back."""
        self._finished = True
        self._session._pump.detach(self._channel)

    def delete(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome | None:
        """Deletes the subscription on the server and stops reading it. None when it was over already.

        Raises what ``Session.execute`` raises; it goes on then.
        """
        if self._finished:
            return None
        outcome = self._session.execute(f"DELETE SUBSCRIPTION {self.name};", timeout=timeout, cancel=cancel)
        self.close()
        return outcome
