"""Shares the one event queue of a session among several readers.

What one reader reads for another goes into that one's bounded queue, which reports what it had to drop. Owns who gets what. Must not
know where events come from.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING

from nervix_ffi._turns import Turns
from nervix_ffi._unbroken import putting, run
from nervix_ffi.cancel import Limit
from nervix_ffi.enums import EventKind
from nervix_ffi.events import DeliveryLost, Event, Rows, read_event

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Channel", "Pump"]

#: What one queue keeps for a reader that does not come: events, and bytes of their frames and texts (S-8). One event always fits.
#: Reports of gaps and ends go on to twice as many, the texts of those above either limit cut to what weighs next to nothing.
LIMIT_EVENTS = 1024
LIMIT_BYTES = 16 * 1024 * 1024

_LOST = "dropped in this process: the subscription was not read while others of its session were"


@dataclass(frozen=True)
class _Kept:
    """An event that waits for its reader: how many bytes it keeps, and the how manyth it was that the session read."""

    event: Event
    size: int
    number: int


class Channel:
    """The events of one subscription that were read and not handed out yet. ``name`` None takes those of every name.

    ``since`` is how many events the session had read before the subscription was opened: they are of another that had its name.
    """

    def __init__(self, name: str | None = None, generation: int = 0, since: int = 0) -> None:
        self.name = name
        self.since = since
        #: The reading was ended here.
        self.stopped = False
        #: The subscription is no more: nothing comes after what is kept.
        self.gone = False
        self._opened = generation
        self.generation = generation
        self._queue: deque[_Kept] = deque()
        self._bytes = 0
        self._restoring = False
        #: The newest event of a subscription, where it is a report of loss that more losses can be added to.
        self._losses: dict[str, DeliveryLost] = {}

    @property
    def over(self) -> bool:
        """Whether nothing comes any more."""
        return self.stopped or (self.gone and not self._queue)

    def wants(self, event: Event) -> bool:
        """Whether the event is of the generation that this channel follows (S-3).

        An interruption or an overflow ends the generation followed; the next one that is heard of takes its place. Asking again
        for the same event gives the same answer.
        """
        if self.name is None:
            return True
        if event.kind in (EventKind.INTERRUPTED, EventKind.RESTORATION_FAILED):
            self._restoring = True
            return True
        if self._restoring:
            self.generation, self._restoring = event.generation, False
        if event.generation != self.generation:
            return False
        self._restoring = event.kind == EventKind.CONSUMER_OVERFLOW
        return True

    def put(self, event: Event, number: int) -> Iterable[object]:
        """The steps that keep an event, or count it as lost."""
        size = event._weight()
        if self._queue and (len(self._queue) >= LIMIT_EVENTS or self._bytes + size > LIMIT_BYTES):
            if isinstance(event, Rows):
                return self._lose(event, len(event), number)
            # That there was a gap is worth more than all that is said about it.
            event._shorten()
            size = event._weight()
            if event.kind != EventKind.ENDED and len(self._queue) >= 2 * LIMIT_EVENTS:
                return self._lose(event, getattr(event, "count", 0), number)
        return chain(
            map(self._losses.pop, (event.subscription,), (None,)),
            putting(self, "_bytes", self._bytes + size),
            map(self._queue.append, (_Kept(event, size, number),)),
        )

    def _lose(self, event: Event, count: int, number: int) -> Iterable[object]:
        report = self._losses.get(event.subscription)
        if report is not None:
            return putting(report, "count", report.count + count)
        report = DeliveryLost(event.subscription, event.generation, count, _LOST, local=True)
        return chain(
            map(self._losses.__setitem__, (event.subscription,), (report,)), map(self._queue.append, (_Kept(report, 0, number),))
        )

    def take(self) -> Event | None:
        """The oldest event kept."""
        if not self._queue:
            return None
        kept = self._queue[0]
        losses = self._losses
        own = losses.get(kept.event.subscription) is kept.event
        run(
            chain(
                map(losses.pop, (kept.event.subscription,), (None,)) if own else (),
                putting(self, "_bytes", self._bytes - kept.size),
                starmap(self._queue.popleft, ((),)),
            )
        )
        return kept.event

    def taking_over(self, other: Channel) -> Iterable[object]:
        """The steps that move the events of this channel's subscription here from another channel, where they were kept."""
        theirs = [kept for kept in other._queue if kept.event.subscription == self.name]
        rest = deque(kept for kept in other._queue if kept.event.subscription != self.name)
        self.generation, self._restoring = self._opened, False
        own = deque(kept for kept in theirs if kept.number > self.since and self.wants(kept.event))
        return chain(
            putting(self, "_queue", own),
            putting(self, "_bytes", sum(kept.size for kept in own)),
            putting(other, "_queue", rest),
            putting(other, "_bytes", sum(kept.size for kept in rest)),
            starmap(other._losses.pop, ((self.name, None),)),
        )

    def ended(self) -> bool:
        """Whether the last event of the subscription is among those kept."""
        return any(kept.event.kind == EventKind.ENDED for kept in self._queue)

    def clear(self) -> None:
        """Forgets what is kept."""
        self._queue.clear()
        self._losses.clear()
        self._bytes = 0


class Pump(Turns[Event]):
    """Who reads a session's events."""

    def __init__(self, read: Callable[[Limit, MutableSequence[CData]], None]) -> None:
        super().__init__(read, read_event)
        #: The newest channel of each name, and whether its reader takes the events of the name from the session's.
        self._channels: dict[str, weakref.ref[Channel]] = {}
        self._claimed: dict[str, weakref.ref[Channel]] = {}
        #: Events of subscriptions that no object reads, kept for whoever asks for any event.
        self.unclaimed = Channel()

    def opened(self, channel: Channel) -> None:
        """A subscription was opened. One of the same name that was opened before is no more."""
        assert channel.name is not None
        with self._lock:
            self._gone(channel.name)
            for known in (self._channels, self._claimed):
                for name in [name for name, kept in known.items() if kept() is None]:
                    known.pop(name, None)
            self._channels[channel.name] = weakref.ref(channel)

    def deleted(self, name: str) -> None:
        """The subscription of a name is no more. Its reader gets what was read before."""
        with self._lock:
            self._gone(name)

    def _gone(self, name: str) -> None:
        known = self._channels.pop(name, None)
        self._claimed.pop(name, None)
        channel = None if known is None else known()
        if channel is not None:
            channel.gone = True
            self._call_back(channel)

    def attach(self, channel: Channel) -> None:
        """Routes the events of the channel's name to it, those that were read already included."""
        self.check()
        assert channel.name is not None
        with self._lock:
            self._sort()
            known = self._channels.get(channel.name)
            if known is not None and known() is channel:
                claiming = map(self._claimed.__setitem__, (channel.name,), (known,))
                run(chain(channel.taking_over(self.unclaimed), claiming))
        run(self._ringing())

    def detach(self, channel: Channel) -> None:
        """Ends the reading of a channel: its reader comes back, its events are forgotten."""
        channel.stopped = True
        if self.inherited:
            return
        with self._lock:
            channel.clear()
        self._call_back(channel)

    def _claiming(self, event: Event) -> Channel | None:
        known = self._claimed.get(event.subscription)
        return None if known is None else known()

    def _route(self, event: Event) -> Iterable[object]:
        channel = self._claiming(event)
        if channel is None:
            return self.unclaimed.put(event, self._routed)
        if not channel.wants(event) or channel.stopped:
            return ()
        return channel.put(event, self._routed)
