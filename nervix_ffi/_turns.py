"""Shares one call that waits among several readers.

One reader at a time waits in the library; what it reads is routed to whom it belongs, and the others are woken. Owns who waits.
Must not know what is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from nervix_ffi._handle import closed_error
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.errors import CancelledError, DeadlineError

__all__ = ["Place", "Turns"]

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Place(Protocol[E_co]):
    """Where a reader finds what was read for it. ``over`` means that nothing comes any more."""

    @property
    def over(self) -> bool:
        """Whether nothing comes any more."""

    def take(self) -> E_co | None:
        """The oldest thing kept, None when there is none."""


@dataclass(frozen=True)
class _Turn:
    """Who waits in the library, and how to call it back."""

    place: Place[object]
    cancel: Cancel


class Turns(Generic[E]):
    """Who reads what ``read`` waits for. A subclass says where each thing goes."""

    def __init__(self, read: Callable[[Limit], E]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._turn: _Turn | None = None
        self._closed = False

    def _route(self, event: E) -> None:
        """Puts what was read where it belongs. The lock is held."""
        raise NotImplementedError

    def close(self) -> None:
        """Wakes every reader; the session is over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def keep(self, event: E) -> None:
        """Gives what was read to whom it belongs."""
        with self._changed:
            self._route(event)
            self._changed.notify_all()

    def next(self, place: Place[E], limit: Limit) -> E | None:
        """What the place gets next; None when it is over. Raises DeadlineError, CancelledError or ClosedError."""
        limit.listen(self._wake)
        try:
            while True:
                found = self._wait(place, limit)
                if not isinstance(found, _Turn):
                    return found
                try:
                    self._take_turn(found, limit)
                finally:
                    with self._changed:
                        self._turn = None
                        self._changed.notify_all()
        finally:
            limit.unlisten(self._wake)

    def _call_back(self, place: Place[E]) -> None:
        """Ends the wait of a place that is over. The lock is not held."""
        with self._changed:
            turn = self._turn
            self._changed.notify_all()
        if turn is not None and turn.place is place:
            turn.cancel.trigger()

    def _take_turn(self, turn: _Turn, limit: Limit) -> None:
        """Waits in the library for one event, of any reader."""
        limit.listen(turn.cancel.trigger)
        try:
            self.keep(self._read(Limit.until(limit.deadline, turn.cancel)))
        except CancelledError:
            if not turn.place.over:
                raise
        finally:
            limit.unlisten(turn.cancel.trigger)

    def _wait(self, place: Place[E], limit: Limit) -> E | _Turn | None:
        """An event that is there, None when the place is over, or a turn when it is this thread's."""
        with self._changed:
            while True:
                if place.over:
                    return None
                if self._closed:
                    raise closed_error("the session was closed")
                if (event := place.take()) is not None:
                    return event
                if limit.triggered:
                    raise CancelledError("the wait for an event was cancelled")
                if self._turn is None:
                    self._turn = _Turn(place, Cancel())
                    return self._turn
                remaining = limit.remaining()
                if remaining == 0.0:
                    raise DeadlineError("no event arrived in time")
                self._changed.wait(remaining)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
