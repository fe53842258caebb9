"""Clocks without a server: what is kept for whom, who is woken, and when everything is released."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .test_signals import INTERRUPT

Run = Callable[[str], subprocess.CompletedProcess[str]]

CLOCK = """
session = connect("http://fake", domain="lab")
def seconds(number):
    return time.time_ns() + int(number * 1e9)
def kinds(events):
    return [type(event).__name__ for event in events]

"""


@pytest.mark.rule("B-9", "B-11")
def test_an_attached_clock_is_read_before_any_event(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
assert session.domain_clock() is None
clock = session.attach_clock()
now = clock.read()
assert (now.domain, now.generation, now.state, now.tick) == ("lab", 1, ClockState.PACED, None)
assert now.pacing == Pacing(100_000_000, 10_000_000, 0, 0, 1.0) and now.paced
assert now.logical_time_at(7) == 7 and now.wall_duration_until(9, utc=7) == 2 and now.wall_duration_until(0) == 0
assert now.admission_window(250_000_000) == (200_000_000 - 255 * 100_000_000, 200_000_000)
assert now.admits(1, utc=2) and not now.admits(3, utc=2)
session.execute("clock-tick 1 5")
assert clock.next() == ClockTick("lab", 1, Tick(5, 400_000_000, 400_000_001, 400_000_001))
assert clock.read().tick == Tick(5, 400_000_000, 400_000_001, 400_000_001)
assert now.tick is None, "a clock that was read never changes"
other = session.attach_clock("lab")
assert other.read().same_as(now)
other.close()
clock.detach()
clock.detach()
assert session.domain_clock() is None and list(clock) == []
for call in (clock.read, clock.next):
    try:
        call()
    except ClosedError as failure:
        assert "attach it again" in str(failure)
del now, clock, other
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-9")
def test_each_clock_event_is_released_once_and_has_what_its_kind_has(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock = session.attach_clock()
for command in ("clock-state 2 1", "clock-interrupted", "clock-failed", "clock-state 3 4", "clock-tick 3 1", "clock-ended"):
    session.execute(command)
    if command == "clock-tick 3 1":
        seen = [clock.next() for _ in range(5)]
seen += list(clock)
assert seen == [
    ClockChanged("lab", 2, ClockState.STOPPED, None), ClockInterrupted("lab"), ClockRestorationFailed("lab"),
    ClockChanged("lab", 3, ClockState.PACED, Pacing(100_000_000, 10_000_000, 0, 0, 1.0)),
    ClockTick("lab", 3, Tick(1, 0, 1, 1)), ClockEnded("lab", ClockEndReason.DOMAIN_REMOVED),
], seen
assert [event.kind for event in seen] == [1, 4, 5, 1, 2, 3]
session.close()
del clock
nothing_is_left()
"""
    )


@pytest.mark.rule("K-3", "B-11")
def test_what_is_kept_for_a_reader_is_the_newest_of_each_kind_and_a_tick_comes_after_its_clock() -> None:
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
        Tick,
    )
    from nervix_ffi._clockpump import ClockQueue

    pacing = Pacing(1, 1, 0, 0, 1.0)

    def state(generation: int, domain: str = "a") -> ClockEvent:
        return ClockChanged(domain, generation, ClockState.PACED, pacing)

    def tick(generation: int, number: int, domain: str = "a") -> ClockEvent:
        return ClockTick(domain, generation, Tick(number, 0, 0, 0))

    def kept(*events: ClockEvent) -> list[ClockEvent]:
        queue = ClockQueue()
        for event in events:
            queue.put(event)
        found = []
        while (event := queue.take()) is not None:  # type: ignore[assignment]
            found.append(event)
        return found

    stopped = ClockChanged("a", 1, ClockState.STOPPED, None)
    gap, ended = ClockInterrupted("a"), ClockEnded("a", ClockEndReason.DOMAIN_REMOVED)
    failed = ClockRestorationFailed("a")
    assert kept(state(1), tick(1, 1), tick(1, 2)) == [state(1), tick(1, 2)]
    assert kept(state(1), tick(1, 1), state(1)) == [state(1), tick(1, 1)]
    assert kept(state(1), tick(1, 1), state(2)) == [state(2)]
    assert kept(state(1), tick(1, 1), stopped) == [stopped]
    assert kept(state(1), tick(1, 1), gap, failed, failed, state(1)) == [gap, failed, state(1)]
    assert kept(state(1), tick(1, 1), gap, tick(1, 9)) == [state(1), gap, tick(1, 9)]
    assert kept(state(1), tick(1, 1), failed) == [state(1), failed, tick(1, 1)]
    assert kept(state(1), tick(1, 1), gap, ended) == [ended]
    assert kept(ended, state(2)) == [ended, state(2)]
    several = kept(state(1), tick(1, 1), state(5, "b"), tick(5, 2, "b"), state(2))
    assert [event for event in several if event.domain == "b"] == [state(5, "b"), tick(5, 2, "b")]
    assert [event for event in several if event.domain == "a"] == [state(2)]


