"""Domain clocks: what a session knows of one, and waiting by it.

Every projection is the library's; nothing here computes domain time. Must not know how events are shared out.
"""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING

from nervix_ffi._clockpump import ClockQueue
from nervix_ffi._handle import Handle
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import NULL, Out, check, encode, read_text
from nervix_ffi._told import named
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.clock_events import ClockChanged, ClockEnded, ClockEvent, Pacing, PacingPlaces, TickPlaces
from nervix_ffi.enums import ClockState, read
from nervix_ffi.errors import ClosedError, DeadlineError, InvalidArgumentError

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData
    from nervix_ffi.session import Session

__all__ = ["Clock", "DomainClock", "read_clock"]

#: How long a sleep goes before it looks at the clocks again, in seconds: UTC may be set meanwhile.
LOOK_AGAIN = 1.0


def _instant(value: int, what: str) -> int:
    """An instant in nanoseconds. Raises TypeError for what is no whole number, and InvalidArgumentError for one that 64 bits do not
    hold.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is a whole number of nanoseconds since the Unix epoch (int), not {type(value).__name__}")
    instant = operator.index(value)
    if not -(2**63) <= instant < 2**63:
        raise InvalidArgumentError(
            f"{what} is a signed 64-bit number of nanoseconds since the Unix epoch; {instant} is out of range"
        )
    return instant


def _moment(utc: int | None) -> int:
    """A wall instant in nanoseconds, the present one by default."""
    return time.time_ns() if utc is None else _instant(utc, "utc")


class DomainClock:
    """What a session knew of a domain's clock when it was read. It never changes; read it again after a change (B-11).

    ``pacing`` is None unless the clock is paced, ``tick`` None without an accepted tick of this generation. Instants are
    nanoseconds since the Unix epoch: ``utc`` the system's time (now, when absent), all others domain time.

    The projections raise TypeMismatchError when the clock is stopped or uninstalled and has no time, and InvalidArgumentError when
    the result does not fit into 64 bits.
    """

    def __init__(self, session: Session, pointer: CData) -> None:
        self._session = session
        self._handle = Handle("domain clock", pointer)
        self.domain = read_text(lambda place, size: lib.nx_domain_clock_domain(pointer, place, size))
        self.generation = int(lib.nx_domain_clock_generation(pointer))
        self.state = read(ClockState, lib.nx_domain_clock_state(pointer))
        self.pacing: Pacing | None = None
        if self.state == ClockState.PACED:
            paced = PacingPlaces()
            check(lib.nx_domain_clock_paced(pointer, *paced.places))
            self.pacing = paced.read()
        tick = TickPlaces()
        self.tick = tick.read() if lib.nx_domain_clock_tick(pointer, *tick.places) else None

    def __repr__(self) -> str:
        state = self.state.name if isinstance(self.state, ClockState) else self.state
        return f"<DomainClock {named(self.domain)} generation={self.generation} {state}>"

    def __enter__(self) -> DomainClock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of it. A projection afterwards raises ClosedError; what was read stays."""
        self._handle.close()

    @property
    def paced(self) -> bool:
        """Whether it is paced, so that it has a period and a window of centers."""
        return self.pacing is not None

    def logical_time_at(self, utc: int | None = None) -> int:
        """Domain time at a UTC instant."""
        place = ffi.new("int64_t *")
        with self._handle as clock:
            check(lib.nx_domain_clock_logical_time_at(clock, _moment(utc), place))
        return int(place[0])

    def wall_duration_until(self, target: int, *, utc: int | None = None) -> int:
        """Nanoseconds of real time from ``utc`` until domain time ``target``; 0 when it has come."""
        place = ffi.new("uint64_t *")
        instant = _instant(target, "target")
        with self._handle as clock:
            check(lib.nx_domain_clock_wall_duration_until(clock, _moment(utc), instant, place))
        return int(place[0])

    def admission_window(self, utc: int | None = None) -> tuple[int, int] | None:
        """The earliest and the latest center that are kept at ``utc``; None for an unpaced clock, which admits every event."""
        has, earliest, latest = ffi.new("bool *"), ffi.new("int64_t *"), ffi.new("int64_t *")
        with self._handle as clock:
            check(lib.nx_domain_clock_admission_window(clock, _moment(utc), has, earliest, latest))
        return (int(earliest[0]), int(latest[0])) if has[0] else None

    def admits(self, event: int, *, utc: int | None = None) -> bool:
        """Whether an event of domain time ``event`` is within the skew of a center that is kept at ``utc``."""
        place = ffi.new("bool *")
        instant = _instant(event, "event")
        with self._handle as clock:
            check(lib.nx_domain_clock_admits(clock, _moment(utc), instant, place))
        return bool(place[0])

    def same_as(self, other: DomainClock | ClockChanged) -> bool:
        """Whether the other is this clock: the same generation, state and pacing of the same domain. Ticks do not count."""
        return (self.domain, self.generation, self.state, self.pacing) == (
            other.domain,
            other.generation,
            other.state,
            other.pacing,
        )

    def sleep_until(self, center: int, *, timeout: float | None = None, cancel: Cancel | None = None) -> bool:
        """Sleeps until domain time ``center`` by this clock.

        True when it came. False as soon as the session follows another clock of the domain, or none, or lost the clock for now:
        then read ``Session.domain_clock`` again before planning on (B-11). While the clock is lost, a new sleep begins with
        waiting until it is known again; a loss that was not heard of yet ends it at once. The clock events that arrive meanwhile
        are kept for those who read them. Raises DeadlineError after ``timeout`` seconds, CancelledError, ClosedError, or
        TypeMismatchError for a clock without time.
        """
        limit = Limit(timeout, cancel)
        pump = self._session._clocks
        sleeper = pump.sleeper(self.domain, self.same_as)
        with pump.sleeping(sleeper):
            pump.hear(sleeper)
            while True:
                now = self._session.domain_clock(self.domain)
                if now is None or sleeper.woken or (not sleeper.lost and not self.same_as(now)):
                    return False
                wait = self.wall_duration_until(center)
                if wait == 0 and not sleeper.lost:
                    return True
                step = Limit(LOOK_AGAIN if sleeper.lost else min(LOOK_AGAIN, wait / 1e9), cancel)
                if limit.deadline is not None and step.deadline is not None:
                    step.deadline = min(step.deadline, limit.deadline)
                try:
                    pump.next(sleeper, step)
                except DeadlineError:
                    if limit.remaining() == 0.0:
                        raise


