"""What followed clocks report, and how a paced clock runs.

Every object is a copy; nothing of the library is kept (B-9). Must not know who reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nervix_ffi._library import ffi, lib
from nervix_ffi._native import check, read_text
from nervix_ffi.enums import ClockEndReason, ClockEventKind, ClockState, read

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = [
    "ClockChanged",
    "ClockEnded",
    "ClockEvent",
    "ClockInterrupted",
    "ClockRestorationFailed",
    "ClockTick",
    "Pacing",
    "PacingPlaces",
    "Tick",
    "TickPlaces",
    "read_clock_event",
]


@dataclass(frozen=True)
class Pacing:
    """How a paced clock runs.

    ``period`` and ``skew`` are nanoseconds; ``logical_origin`` (domain time) and ``utc_anchor`` (UTC) are the same instant as
    nanoseconds since the Unix epoch; ``time_rate`` is how many seconds of domain time pass in a second.
    """

    period: int
    skew: int
    logical_origin: int
    utc_anchor: int
    time_rate: float


@dataclass(frozen=True)
class Tick:
    """A boundary of a paced clock that was accepted (K-4).

    ``id`` counts from one and may skip. ``logical_boundary`` is the boundary in domain time, ``authority_utc`` the UTC of the clock's
    authority when it announced it, ``serving_logical`` the domain time that the serving node read: all nanoseconds since the epoch.
    """

    id: int
    logical_boundary: int
    authority_utc: int
    serving_logical: int


@dataclass(frozen=True)
class ClockEvent:
    """Something that a followed clock reports. Events are coalesced: the newest state and the newest tick of each domain (K-3)."""

    domain: str
    kind: ClassVar[ClockEventKind | None] = None


@dataclass(frozen=True)
class ClockChanged(ClockEvent):
    """The clock of the domain is now this one. ``pacing`` is there when it is paced. Ticks are held to it (B-11)."""

    generation: int
    state: ClockState | int
    pacing: Pacing | None
    kind: ClassVar[ClockEventKind | None] = ClockEventKind.STATE


@dataclass(frozen=True)
class ClockTick(ClockEvent):
    """A tick of the clock of a generation, whose ClockChanged or attach came before."""

    generation: int
    tick: Tick
    kind: ClassVar[ClockEventKind | None] = ClockEventKind.TICK


@dataclass(frozen=True)
class ClockInterrupted(ClockEvent):
    """A gap: changes and ticks in it are not reported, and the clock read before may hold no longer (B-9, B-11).

    The restored clock comes as the next ClockChanged.
    """

    kind: ClassVar[ClockEventKind | None] = ClockEventKind.INTERRUPTED


@dataclass(frozen=True)
class ClockRestorationFailed(ClockEvent):
    """An attempt to attach the clock again was refused or not answered. The session repeats it (B-9)."""

    kind: ClassVar[ClockEventKind | None] = ClockEventKind.RESTORATION_FAILED


@dataclass(frozen=True)
class ClockEnded(ClockEvent):
    """The last event of an attachment (K-2). Attach the clock again to follow it again."""

    reason: ClockEndReason | int
    kind: ClassVar[ClockEventKind | None] = ClockEventKind.ENDED


@dataclass(frozen=True)
class UnknownClockEvent(ClockEvent):
    """An event of a kind that this version does not know."""

    number: int


class PacingPlaces:
    """Out-parameters of a paced clock."""

    def __init__(self) -> None:
        self.period, self.skew = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.origin, self.anchor = ffi.new("int64_t *"), ffi.new("int64_t *")
        self.rate = ffi.new("double *")

    @property
    def places(self) -> tuple[CData, CData, CData, CData, CData]:
        return self.period, self.skew, self.origin, self.anchor, self.rate

    def read(self) -> Pacing:
        period, skew, origin, anchor, rate = (place[0] for place in self.places)
        return Pacing(int(period), int(skew), int(origin), int(anchor), float(rate))


class TickPlaces:
    """Out-parameters of a tick."""

    def __init__(self) -> None:
        self.id = ffi.new("uint64_t *")
        self.instants = ffi.new("int64_t *"), ffi.new("int64_t *"), ffi.new("int64_t *")

    @property
    def places(self) -> tuple[CData, CData, CData, CData]:
        return (self.id, *self.instants)

    def read(self) -> Tick:
        number, boundary, authority, serving = (int(place[0]) for place in self.places)
        return Tick(number, boundary, authority, serving)


def read_clock_event(event: CData) -> ClockEvent:
    """A copy of an event of the library; the caller still owns that one."""
    domain = read_text(lambda place, size: lib.nx_clock_event_domain(event, place, size))
    kind = read(ClockEventKind, lib.nx_clock_event_kind_of(event))
    if kind in (ClockEventKind.STATE, ClockEventKind.TICK):
        place = ffi.new("uint64_t *")
        check(lib.nx_clock_event_generation(event, place))
        generation = int(place[0])
        if kind == ClockEventKind.TICK:
            tick = TickPlaces()
            check(lib.nx_clock_event_tick(event, *tick.places))
            return ClockTick(domain, generation, tick.read())
        place = ffi.new("nx_clock_state *")
        check(lib.nx_clock_event_state(event, place))
        state = read(ClockState, int(place[0]))
        pacing = None
        if state == ClockState.PACED:
            paced = PacingPlaces()
            check(lib.nx_clock_event_paced(event, *paced.places))
            pacing = paced.read()
        return ClockChanged(domain, generation, state, pacing)
    if kind == ClockEventKind.ENDED:
        place = ffi.new("nx_clock_end_reason *")
        check(lib.nx_clock_event_end_reason(event, place))
        return ClockEnded(domain, read(ClockEndReason, int(place[0])))
    if kind == ClockEventKind.INTERRUPTED:
        return ClockInterrupted(domain)
    if kind == ClockEventKind.RESTORATION_FAILED:
        return ClockRestorationFailed(domain)
    return UnknownClockEvent(domain, int(kind))
