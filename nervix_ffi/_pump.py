"""Shares the one event queue of a session among several readers.

What one reader reads for another goes into that one's bounded queue, which reports what it had to drop. Owns who gets what. Must not
know where events come from.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from nervix_ffi._turns import Turns
from nervix_ffi.cancel import Limit
from nervix_ffi.enums import EventKind
from nervix_ffi.events import DeliveryLost, Event, Rows

__all__ = ["Channel", "Pump"]

#: What one queue keeps for a reader that does not come: events, and bytes of their frames (S-8). One event always fits.
LIMIT_EVENTS = 1024
LIMIT_BYTES = 16 * 1024 * 1024

_LOST = "dropped in this process: the subscription was not read while others of its session were"


class Channel:
    """The events of one subscription that were read and not handed out yet. ``name`` None takes those of every name."""

    def __init__(self, name: str | None = None, generation: int = 0) -> None:
        self.name = name
        self.generation = generation
        self.over = False
        self._queue: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._restoring = False
        #: The newest event of a subscription, where it is a report of loss that more losses can be added to.
        self._losses: dict[str, DeliveryLost] = {}

    def wants(self, event: Event) -> bool:
        """Whether the event is of the generation that this channel follows (S-3).

        An interruption or an overflow ends the generation followed; the next one that is heard of takes its place.
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

    def put(self, event: Event) -> None:
        """Keeps an event, or counts it as lost."""
        size = 0
        if isinstance(event, Rows):
            size = event._frame_size()
            if self._queue and (len(self._queue) >= LIMIT_EVENTS or self._bytes + size > LIMIT_BYTES):
                event.release()
                self._lose(event, len(event))
                return
        elif event.kind != EventKind.ENDED and len(self._queue) >= 2 * LIMIT_EVENTS:
            self._lose(event, getattr(event, "count", 0))
            return
        self._losses.pop(event.subscription, None)
        self._bytes += size
        self._queue.append((event, size))

    def _lose(self, event: Event, count: int) -> None:
        report = self._losses.get(event.subscription)
        if report is None:
            report = DeliveryLost(event.subscription, event.generation, 0, _LOST, local=True)
            self._losses[event.subscription] = report
            self._queue.append((report, 0))
        report.count += count

    def take(self) -> Event | None:
        """The oldest event kept."""
        if not self._queue:
            return None
        event, size = self._queue.popleft()
        self._bytes -= size
        if self._losses.get(event.subscription) is event:
            del self._losses[event.subscription]
        return event

    def take_of(self, name: str) -> list[Event]:
        """Every event of one subscription, taken out."""
        taken = [event for event, _ in self._queue if event.subscription == name]
        self._queue = deque(item for item in self._queue if item[0].subscription != name)
        self._bytes = sum(size for _, size in self._queue)
        self._losses.pop(name, None)
        return taken

    def clear(self) -> None:
        """Forgets what is kept."""
        self._queue.clear()
        self._losses.clear()
        self._bytes = 0


class Pump(Turns[Event]):
    """Who reads a session's events. ``read`` waits for the next one."""

    def __init__(self, read: Callable[[Limit], Event]) -> None:
        super().__init__(read)
        self._channels: weakref.WeakValueDictionary[str, Channel] = weakref.WeakValueDictionary()
        #: Events of subscriptions that no object reads, kept for whoever asks for any event.
        self.unclaimed = Channel()

    def attach(self, channel: Channel) -> None:
        """Routes the events of the channel's name to it, those that were read already included."""
        assert channel.name is not None
        with self._changed:
            self._channels[channel.name] = channel
            for event in self.unclaimed.take_of(channel.name):
                if channel.wants(event):
                    channel.put(event)
            self._changed.notify_all()

    def detach(self, channel: Channel) -> None:
        """Ends a channel: its reader comes back, its events are forgotten."""
        with self._changed:
            channel.over = True
            channel.clear()
            if channel.name is not None and self._channels.get(channel.name) is channel:
                del self._channels[channel.name]
        self._call_back(channel)

    def _route(self, event: Event) -> None:
        channel = self._channels.get(event.subscription)
        if channel is None:
            self.unclaimed.put(event)
        elif channel.wants(event):
            channel.put(event)