def read_clock(session: Session, domain: str) -> DomainClock | None:
    """The clock of a domain as the session knows it now, None when it follows none."""
    name = encode(domain, "the domain")
    with Out("nx_domain_clock", lib.nx_domain_clock_release) as out:
        check(session._handle.call(lib.nx_session_domain_clock, name, len(name), out.place))
        return None if out.pointer == NULL else DomainClock(session, out.take())


class Clock:
    """A clock that a session follows.

    Iterating it yields the events of this domain as they come, until ClockEnded or ``detach``. ``read`` is the clock as it is known
    now; read it before the first tick is used (B-11). A ``with`` block detaches it at its end, unless an exception ends the block:
    then its reading just stops.
    """

    def __init__(self, session: Session, domain: str) -> None:
        self._session = session
        self._queue = ClockQueue(domain)
        self.domain = domain
        session._clocks.attach(self._queue)

    def __repr__(self) -> str:
        return f"<Clock of {named(self.domain)}{' (over)' if self._queue.over else ''}>"

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._session.closed:
            self.detach()
        else:
            self.close()

    def read(self) -> DomainClock:
        """The clock as the session knows it now. Never waits. Raises ClosedError when the session follows it no longer."""
        clock = self._session.domain_clock(self.domain)
        if clock is None:
            raise ClosedError(f"the session does not follow the clock of {self.domain} any more; attach it again")
        return clock

    def __iter__(self) -> Clock:
        return self

    def __next__(self) -> ClockEvent:
        event = self._next(Limit(None, None))
        if event is None:
            raise StopIteration
        return event

    def next(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> ClockEvent:
        """The next event. ``timeout`` is in seconds; 0 takes what has arrived.

        Raises DeadlineError when the time is over, CancelledError, and ClosedError when none can come.
        """
        event = self._next(Limit(timeout, cancel, MOMENT))
        if event is None:
            raise ClosedError(f"the clock of {self.domain} is followed no longer; attach it again")
        return event

    def _next(self, limit: Limit) -> ClockEvent | None:
        event = self._session._clocks.next(self._queue, limit)
        if isinstance(event, ClockEnded):
            self.close()
        return event

    def sleep_until(self, center: int, *, timeout: float | None = None, cancel: Cancel | None = None) -> bool:
        """``DomainClock.sleep_until`` by the clock as it is known now."""
        return self.read().sleep_until(center, timeout=timeout, cancel=cancel)

    def close(self) -> None:
        """Stops reading, here only: the session follows the clock on, and a thread that waits for an event of this object comes
        back. A sleep goes on, and ends when the clock changes.
        """
        self._session._clocks.detach(self._queue)

    def detach(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> None:
        """Ends the attachment and stops reading. Nothing when it is over already. Raises what ``Session.execute`` raises."""
        if not self._queue.over:
            if self._session.domain_clock(self.domain) is not None:
                self._session._in_domain(self.domain, "DETACH DOMAIN CLOCK;", Limit(timeout, cancel), check=True)
            self.close()
