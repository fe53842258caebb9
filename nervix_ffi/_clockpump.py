"""Shares the clock events of a session among those who read them and those who sleep by a clock.

Clock events are coalesced, so what is kept for a reader is bounded by the domains: the newest of each kind. Owns who gets what. Must
not know where events come from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nervix_ffi._turns import Turns
from nervix_ffi.cancel import Limit
from nervix_ffi.clock_events import ClockChanged, ClockEnded, ClockEvent, ClockInterrupted, ClockRestorationFailed, ClockTick
from nervix_ffi.enums import ClockState

__all__ = ["ClockPump", "ClockQueue", "Sleeper"]


class ClockQueue:
    """Clock events that were read and not handed out yet. ``domain`` None takes those of every domain."""

    def __init__(self, domain: str | None = None) -> None:
        self.domain = domain
        self.over = False
        self._events: list[ClockEvent] = []

    def put(self, event: ClockEvent) -> None:
        """Keeps an event in place of those that it makes old (K-3)."""
        ticks = [kept for kept in self._events if isinstance(kept, ClockTick) and kept.domain == event.domain]
        self._events = [kept for kept in self._events if kept not in ticks and not _replaces(event, kept)]
        self._events.append(event)
        # A tick goes with its clock: never handed out before it, and worth nothing after another.
        self._events += [tick for tick in ticks if _outlives(tick, event)]

    def take(self) -> ClockEvent | None:
        """The oldest event kept."""
        return self._events.pop(0) if self._events else None

    def take_of(self, domain: str) -> list[ClockEvent]:
        """Every event of one domain, taken out."""
        taken = [event for event in self._events if event.domain == domain]
        self._events = [event for event in self._events if event.domain != domain]
        return taken

    def clear(self) -> None:
        """Forgets what is kept."""
        self._events.clear()


def _replaces(new: ClockEvent, old: ClockEvent) -> bool:
    return new.domain == old.domain and (type(new) is type(old) or isinstance(new, ClockEnded))


def _outlives(tick: ClockTick, event: ClockEvent) -> bool:
    if isinstance(event, ClockChanged):
        return event.state == ClockState.PACED and event.generation == tick.generation
    return isinstance(event, ClockRestorationFailed)


class Sleeper:
    """One sleep by a clock. ``woken`` once the clock is another, is lost, or is followed no longer; ``lost`` while it is lost."""

    def __init__(self, domain: str, lost: bool, same: Callable[[ClockChanged], bool]) -> None:
        self.domain = domain
        self.lost = lost
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
    """Who reads a session's clock events. ``read`` waits for the next one."""

    def __init__(self, read: Callable[[Limit], ClockEvent]) -> None:
        super().__init__(read)
        self._queues: weakref.WeakValueDictionary[str, ClockQueue] = weakref.WeakValueDictionary()
        self._sleepers: set[Sleeper] = set()
        #: Domains whose clock is lost for now (B-11).
        self._lost: set[str] = set()
        #: Events of domains that no object reads, kept for whoever asks for any event.
        self.unclaimed = ClockQueue()

    def attach(self, queue: ClockQueue) -> None:
        """Routes the events of the queue's domain to it, those that were read already included."""
        assert queue.domain is not None
        with self._changed:
            self._queues[queue.domain] = queue
            for event in self.unclaimed.take_of(queue.domain):
                queue.put(event)
            self._changed.notify_all()

    def detach(self, queue: ClockQueue) -> None:
        """Ends a queue: its reader comes back, its events are forgotten."""
        with self._changed:
            queue.over = True
            queue.clear()
            if queue.domain is not None and self._queues.get(queue.domain) is queue:
                del self._queues[queue.domain]
        self._call_back(queue)

    @contextmanager
    def sleeping(self, domain: str, same: Callable[[ClockChanged], bool]) -> Iterator[Sleeper]:
        """A place for one sleep by a clock; ``same`` says whether a change leaves it as it is."""
        with self._changed:
            sleeper = Sleeper(domain, domain in self._lost, same)
            self._sleepers.add(sleeper)
        try:
            yield sleeper
        finally:
            with self._changed:
                self._sleepers.discard(sleeper)

    def forget(self, domain: str) -> None:
        """The session follows the clock of the domain no longer: whoever sleeps by it wakes up."""
        with self._changed:
            self._lost.discard(domain)
            self.unclaimed.take_of(domain)
            woken = [sleeper for sleeper in self._sleepers if sleeper.domain == domain]
            for sleeper in woken:
                sleeper.woken = True
        for sleeper in woken:
            self._call_back(sleeper)

    def _route(self, event: ClockEvent) -> None:
        if isinstance(event, ClockInterrupted):
            self._lost.add(event.domain)
        elif not isinstance(event, ClockRestorationFailed):
            self._lost.discard(event.domain)
        for sleeper in self._sleepers:
            if sleeper.domain == event.domain:
                sleeper.hear(event)
        (self._queues.get(event.domain) or self.unclaimed).put(event)
