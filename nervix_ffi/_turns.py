"""Shares one call that waits among several readers.

One reader at a time waits in the library; what it reads is routed to whom it belongs, and the others are woken. Owns who waits.
Must not know what is read.

A signal handler may raise anywhere in here, so nothing is held that is not given back by C: see ``_unbroken``. What was read lies in
one queue until it is routed, and both happen in one piece.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat, starmap
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from nervix_ffi._handle import closed_error, forked_error, process
from nervix_ffi._unbroken import ending, run
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.errors import CancelledError, DeadlineError, Error

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

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
    thread: int


#: What wakes one reader. Each ring wakes it once, also one that came before it waited.
_Bell: TypeAlias = "SimpleQueue[None]"


class Turns(Generic[E]):
    """Who reads what ``read`` waits for and puts into the queue it is given. ``parse`` makes something of it; a subclass says
    where that goes.
    """

    def __init__(self, read: Callable[[Limit, MutableSequence[CData]], None], parse: Callable[[CData], E]) -> None:
        self._read = read
        self._parse = parse
        self._process = process()
        # Reentrant, because a signal handler may itself read.
        self._lock = threading.RLock()
        self._landed: deque[CData] = deque()
        #: How much was routed.
        self._routed = 0
        self._waiting: dict[_Bell, None] = {}
        self._turns: dict[_Bell, _Turn] = {}
        self._closed = False

    def _route(self, event: E) -> Iterable[object]:
        """The steps that put what was read where it belongs. The lock is held. It may be asked again for the same event."""
        raise NotImplementedError

    @property
    def inherited(self) -> bool:
        """Whether this process is a child that inherited it. Its lock may then be held by a thread that did not come along."""
        return self._process != process()

    def check(self) -> None:
        """Raises ClosedError in a child of a fork."""
        if self.inherited:
            raise forked_error("session")

    def close(self) -> None:
        """Wakes every reader; the session is over."""
        if not self.inherited:
            self._closed = True
            run(self._ringing())

    def next(self, place: Place[E], limit: Limit) -> E | None:
        """What the place gets next; None when it is over. Raises DeadlineError, CancelledError or ClosedError."""
        self.check()
        bell: _Bell = SimpleQueue()
        turn = _Turn(place, Cancel(), threading.get_ident())
        with ending(
            map(self._waiting.pop, (bell,), (None,)),
            map(self._turns.pop, (bell,), (None,)),
            limit.unlistening(bell),
            self._ringing(),
        ):
            self._waiting[bell] = None
            limit.listen(bell, partial(run, chain(map(bell.put, (None,)), starmap(turn.cancel.trigger, ((),)))))
            while True:
                with self._lock:
                    if self._sort():
                        self._ring_others(bell)
                    if place.over:
                        return None
                    if self._closed:
                        raise closed_error("the session was closed")
                    if (event := place.take()) is not None:
                        return event
                    if limit.triggered:
                        raise CancelledError("the wait for an event was cancelled")
                    # A turn of this very thread is that of a call which a signal handler interrupted to make this one.
                    if mine := all(other.thread == turn.thread for other in self._turns.copy().values()):
                        self._turns[bell] = turn
                remaining = limit.remaining()
                if mine:
                    self._wait_in_library(turn, limit)
                elif remaining == 0.0:
                    raise DeadlineError("no event arrived in time")
                else:
                    with suppress(Empty):
                        bell.get(timeout=remaining)

    def sorted(self) -> int:
        """Routes what was read, and says how much that was so far."""
        with self._lock:
            if self._sort():
                run(self._ringing())
            return self._routed

    def _wait_in_library(self, turn: _Turn, limit: Limit) -> None:
        try:
            self._read(Limit.until(limit.deadline, turn.cancel), self._landed)
        except CancelledError:
            if not turn.place.over:
                raise

    def _sort(self) -> bool:
        """Routes what was read. The lock is held."""
        found = bool(self._landed)
        while self._landed:
            forgetting = starmap(self._landed.popleft, ((),))
            try:
                event = self._parse(self._landed[0])
            except Error:
                run(forgetting)
                raise
            self._routed += 1
            run(chain(self._route(event), forgetting))
        return found

    def _call_back(self, place: Place[E]) -> None:
        """Ends the wait of a place that is over."""
        run(self._ringing())
        for turn in self._turns.copy().values():
            if turn.place is place:
                turn.cancel.trigger()

    def _ringing(self) -> Iterable[object]:
        """The steps that wake every reader."""
        return map(SimpleQueue.put, chain.from_iterable(starmap(self._waiting.copy, ((),))), repeat(None))

    def _ring_others(self, bell: _Bell) -> None:
        for other in self._waiting.copy():
            if other is not bell and other.empty():
                other.put(None)