@pytest.mark.rule("B-11")
def test_a_sleep_ends_with_its_center_and_what_it_heard_is_kept(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock = session.attach_clock()
session.execute("clock-state 1 4")
session.execute("clock-tick 1 1")
center = seconds(0.05)
assert clock.sleep_until(center) is True and time.time_ns() >= center
assert clock.sleep_until(center) is True, "it has come"
assert kinds([clock.next(), clock.next()]) == ["ClockChanged", "ClockTick"]
"""
    )


@pytest.mark.rule("B-11")
@pytest.mark.parametrize(
    "command", ["clock-state 1 1", "clock-state 2 4", "clock-interrupted", "clock-ended", "DETACH DOMAIN CLOCK;"]
)
def test_a_change_of_the_clock_ends_a_sleep(with_fake: Run, command: str) -> None:
    with_fake(
        CLOCK
        + f"""
session.attach_clock().close()
now, slept = session.domain_clock(), []
thread = threading.Thread(target=lambda: slept.append(now.sleep_until(seconds(100))))
thread.start()
until(lambda: fake.fake_waiting() == 1)
session.execute({command!r})
thread.join()
assert slept == [False]
"""
    )


@pytest.mark.rule("B-11")
def test_a_clock_that_was_lost_is_waited_for_and_held_to_what_it_is_then(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock = session.attach_clock()
now = clock.read()
session.execute("clock-interrupted")
assert kinds([clock.next()]) == ["ClockInterrupted"]
try:
    now.sleep_until(seconds(0.01), timeout=0.1)
except DeadlineError:
    pass
else:
    raise AssertionError("it slept by a clock that is lost")
def sleeps(center):
    slept = []
    thread = threading.Thread(target=lambda: slept.append(now.sleep_until(center)))
    thread.start()
    until(lambda: fake.fake_waiting() == 1)
    return thread, slept
thread, slept = sleeps(seconds(0.01))
session.execute("clock-state 1 4")
thread.join()
assert slept == [True], "the same clock as before"
session.execute("clock-interrupted")
assert now.sleep_until(seconds(100)) is False
thread, slept = sleeps(seconds(100))
session.execute("clock-state 2 4")
thread.join()
assert slept == [False], "another clock"
"""
    )


