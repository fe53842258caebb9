"""Shares the clock events of a session among those who read them and those who sleep by a clock.

Clock events are coalesced, so what is kept for a reader is bounded by the domains: the newest of each kind. Owns who gets what. Must
not know where events come from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, MutableSequence
from typing import TYPE_CHECKING

from nervix_ffi._turns import Turns
from nervix_ffi._unbroken import ending, putting, run
from nervix_ffi.cancel import Limit
from nervix_ffi.clock_events import (
    ClockChanged,
    ClockEnded,
    ClockEvent,
    ClockInterrupted,
    ClockRestorationFailed,
    ClockTick,
    read_clock_event,
)
from nervix_ffi.enums import ClockState

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["ClockPump", "ClockQueue", "Sleeper"]


class ClockQueue:
    """Clock events that were read and not handed out yet. ``domain`` None takes those of every domain."""

    def __init__(self, domain: str | None = None) -> None:
        self.domain = domain
        self.over = False
        self._events: list[ClockEvent] = []

    def putting(self, event: ClockEvent) -> Iterable[object]:
        """The steps that keep an event in place of those that it makes old (K-3)."""
        ticks = [kept for kept in self._events if isinstance(kept, ClockTick) and kept.domain == event.domain]
        events = [kept for kept in self._events if kept not in ticks and not _replaces(event, kept)]
        events.append(event)
        # A tick goes with its clock: never handed out before it, and worth nothing after another.
        events += [tick for tick in ticks if _outlives(tick, event)]
        return putting(self, "_events", events)

    def put(self, event: ClockEvent) -> None:
        """Keeps an event."""
        run(self.putting(event))

    def take(self) -> ClockEvent | None:
        """The oldest event kept."""
        return self._events.pop(0) if self._events else None

    def of(self, domain: str) -> list[ClockEvent]:
        """Every event of one domain."""
        return [event for event in self._events if event.domain == domain]

    def forget(self, domain: str) -> None:
        """Takes out every event of one domain."""
        self._events = [event for event in self._events if event.domain != domain]

    def clear(self) -> None:
        """Forgets what is kept."""
        self._events = []


def _replaces(new: ClockEvent, old: ClockEvent) -> bool:
    return new.domain == old.domain and (type(new) is type(old) or isinstance(new, ClockEnded))


def _outlives(tick: ClockTick, event: ClockEvent) -> bool:
    if isinstance(event, ClockChanged):
        return event.state == ClockState.PACED and event.generation == tick.generation
    return isinstance(event, ClockRestorationFailed)


class Sleeper:
    """One sleep by a clock. ``woken`` once the clock is another, is lost, or is followed no longer; ``lost`` while it is lost."""

    def __init__(self, domain: str, same: Callable[[ClockChanged], bool]) -> None:
        self.domain = domain
        self.lost = False
        self.woken = False
        self._same = same
        self._event: ClockEvent | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing to sleep for."""
        return self.woken

    def take(self) -> ClockEvent | None:
        """The event that says something about this clock, so that the sleeper looks at it again."""
        event, self._event = self._event, None
        return event

    def hear(self, event: ClockEvent) -> None:
        """An event of the domain."""
        if isinstance(event, ClockChanged):
            self.woken = self.woken or not self._same(event)
        elif isinstance(event, (ClockEnded, ClockInterrupted)):
            self.woken = True
        if self.lost and isinstance(event, (ClockChanged, ClockTick)):
            self.lost = False
            self._event = event


class ClockPump(Turns[ClockEvent]):
    """Who reads a session's clock events."""

    def __init__(self, read: Callable[[Limit, MutableSequence[CData]], None]) -> None:
        super().__init__(read, read_clock_event)
        self._queues: dict[str, weakref.ref[ClockQueue]] = {}
        #: Those and the ones that had their place before: whoever reads them comes back when the clock is followed no longer.
        self._readers: dict[str, weakref.WeakSet[ClockQueue]] = {}
        self._sleepers: dict[Sleeper, None] = {}
        #: Domains whose clock is lost for now (B-11).
        self._lost: set[str] = set()
        #: Events of domains that no object reads, kept for whoever asks for any event.
        self.unclaimed = ClockQueue()

    def attach(self, queue: ClockQueue) -> None:
        """Routes the events of the queue's domain to it, those that were read already included."""
        self.check()
        assert queue.domain is not None
        with self._lock:
            self._sort()
            for event in self.unclaimed.of(queue.domain):
                queue.put(event)
            self._queues[queue.domain] = weakref.ref(queue)
            self._readers.setdefault(queue.domain, weakref.WeakSet()).add(queue)
            self.unclaimed.forget(queue.domain)
        run(self._ringing())

    def detach(self, queue: ClockQueue) -> None:
        """Ends a queue: its reader comes back, its events are forgotten."""
        queue.over = True
        if self.inherited:
            return
        with self._lock:
            queue.clear()
            if queue.domain is not None and self._queue_of(queue.domain) is queue:
                self._queues.pop(queue.domain, None)
        self._call_back(queue)

    def _queue_of(self, domain: str) -> ClockQueue | None:
        known = self._queues.get(domain)
        return None if known is None else known()

    def sleeper(self, domain: str, same: Callable[[ClockChanged], bool]) -> Sleeper:
        """A place for one sleep by a clock; ``same`` says whether a change leaves it as it is."""
        self.check()
        return Sleeper(domain, same)

    def sleeping(self, sleeper: Sleeper) -> CData:
        """``with sleeping(sleeper):`` ends what ``hear`` in the block begins."""
        return ending(map(self._sleepers.pop, (sleeper,), (None,)))

    def hear(self, sleeper: Sleeper) -> None:
        """Has a sleeper hear what happens to its clock from here on."""
        with self._lock:
            sleeper.lost = sleeper.domain in self._lost
            self._sleepers[sleeper] = None

    def forget(self, domain: str) -> None:
        """The session follows the clock of the domain no longer: whoever sleeps by it or reads it comes back."""
        if self.inherited:
            return
        with self._lock:
            self._lost.discard(domain)
            self.unclaimed.forget(domain)
            queues = list(self._readers.pop(domain, ()))
            woken = [sleeper for sleeper in self._sleepers.copy() if sleeper.domain == domain]
            for sleeper in woken:
                sleeper.woken = True
        for sleeper in woken:
            self._call_back(sleeper)
        for queue in queues:
            self.detach(queue)

    def _route(self, event: ClockEvent) -> Iterable[object]:
        if isinstance(event, ClockInterrupted):
            self._lost.add(event.domain)
        elif not isinstance(event, ClockRestorationFailed):
            self._lost.discard(event.domain)
        for sleeper in self._sleepers.copy():
            if sleeper.domain == event.domain:
                sleeper.hear(event)
        return (self._queue_of(event.domain) or self.unclaimed).putting(event)
