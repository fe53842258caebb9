"""Domain clocks: following them, what they project, sleeping by them, and gaps."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nervix_ffi
from nervix_ffi import (
    ClockChanged,
    ClockEnded,
    ClockEndReason,
    ClockEvent,
    ClockInterrupted,
    ClockRestorationFailed,
    ClockState,
    ClockTick,
    Pacing,
    RowsSkipped,
    SkipCause,
    Tick,
)
from nervix_ffi.testing import LoopbackNode

from ..endpoints import answer, execute
from ..support import DOMAIN, PATIENCE, Running, connect, counts, next_event, publish, read_ids, sent, wait

SECOND = 1_000_000_000
PERIOD = SECOND // 10
SKEW = SECOND // 100
ORIGIN = 1_893_456_000 * SECOND  # 2030-01-01
FIRST, LAST = -(2**63), 2**63 - 1

#: A paced domain that runs at twice the speed, and one that never started.
GRAPH = """
CREATE PACED DOMAIN lab WITH PERIOD 100ms SKEW 10ms;
CREATE PACED DOMAIN idle WITH PERIOD 1s SKEW 1s;
USE lab;
START AT '2030-01-01T00:00:00Z' TIME RATE 2.0;
"""


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node whose time stands still."""
    with LoopbackNode(load=GRAPH, options=["--frozen-time"]) as one:
        yield one


@pytest.fixture
def clock(session: nervix_ffi.Session) -> nervix_ffi.Clock:
    """The followed clock of the domain, its first tick unread."""
    return session.attach_clock(timeout=PATIENCE)


def advance(node: LoopbackNode, by: str) -> int:
    """Move the node's time; what it is then."""
    now: int = node.control("clock", advance=by)["now_unix_nanos"]
    return now


def event_of(source: nervix_ffi.Clock, kind: type[ClockEvent]) -> Any:
    """The next event, which must be of this kind."""
    event = source.next(timeout=PATIENCE)
    assert isinstance(event, kind), event
    return event


def until_changed(source: nervix_ffi.Clock) -> ClockChanged:
    """The next change, whatever ticks come before it."""
    while True:
        event = source.next(timeout=PATIENCE)
        if isinstance(event, ClockChanged):
            return event
        assert isinstance(event, ClockTick), event


def lose(node: LoopbackNode) -> None:
    """Lose the session, with no new one to be had."""
    node.control("accept", mode="refuse")
    node.control("cut", how="abort")
    wait(node, sessions=0)


# ---- following