def test_a_sleep_ends_with_its_limits(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock = session.attach_clock()
cancel = Cancel()
cancel.trigger()
for arguments, kind in (({"timeout": 0.02}, DeadlineError), ({"cancel": cancel}, CancelledError)):
    try:
        clock.sleep_until(seconds(100), **arguments)
    except kind:
        pass
    else:
        raise AssertionError(kind)
session.execute("clock-state 1 1")
try:
    clock.sleep_until(0)
except TypeMismatchError:
    pass
else:
    raise AssertionError("a stopped clock has no time")
for value in (2**63, -2**63 - 1):
    try:
        clock.read().logical_time_at(value)
    except InvalidArgumentError as failure:
        assert "64-bit" in str(failure)
"""
    )


@pytest.mark.rule("B-11")
def test_ctrl_c_ends_a_sleep_and_the_clock_goes_on(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + INTERRUPT
        + """
clock = session.attach_clock()
try:
    interrupt(lambda: clock.sleep_until(seconds(100)))
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("it was swallowed")
assert clock.sleep_until(seconds(0.01)) is True
session.execute("clock-tick 1 1")
assert kinds([clock.next()]) == ["ClockTick"]
"""
    )


def test_one_thread_sleeps_while_another_reads(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock, seen, slept = session.attach_clock(), [], []
now = clock.read()
reader = threading.Thread(target=lambda: seen.extend(clock))
sleeper = threading.Thread(target=lambda: slept.append(now.sleep_until(seconds(100))))
for thread in (reader, sleeper):
    thread.start()
until(lambda: fake.fake_waiting() == 1)
for number in range(1, 50):
    session.execute(f"clock-tick 1 {number}")
session.execute("clock-state 2 4")
sleeper.join()
session.execute("clock-ended")
reader.join()
assert slept == [False] and kinds(seen)[-1] == "ClockEnded"
ticks = [event.tick.id for event in seen if isinstance(event, ClockTick)]
assert ticks == sorted(set(ticks))
"""
    )


def test_events_of_a_clock_go_to_its_object_and_the_others_to_the_session(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock = session.attach_clock()
session.execute("clock-tick 1 1")
session.use("other")
session.execute("clock-tick 9 3")
assert session.next_clock_event().domain == "other"
assert clock.next().domain == "lab"
session.execute("clock-tick 9 4")
for event in session.clock_events():
    assert event.tick.id == 4
    break
session.execute("clock-tick 9 5")
session.execute("clock-tick 9 6")
try:
    clock.next(timeout=0.05)
except DeadlineError:
    pass
assert session.next_clock_event(timeout=0).tick.id == 6, "the newest"
with clock:
    assert session.domain == "other"
assert session.domain == "other" and list(clock) == [], "detached, and the selected domain is what it was"
"""
    )


def test_a_closed_session_ends_its_clock_readers(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
clock, ended = session.attach_clock(), []
now = clock.read()
def waits(call):
    try:
        call()
    except ClosedError as failure:
        ended.append(failure)
calls = [clock.next, session.next_clock_event, lambda: now.sleep_until(seconds(100))]
threads = [threading.Thread(target=waits, args=(call,)) for call in calls]
for thread in threads:
    thread.start()
until(lambda: fake.fake_waiting() == 1)
session.close()
for thread in threads:
    thread.join()
assert len(ended) == 3
assert now.logical_time_at(3) == 3, "what was read stays valid"
del clock, now, session, threads, thread, calls
ended.clear()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-11")
def test_an_attach_that_a_signal_interrupted_and_that_took_effect_has_completed(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + INTERRUPT
        + """
signal.signal(signal.SIGUSR1, lambda *_: None)
session.execute("attach-waits")
outcome = interrupt(lambda: session.execute("ATTACH DOMAIN CLOCK;"), signal.SIGUSR1)
assert outcome.completed and session.domain_clock() is not None
try:
    session.execute("ATTACH DOMAIN CLOCK;")
except CommandFailed:
    pass
else:
    raise AssertionError("a clock that is followed already is not attached again")
"""
    )


@pytest.mark.rule("B-11")
def test_an_attach_that_was_given_up_is_found_by_the_next(with_fake: Run) -> None:
    with_fake(
        CLOCK
        + """
session.execute("attach-waits")
try:
    session.attach_clock(timeout=0.05)
except DeadlineError as failure:
    assert failure.execution is not None
assert session.attach_clock().read().generation == 1
"""
    )


def test_a_clock_needs_a_domain(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        for call in (session.attach_clock, session.domain_clock, lambda: session.open_producer("i", "id U32")):
            try:
                call()
            except InvalidArgumentError as failure:
                assert "use()" in str(failure)
            else:
                raise AssertionError
        session.execute(" use  lab ; ")
        assert session.domain == "lab" and session.attach_clock().domain == "lab"
        """
    )