@pytest.mark.rule("K-1", "K-2", "K-4", "B-11")
def test_an_attached_clock_is_read_before_any_event(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    assert session.domain_clock() is None
    clock = session.attach_clock(timeout=PATIENCE)
    now = clock.read()
    anchor = now.pacing.utc_anchor if now.pacing else 0
    assert (now.domain, now.generation, now.state) == (DOMAIN, 1, ClockState.PACED)
    assert now.pacing == Pacing(PERIOD, SKEW, ORIGIN, anchor, 2.0)
    assert now.logical_time_at(anchor + SECOND) == ORIGIN + 2 * SECOND
    # The first event of a running clock is its newest tick.
    assert event_of(clock, ClockTick).tick.id == 1
    assert (sent(node, "AttachDomainClockRequest"), counts(node)["clocks"]) == (1, 1)


@pytest.mark.rule("K-1")
def test_clocks_of_several_domains(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    execute(node, "CREATE UNPACED DOMAIN free;", domain="free")
    execute(node, "START;", domain="free")
    lab, idle, free = (session.attach_clock(name, timeout=PATIENCE) for name in (DOMAIN, "idle", "free"))
    assert (idle.read().state, idle.read().generation) == (ClockState.STOPPED, 0)
    unpaced = free.read()
    assert (unpaced.state, unpaced.pacing, unpaced.tick) == (ClockState.UNPACED, None, None)
    assert unpaced.logical_time_at(7) == 7
    assert (unpaced.admission_window(), unpaced.admits(FIRST)) == (None, True)
    assert (unpaced.wall_duration_until(9, utc=2), unpaced.wall_duration_until(2, utc=9)) == (7, 0)
    execute(node, "START;", domain="idle")
    changed = until_changed(idle)
    assert (changed.domain, changed.generation, changed.state) == ("idle", 1, ClockState.PACED)
    assert event_of(lab, ClockTick).domain == DOMAIN
    assert session.domain == DOMAIN
    assert counts(node)["clocks"] == 3


@pytest.mark.rule("K-1")
def test_a_clock_is_attached_once_and_detached_once(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    session.execute("ATTACH DOMAIN CLOCK;", timeout=PATIENCE)
    with pytest.raises(nervix_ffi.CommandFailed):
        session.execute("ATTACH DOMAIN CLOCK;", timeout=PATIENCE)
    assert session.domain_clock() is not None
    assert counts(node)["clocks"] == 1
    session.execute("DETACH DOMAIN CLOCK;", timeout=PATIENCE)
    assert session.domain_clock() is None
    with pytest.raises(nervix_ffi.CommandFailed):
        session.execute("DETACH DOMAIN CLOCK;", timeout=PATIENCE)
    assert counts(node)["clocks"] == 0
    with pytest.raises(nervix_ffi.DeadlineError):
        session.next_clock_event(timeout=0.05)


@pytest.mark.rule("K-1")
@pytest.mark.parametrize("with_", ["RequestFailed", "DomainNotFound"])
def test_a_refused_attach_follows_nothing(node: LoopbackNode, session: nervix_ffi.Session, with_: str) -> None:
    answer(
        node,
        "AttachDomainClockRequest",
        with_,
        message="that is why",
        **({"domain": DOMAIN} if with_ == "DomainNotFound" else {}),
    )
    with pytest.raises(nervix_ffi.CommandFailed, match="that is why"):
        session.execute("ATTACH DOMAIN CLOCK;", timeout=PATIENCE)
    assert session.domain_clock() is None
    assert session.attach_clock(timeout=PATIENCE).read().generation == 1


@pytest.mark.rule("K-1")
def test_an_attach_to_no_domain(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with pytest.raises(nervix_ffi.CommandFailed):
        session.attach_clock("nowhere", timeout=PATIENCE)
    assert session.domain == DOMAIN
    for name in ("", "no name", "\0"):
        with pytest.raises(nervix_ffi.Error):
            session.domain_clock(name)


@pytest.mark.rule("K-1")
@pytest.mark.parametrize("with_", ["DomainClockNotAttached", "DomainClockDetached"])
def test_a_clock_that_is_not_attached_there_is_followed_no_longer(
    node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock, with_: str
) -> None:
    answer(node, "DetachDomainClockRequest", with_, domain=DOMAIN)
    session.execute("DETACH DOMAIN CLOCK;", timeout=PATIENCE, check=False)
    assert session.domain_clock() is None
    with pytest.raises(nervix_ffi.ClosedError):
        clock.read()
    node.control("clock_frame", what="state", domain=DOMAIN, generation=2, state="stopped")
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    assert session.domain_clock() is None, "frames of a clock that is not followed are ignored"


@pytest.mark.rule("K-1")
def test_a_failed_detach_follows_on(node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock) -> None:
    answer(node, "DetachDomainClockRequest", "RequestFailed")
    with pytest.raises(nervix_ffi.CommandFailed):
        clock.detach(timeout=PATIENCE)
    assert clock.read().generation == 1
    clock.detach(timeout=PATIENCE)
    assert session.domain_clock() is None


@pytest.mark.rule("K-1", "B-11")
def test_an_attach_that_was_given_up_is_found_by_the_next(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="AttachDomainClockRequest", when="after")
    with session.prepare("ATTACH DOMAIN CLOCK;") as attach:
        with pytest.raises(nervix_ffi.DeadlineError):
            attach.run(timeout=0.1)
        node.control("release")
        outcome = attach.run(timeout=PATIENCE, check=False)
        assert outcome.completed or session.domain_clock() is not None
    assert session.attach_clock(timeout=PATIENCE).read().generation == 1


@pytest.mark.rule("K-1", "K-5")
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attach_whose_session_is_lost_is_sent_again(node: LoopbackNode, session: nervix_ffi.Session, when: str) -> None:
    node.control("cut", direction="in", kind="AttachDomainClockRequest", when=when, how="abort")
    assert session.attach_clock(timeout=PATIENCE).read().generation == 1
    assert counts(node)["clocks"] == 1


@pytest.mark.rule("K-2")
def test_the_end_of_a_domain_is_the_end_of_its_clock(
    node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock
) -> None:
    execute(node, "STOP;", "DROP DOMAIN lab;")
    events = list(clock)
    assert events[-1] == ClockEnded(DOMAIN, ClockEndReason.DOMAIN_REMOVED)
    assert session.domain_clock() is None
    with pytest.raises(nervix_ffi.ClosedError):
        clock.read()
    clock.detach(timeout=PATIENCE)
    assert sent(node, "DetachDomainClockRequest") == 0


# ---- changes and ticks


@pytest.mark.rule("K-2", "K-3", "K-4", "B-9", "B-11")
def test_ticks_and_generations(node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock) -> None:
    anchor = clock.read().pacing.utc_anchor  # type: ignore[union-attr]
    assert event_of(clock, ClockTick).tick.id == 1
    now = advance(node, "50ms")
    tick = event_of(clock, ClockTick)
    assert tick == ClockTick(DOMAIN, 1, Tick(2, ORIGIN + PERIOD, tick.tick.authority_utc, tick.tick.serving_logical))
    assert tick.tick.authority_utc == now == anchor + PERIOD // 2
    assert tick.tick.serving_logical >= tick.tick.logical_boundary
    assert clock.read().tick == tick.tick
    # What a reader does not read is coalesced to the newest.
    for _ in range(5):
        advance(node, "1s")
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    newest = event_of(clock, ClockTick).tick
    assert (newest.id, newest.logical_boundary) == (102, ORIGIN + 101 * PERIOD)
    execute(node, "STOP;")
    stopped = until_changed(clock)
    assert (stopped.generation, stopped.state, stopped.pacing) == (1, ClockState.STOPPED, None)
    assert (clock.read().state, clock.read().tick) == (ClockState.STOPPED, None)
    execute(node, "START AT '2031-01-01T00:00:00Z' TIME RATE 4.0;")
    started = until_changed(clock)
    assert (started.generation, started.state) == (2, ClockState.PACED)
    assert started.pacing is not None
    assert (started.pacing.logical_origin, started.pacing.time_rate) == (ORIGIN + 365 * 86_400 * SECOND, 4.0)
    first = event_of(clock, ClockTick)
    assert (first.generation, first.tick.id) == (2, 1)
    assert clock.read().same_as(started)


@pytest.mark.rule("K-2", "K-3")
def test_ticks_are_held_to_their_clock(node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock) -> None:
    """Late ones, duplicates, and those of another generation are dropped; one that came early waits for its clock."""

    def frame(**fields: Any) -> None:
        node.control("clock_frame", domain=DOMAIN, **fields)

    def settled() -> None:
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)

    assert event_of(clock, ClockTick).tick.id == 1
    frame(what="tick", generation=1, tick_id=5)
    assert event_of(clock, ClockTick).tick.id == 5
    for tick_id in (5, 4, 1):
        frame(what="tick", generation=1, tick_id=tick_id)
    settled()
    assert clock.read().tick.id == 5  # type: ignore[union-attr]
    with pytest.raises(nervix_ffi.DeadlineError):
        clock.next(timeout=0.05)
    frame(what="tick", generation=2, tick_id=1)
    settled()
    assert clock.read().generation == 1
    frame(what="state", generation=2, state="paced", period=PERIOD, origin=0, anchor=0, rate=1.0)
    frame(what="tick", generation=1, tick_id=9)
    changed = until_changed(clock)
    assert (changed.generation, changed.pacing) == (2, Pacing(PERIOD, 0, 0, 0, 1.0))
    frame(what="tick", generation=2, tick_id=2)
    assert event_of(clock, ClockTick).generation == 2
    settled()
    assert clock.read().tick.id == 2  # type: ignore[union-attr]
    frame(what="state", generation=2, state="unpaced")
    assert until_changed(clock).state is ClockState.UNPACED
    assert clock.read().tick is None


@pytest.mark.rule("K-2")
def test_frames_about_other_domains_are_ignored(node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock) -> None:
    event_of(clock, ClockTick)
    node.control("clock_frame", what="state", domain="idle", generation=9, state="stopped")
    node.control("clock_frame", what="tick", domain="idle", generation=9, tick_id=1)
    node.control("clock_frame", what="ended", domain="idle")
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    assert session.domain_clock("idle") is None
    with pytest.raises(nervix_ffi.DeadlineError):
        session.next_clock_event(timeout=0.05)


@pytest.mark.rule("K-3", "K-4")
def test_a_clock_that_is_not_installed_has_no_time(node: LoopbackNode, clock: nervix_ffi.Clock) -> None:
    node.control("clock_installed", domain=DOMAIN, installed=False)
    assert until_changed(clock).state is ClockState.UNINSTALLED
    now = clock.read()
    assert (now.state, now.tick) == (ClockState.UNINSTALLED, None)
    calls: list[Callable[[], object]] = [
        now.logical_time_at,
        now.admission_window,
        lambda: now.admits(0),
        lambda: now.wall_duration_until(0),
        lambda: now.sleep_until(0, timeout=PATIENCE),
    ]
    for call in calls:
        with pytest.raises(nervix_ffi.TypeMismatchError):
            call()
    node.control("clock_installed", domain=DOMAIN, installed=True)
    assert until_changed(clock).state is ClockState.PACED


# ---- gaps


@pytest.mark.rule("K-3", "K-5", "B-9", "B-11")
def test_a_lost_session_is_a_gap_and_then_the_clock_as_it_is(
    node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock
) -> None:
    event_of(clock, ClockTick)
    lose(node)
    assert event_of(clock, ClockInterrupted) == ClockInterrupted(DOMAIN)
    last = clock.read()
    assert (last.generation, last.tick) == (1, None)
    execute(node, "STOP;", "START;", "STOP;", "START AT '2031-01-01T00:00:00Z';")
    node.control("accept", mode="accept")
    restored = event_of(clock, ClockChanged)
    assert (restored.generation, restored.state) == (3, ClockState.PACED)
    assert clock.read().generation == 3
    assert event_of(clock, ClockTick).generation == 3
    assert counts(node)["clocks"] == 1


@pytest.mark.rule("K-5", "B-9")
def test_a_refused_restoration_is_reported_and_repeated(node: LoopbackNode, clock: nervix_ffi.Clock) -> None:
    event_of(clock, ClockTick)
    answer(node, "AttachDomainClockRequest", "RequestFailed", count=2)
    node.control("cut")
    event_of(clock, ClockInterrupted)
    failed = event_of(clock, ClockRestorationFailed)
    assert failed == ClockRestorationFailed(DOMAIN)
    event: ClockEvent = failed
    while isinstance(event, ClockRestorationFailed):
        event = clock.next(timeout=PATIENCE)
    assert isinstance(event, ClockChanged)
    assert sent(node, "AttachDomainClockRequest") == 4


@pytest.mark.rule("K-5")
def test_a_domain_that_is_gone_ends_the_clock(node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock) -> None:
    event_of(clock, ClockTick)
    lose(node)
    execute(node, "STOP;", "DROP DOMAIN lab;")
    node.control("accept", mode="accept")
    assert [type(event) for event in clock] == [ClockInterrupted, ClockEnded]
    assert session.domain_clock() is None


@pytest.mark.rule("K-5")
def test_an_attachment_that_the_session_holds_already_is_kept(
    node: LoopbackNode, session: nervix_ffi.Session, clock: nervix_ffi.Clock
) -> None:
    """The clock last received stays, without a tick, until the session says more."""
    event_of(clock, ClockTick)
    answer(node, "AttachDomainClockRequest", "DomainClockAlreadyAttached", domain=DOMAIN)
    node.control("cut")
    event_of(clock, ClockInterrupted)
    wait(node, frames={"out": {"DomainClockAttachOutcome": 2}})
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    assert (clock.read().generation, clock.read().tick) == (1, None)
    node.control("clock_frame", what="tick", domain=DOMAIN, generation=1, tick_id=3)
    assert event_of(clock, ClockTick).tick.id == 3
    node.control("clock_frame", what="state", domain=DOMAIN, generation=1, state="stopped")
    assert until_changed(clock).state is ClockState.STOPPED
    assert sent(node, "AttachDomainClockRequest") == 2


@pytest.mark.rule("K-5")
def test_a_redirect_moves_the_attachment_without_a_gap() -> None:
    with (
        LoopbackNode(3, load=GRAPH, options=["--frozen-time"]) as cluster,
        connect(cluster, cluster.followers[0]) as session,
    ):
        clock = session.attach_clock(timeout=PATIENCE)
        assert event_of(clock, ClockTick).tick.id == 1
        advance(cluster, "50ms")
        assert event_of(clock, ClockTick).tick.id == 2
        session.execute("CREATE SCHEMA made (n U8);", timeout=PATIENCE)
        assert clock.read().tick.id == 2  # type: ignore[union-attr]
        advance(cluster, "50ms")
        event = clock.next(timeout=PATIENCE)
        assert isinstance(event, ClockTick), event
        assert event.tick.id == 3
        wait(cluster, clocks={"exactly": 1})


# ---- projections, against a computation of our own


class Beyond(Exception):
    """The result is no 64-bit number."""


def within(value: int, low: int = FIRST, high: int = LAST) -> int:
    if not low <= value <= high:
        raise Beyond
    return value


def whole(value: float, rounded: Callable[[float], int]) -> int:
    try:
        return rounded(value)
    except OverflowError:  # Infinity.
        raise Beyond from None


def logical(pacing: Pacing, utc: int) -> int:
    elapsed = max(0, utc - pacing.utc_anchor)
    if pacing.time_rate != 1.0:
        elapsed = whole(float(elapsed) * pacing.time_rate, math.floor)
    return within(pacing.logical_origin + elapsed)


def wall(pacing: Pacing, utc: int, target: int) -> int:
    delta = target - logical(pacing, utc)
    if delta <= 0:
        return 0
    if pacing.time_rate != 1.0:
        quotient = float(delta) / pacing.time_rate
        delta = max(1, whole(quotient, math.ceil))
    return within(delta, 0, 2**64 - 1)


def kept(pacing: Pacing, utc: int) -> range:
    newest = (logical(pacing, utc) - pacing.logical_origin) // pacing.period
    return range(max(0, newest - 255), newest + 1)


def window(pacing: Pacing, utc: int) -> tuple[int, int]:
    centers = kept(pacing, utc)
    return pacing.logical_origin + centers[0] * pacing.period, pacing.logical_origin + centers[-1] * pacing.period


def admits(pacing: Pacing, utc: int, event: int) -> bool:
    return any(abs(pacing.logical_origin + index * pacing.period - event) <= pacing.skew for index in kept(pacing, utc))


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call returns, or that the result is out of range."""
    try:
        return call(*arguments, **named)
    except (Beyond, nervix_ffi.InvalidArgumentError):
        return "out of range"


instants = st.one_of(
    st.sampled_from([FIRST, FIRST + 1, -1, 0, 1, LAST - 1, LAST, ORIGIN]),
    st.integers(FIRST, LAST),
    st.integers(ORIGIN - SECOND, ORIGIN + 1000 * SECOND),
)
spans = st.one_of(st.sampled_from([1, 2, 2**31, 2**53 + 1, 2**63, 2**64 - 1]), st.integers(1, 2**64 - 1), st.integers(1, SECOND))
rates = st.one_of(
    st.sampled_from(
        [1.0, 0.3, 0.1, 2.0, 4.0, 1e-9, 1e9, 5e-324, 1.7976931348623157e308, math.nextafter(1, 0), math.nextafter(1, 2)]
    ),
    st.floats(min_value=5e-324, max_value=1.7976931348623157e308),
    st.floats(min_value=0.01, max_value=100),
)
pacings = st.builds(Pacing, spans, st.one_of(st.just(0), spans), instants, instants, rates)

SERIAL = itertools.count(2)


@pytest.fixture(scope="module")
def free() -> Iterator[tuple[LoopbackNode, nervix_ffi.Clock]]:
    """One node and followed clock for every example."""
    with LoopbackNode(load=GRAPH, options=["--frozen-time"]) as node, connect(node) as session:
        yield node, session.attach_clock(timeout=PATIENCE)


@pytest.mark.rule("K-4", "B-11")
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pacing=pacings, utc=st.lists(instants, min_size=1, max_size=4), events=st.lists(instants, max_size=4), near=st.data())
@example(Pacing(1, 0, 0, 0, 0.3), [10], [3, 2], None)
@example(Pacing(SECOND, 0, 0, 0, 1.0), [3 * SECOND + SECOND // 2], [3 * SECOND], None)
@example(Pacing(PERIOD, 0, 0, 0, 4.0), [0], [SECOND, 1], None)
@example(Pacing(2**64 - 1, 2**64 - 1, FIRST, FIRST, 1.0), [LAST], [FIRST, LAST], None)
@example(Pacing(1, 0, LAST, FIRST, 1.0), [FIRST, FIRST + 1], [LAST, FIRST], None)
@example(Pacing(1, 0, FIRST, FIRST, 5e-324), [LAST], [LAST], None)
def test_a_paced_clock_projects_as_anyone_computes(
    free: tuple[LoopbackNode, nervix_ffi.Clock], pacing: Pacing, utc: list[int], events: list[int], near: Any
) -> None:
    """Python integers, and a Python float for the one product or quotient."""
    node, clock = free
    generation = next(SERIAL)
    node.control(
        "clock_frame",
        what="state",
        domain=DOMAIN,
        generation=generation,
        state="paced",
        period=pacing.period,
        skew=pacing.skew,
        origin=pacing.logical_origin,
        anchor=pacing.utc_anchor,
        rate=pacing.time_rate,
    )
    while until_changed(clock).generation != generation:
        pass
    now = clock.read()
    assert now.pacing == pacing
    for instant in utc:
        assert outcome(now.logical_time_at, instant) == outcome(logical, pacing, instant)
        centers = outcome(window, pacing, instant)
        assert outcome(now.admission_window, instant) == centers
        close = []
        if near is not None and centers != "out of range":
            # Events about the edges of what is admitted.
            index = near.draw(st.integers(kept(pacing, instant)[0], kept(pacing, instant)[-1]))
            for edge in (-pacing.skew - 1, -pacing.skew, 0, pacing.skew, pacing.skew + 1):
                event = pacing.logical_origin + index * pacing.period + edge
                close += [event] if FIRST <= event <= LAST else []
        for event in [*events, *close]:
            waits = outcome(now.wall_duration_until, event, utc=instant)
            assert waits == outcome(wall, pacing, instant, event), (instant, event)
            assert outcome(now.admits, event, utc=instant) == outcome(admits, pacing, instant, event), (instant, event)


def test_the_worked_values(free: tuple[LoopbackNode, nervix_ffi.Clock]) -> None:
    node, clock = free

    def paced(rate: float, period: int = SECOND) -> nervix_ffi.DomainClock:
        generation = next(SERIAL)
        node.control(
            "clock_frame", what="state", domain=DOMAIN, generation=generation, state="paced", period=period, anchor=0, rate=rate
        )
        while until_changed(clock).generation != generation:
            pass
        return clock.read()

    assert paced(0.3).logical_time_at(10) == 3
    quick = paced(4.0)
    assert (quick.wall_duration_until(SECOND, utc=0), quick.wall_duration_until(1, utc=0)) == (250_000_000, 1)
    plain = paced(1.0)
    assert plain.admission_window(3 * SECOND + SECOND // 2) == (0, 3 * SECOND)


@pytest.mark.parametrize("value", [FIRST - 1, LAST + 1])
def test_an_instant_that_is_none(clock: nervix_ffi.Clock, value: int) -> None:
    now = clock.read()
    calls: list[Callable[[], object]] = [
        lambda: now.logical_time_at(value),
        lambda: now.wall_duration_until(value),
        lambda: now.wall_duration_until(0, utc=value),
        lambda: now.admits(value),
        lambda: now.admission_window(value),
    ]
    for call in calls:
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            call()


@pytest.mark.parametrize("value", [1.0, "5", None, True, b"1"])
def test_what_is_no_instant_is_refused_at_once(clock: nervix_ffi.Clock, value: Any) -> None:
    now = clock.read()
    calls: list[Callable[[], object]] = [
        lambda: now.wall_duration_until(value),
        lambda: now.admits(value),
        lambda: now.sleep_until(value, timeout=PATIENCE),
        lambda: clock.sleep_until(value, timeout=PATIENCE),
    ]
    if value is not None:
        calls += [lambda: now.logical_time_at(value), lambda: now.admission_window(value), lambda: now.admits(0, utc=value)]
    for call in calls:
        with pytest.raises(TypeError, match="int"):
            call()


def test_an_instant_may_be_any_whole_number(clock: nervix_ffi.Clock) -> None:
    now = clock.read()
    instant = numpy.int64(LAST)
    assert now.admits(instant) == now.admits(LAST)
    assert now.wall_duration_until(numpy.int32(0), utc=numpy.int64(0)) == now.wall_duration_until(0, utc=0)


# ---- sleeping


def running_clock(session: nervix_ffi.Session, node: LoopbackNode) -> tuple[nervix_ffi.Clock, nervix_ffi.DomainClock]:
    """A clock that runs by this machine's time, at a hundred times its speed."""
    clock = session.attach_clock(timeout=PATIENCE)
    node.control(
        "clock_frame",
        what="state",
        domain=DOMAIN,
        generation=7,
        state="paced",
        period=PERIOD,
        origin=0,
        anchor=time.time_ns(),
        rate=100.0,
    )
    while until_changed(clock).generation != 7:
        pass
    return clock, clock.read()


@pytest.mark.rule("B-11")
def test_a_sleep_ends_when_its_time_has_come(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    clock, now = running_clock(session, node)
    target = now.logical_time_at() + 20 * SECOND
    assert now.sleep_until(target, timeout=PATIENCE)
    assert now.logical_time_at() >= target
    assert clock.sleep_until(target, timeout=PATIENCE), "what is past needs no sleep"
    with pytest.raises(nervix_ffi.DeadlineError):
        now.sleep_until(now.logical_time_at() + 3600 * SECOND, timeout=0.05)
    cancel = nervix_ffi.Cancel()
    cancel.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        now.sleep_until(now.logical_time_at() + 3600 * SECOND, cancel=cancel)


FAR = 30 * 86_400 * SECOND

ENDS: dict[str, Callable[[LoopbackNode, nervix_ffi.Session], object]] = {
    "a stop": lambda node, _: node.control("clock_frame", what="state", domain=DOMAIN, generation=7, state="stopped"),
    "another generation": lambda node, _: node.control(
        "clock_frame", what="state", domain=DOMAIN, generation=8, state="paced", period=PERIOD, anchor=0, rate=1.0
    ),
    "another rate": lambda node, _: node.control(
        "clock_frame", what="state", domain=DOMAIN, generation=7, state="paced", period=PERIOD, anchor=0, rate=2.0
    ),
    "the end of the domain": lambda node, _: node.control("clock_frame", what="ended", domain=DOMAIN),
    "a lost session": lambda node, _: node.control("cut", how="abort"),
    "a detach": lambda _, session: session.execute("DETACH DOMAIN CLOCK;", timeout=PATIENCE),
}


@pytest.mark.rule("B-11")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("sleepers", [1, 3])
def test_a_sleep_ends_with_the_clock_that_it_is_by(
    node: LoopbackNode, session: nervix_ffi.Session, how: str, sleepers: int
) -> None:
    clock, now = running_clock(session, node)
    target = now.logical_time_at() + FAR
    asleep = [Running(lambda: now.sleep_until(target, timeout=PATIENCE)) for _ in range(sleepers)]
    ENDS[how](node, session)
    assert [one.result() for one in asleep] == [False] * sleepers
    assert not now.sleep_until(target, timeout=PATIENCE) or how == "a lost session"
    del clock


@pytest.mark.rule("B-9", "B-11")
def test_what_a_sleeper_reads_is_kept_for_the_readers(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    clock, now = running_clock(session, node)
    asleep = Running(lambda: now.sleep_until(now.logical_time_at() + FAR, timeout=PATIENCE))
    node.control("clock_frame", what="tick", domain=DOMAIN, generation=7, tick_id=4)
    node.control("clock_frame", what="state", domain=DOMAIN, generation=9, state="stopped")
    assert not asleep.result()
    event = clock.next(timeout=PATIENCE)
    while isinstance(event, ClockTick):
        event = clock.next(timeout=PATIENCE)
    assert event == ClockChanged(DOMAIN, 9, ClockState.STOPPED, None)


def test_a_closed_session_ends_sleeps_and_reads(node: LoopbackNode) -> None:
    session = connect(node)
    clock, now = running_clock(session, node)
    target = now.logical_time_at() + FAR
    waiting: list[Running[Any]] = [
        Running(lambda: now.sleep_until(target, timeout=PATIENCE)),
        Running(lambda: clock.next(timeout=PATIENCE)),
        Running(lambda: session.next_clock_event(timeout=PATIENCE)),
    ]
    session.close()
    for one in waiting:
        with pytest.raises(nervix_ffi.ClosedError):
            one.result()
    assert now.logical_time_at(0) == 0, "what was read stays"


# ---- subscriptions by domain time


@pytest.mark.rule("CL-1", "S-4")
def test_a_filter_by_domain_time_waits_for_the_start() -> None:
    """Opened before START it skips what it cannot judge; after that it filters, without having been opened again."""
    graph = """
        CREATE PACED DOMAIN lab WITH PERIOD 100ms SKEW 100ms;
        USE lab;
        CREATE SCHEMA reading (id U32, value I64 OPTIONAL, note STRING);
        CREATE RELAY readings SCHEMA reading UNBRANCHED;
        CREATE SCHEMA timed (id U32, at DATETIME);
        CREATE RELAY times SCHEMA timed UNBRANCHED;
    """

    def timed(node: LoopbackNode, *times: tuple[int, int]) -> None:
        node.control("publish", domain=DOMAIN, relay="times", rows=[{"id": number, "at": at} for number, at in times])

    with LoopbackNode(load=graph, options=["--frozen-time"]) as node, connect(node) as session:
        with session.subscribe("times", where="at <= now()") as subscription:
            timed(node, (1, ORIGIN), (2, ORIGIN + 7 * SECOND))
            skipped = next_event(subscription)
            assert isinstance(skipped, RowsSkipped)
            assert (skipped.count, skipped.cause) == (2, SkipCause.DOMAIN_TIME_UNAVAILABLE)
            generation = skipped.generation
            execute(node, "START AT '2030-01-01T00:00:00Z';")
            timed(node, (3, ORIGIN), (4, ORIGIN + 7 * SECOND))
            assert read_ids(subscription, 1) == [3]
            advance(node, "10s")
            timed(node, (5, ORIGIN + 7 * SECOND), (6, ORIGIN + 70 * SECOND))
            assert read_ids(subscription, 1) == [5]
            execute(node, "STOP;")
            timed(node, (7, ORIGIN))
            again = next_event(subscription)
            assert isinstance(again, RowsSkipped)
            assert (again.cause, again.generation) == (SkipCause.DOMAIN_TIME_UNAVAILABLE, generation)
        with session.subscribe("readings") as plain:
            publish(node, 9)
            assert read_ids(plain, 1) == [9], "without now() no clock is needed"


# ---- other domains


class Late(nervix_ffi.Cancel):
    """A token that is triggered once it was given to so many calls of the library."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._calls = calls

    def _listen(self, key: object, listener: Callable[[], None]) -> None:
        super()._listen(key, listener)
        self._calls -= 1
        if self._calls == 0:
            self.trigger()


@pytest.mark.rule("L-1", "K-1")
@pytest.mark.parametrize("calls", range(1, 7))
def test_an_attach_that_is_given_up_leaves_the_selected_domain(session: nervix_ffi.Session, calls: int) -> None:
    with contextlib.suppress(nervix_ffi.CancelledError):
        session.attach_clock("idle", cancel=Late(calls))
    # The library has it as the session does.
    assert session.domain == DOMAIN
    assert f"domain: {DOMAIN}\n" in session.execute("DESCRIBE DOMAIN;", timeout=PATIENCE).message


@pytest.mark.rule("L-1", "K-1")
def test_a_clock_of_another_domain_moves_no_command_of_another_thread(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def attach() -> None:
        for _ in range(30):
            session.attach_clock("idle", timeout=PATIENCE).detach(timeout=PATIENCE)

    attaching = Running(attach)
    for number in range(60):
        assert session.execute(f"CREATE SCHEMA here{number} (id U32);", timeout=PATIENCE).completed
        execute(node, f"SHOW CREATE SCHEMA here{number};")
    attaching.result()
