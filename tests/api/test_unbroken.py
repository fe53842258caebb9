"""A signal handler that raises anywhere leaves nothing half done: every object goes on, closes and is released.

The exhaustive tests raise at each point where the interpreter would run a handler, one after the other; the storms leave it to
chance, with real signals.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess[str]]

POINTS = '''
import dis, faulthandler, itertools
faulthandler.dump_traceback_later(100, exit=True)
connect("http://fake").close()  # What is made once in a process is there.

class Boom(BaseException):
    """What the handler raises."""

PACKAGE = os.path.dirname(nervix_ffi.__file__)
#: The interpreter looks for signals behind these, and nowhere else.
LOOKS = {dis.opmap[name] for name in (
    "CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_METHOD",
    "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE"
) if name in dis.opmap}

class Raising:
    """Raises at one of the points of the package's code that a call comes to."""

    def __init__(self, point):
        self.left, self.before = point, {}

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            code = frame.f_code.co_code[frame.f_lasti]
            before, self.before[frame] = self.before.get(frame), code
            if before in LOOKS:
                self.left -= 1
                if self.left < 0:
                    self.before.clear()
                    raise Boom
        else:  # A return, or an exception, behind which it does not look.
            self.before.pop(frame, None)
        return self

def at_every_point(call, then):
    """Makes the call again and again, raising at another point each time, and ``then`` each time, until it came through."""
    for point in itertools.count():
        raising = Raising(point)
        sys.settrace(raising)
        try:
            call()
        except Boom as raised:
            sys.settrace(None)
            then(raised)
            continue
        finally:
            sys.settrace(None)
        assert point > 3, point
        print(point, "points")
        return

'''

STORM = '''
import faulthandler, random
faulthandler.dump_traceback_later(100, exit=True)

class Boom(BaseException):
    """What the handler raises."""

armed = False
def handler(*_):
    if armed:
        raise Boom
signal.signal(signal.SIGALRM, handler)

def storm(call, then, longest, rounds=400):
    """Makes the call with a signal at a time of its own, so many times, and ``then`` after each that it ended."""
    global armed
    ended = 0
    for _ in range(rounds):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, longest))
            call()
        except Boom as raised:
            armed = False
            ended += 1
            then(raised)
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    print(ended, "of", rounds)

'''

NEXT = """
session = connect("http://fake")
subscription = session.subscribe("r", name="s")
other, seen = session.subscribe("r", name="t"), []
thread = threading.Thread(target=lambda: seen.extend(len(event) for event in other if isinstance(event, Rows)))
if BESIDES:
    thread.start()
def fake_push(name):
    session.execute(f"rows {name} 1 1")
def goes_on(raised):
    fake_push("s")
    assert len(subscription.next(timeout=20)) == 1
    fake_push("s")
    assert signal.set_wakeup_fd(-1) == -1
    if BESIDES:
        before = len(seen)
        fake_push("t")
        until(lambda: len(seen) > before)
"""


@pytest.mark.parametrize("besides", [False, True], ids=["alone", "beside another reader"])
def test_a_read_that_a_handler_ends_leaves_the_reading_as_it_was(with_fake: Run, besides: bool) -> None:
    with_fake(
        POINTS
        + NEXT.replace("BESIDES", str(besides))
        + """
fake_push("s")
at_every_point(lambda: subscription.next(timeout=20), goes_on)
other.close()
if thread.ident:
    thread.join()
while live().get("event"):
    subscription.next(timeout=20)
session.close()
del subscription, other, session
nothing_is_left()
"""
    )


def test_a_command_that_a_handler_ends_leaves_the_session_as_it_was(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
session = connect("http://fake")
def goes_on(raised):
    assert session.execute("x").completed
    assert signal.set_wakeup_fd(-1) == -1
at_every_point(lambda: session.execute("x"), goes_on)
session.close()
assert "session" not in live()
del session
nothing_is_left()
"""
    )


def test_a_session_closes_while_what_a_handler_raised_is_still_held(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
kept = []
def closes(raised):
    kept.append(raised)
    sessions[-1].close()
    assert fake.fake_live(0) == 0, "the session is still open"
sessions = [connect("http://fake")]
def call():
    sessions[0].execute("x")
    sessions[0].next_event(timeout=0)
def tried():
    try:
        call()
    except DeadlineError:
        pass
for point in itertools.count(0, 3):
    sessions[0] = connect("http://fake")
    raising = Raising(point)
    sys.settrace(raising)
    try:
        tried()
    except Boom as raised:
        sys.settrace(None)
        closes(raised)
        continue
    finally:
        sys.settrace(None)
    break
assert len(kept) > 20
sessions[0].close()
kept.clear()
sessions.clear()
nothing_is_left()
"""
    )


def test_a_connect_or_a_close_that_a_handler_ends_leaves_no_session(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
def nothing(raised):
    del raised
    gc.collect()
    assert signal.set_wakeup_fd(-1) == -1
def connects():
    connect("http://fake").close()
at_every_point(connects, nothing)
nothing_is_left()
session = connect("http://fake")
def closes_again(raised):
    global session
    session.close()
    assert fake.fake_live(0) == 0
    session = connect("http://fake")
at_every_point(lambda: session.close(), closes_again)
del session
nothing_is_left()
"""
    )


def test_clocks_that_a_handler_interrupts_go_on(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
session = connect("http://fake", domain="lab")
clock, tick = session.attach_clock(), itertools.count(1)
def push():
    session.execute(f"clock-tick 1 {next(tick)}")
def goes_on(raised):
    push()
    assert isinstance(clock.next(timeout=20), ClockTick)
    push()
push()
at_every_point(lambda: clock.next(timeout=20), goes_on)
def sleeps():
    assert clock.sleep_until(time.time_ns() + 1_000_000, timeout=20)
def slept(raised):
    sleeps()
    assert not session._clocks._sleepers
at_every_point(sleeps, slept)
session.close()
del clock, session
nothing_is_left()
"""
    )


def test_producers_and_consumers_that_a_handler_interrupts_go_on(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
session = connect("http://fake", domain="lab")
FIELDS, ROWS = "id U32, name STRING OPTIONAL, secret BYTES SENSITIVE", [{"id": 1, "secret": b"x"}]
producer, consumer = session.open_producer("in", FIELDS), session.open_consumer("out", FIELDS)
def settle():
    for submission in producer.pending():
        session.execute(f"outcome {submission.identity} {SubmissionResult.COMPLETED.value} 0")
        assert submission.result(timeout=20).completed
def submits():
    submission = producer.submit(ROWS, timeout=20)
    submission.release()
at_every_point(submits, lambda raised: settle())
settle()
submission = producer.submit(ROWS)
session.execute(f"outcome {submission.identity} {SubmissionResult.COMPLETED.value} 0")
def again(raised):
    assert submission.result(timeout=5).completed
at_every_point(lambda: submission.result(timeout=20), lambda raised: None)
again(None)
def takes():
    with consumer.next(timeout=20) as delivery:
        delivery.ack()
def taken(raised):
    session.execute("deliver 1")
    takes()
    session.execute("deliver 1")
import warnings
warnings.simplefilter("ignore", ResourceWarning)
session.execute("deliver 1")
at_every_point(takes, taken)
while live().get("delivery"):
    consumer.next(timeout=20).release()
producer.release()
consumer.release()
session.close()
del producer, consumer, session, submission
nothing_is_left()
"""
    )


@pytest.mark.rule("B-14")
def test_whatever_ends_a_submission_names_the_batch_that_was_submitted(with_fake: Run) -> None:
    with_fake(
        POINTS
        + """
session = connect("http://fake", domain="lab")
FIELDS, ROWS = "id U32, name STRING OPTIONAL, secret BYTES SENSITIVE", [{"id": 1, "secret": b"x"}]
producer = session.open_producer("in", FIELDS)
known, over = [], threading.Event()
def completes():
    while not over.wait(0.0005):
        for submission in producer.pending():
            if not submission.done():
                session.execute(f"outcome {submission.identity} {SubmissionResult.COMPLETED.value} 0")
completing = threading.Thread(target=completes)
completing.start()
def named(raised):
    submission = getattr(raised, "submission", None)
    known.append(submission is not None)
    assert producer.pending() in ([], [submission]), (producer.pending(), submission)
    if submission is not None:
        assert submission.result(timeout=20).completed
def submits(call, *arguments):
    submission = call(*arguments)
    sys.settrace(None)
    submission.result()
for call in (
    lambda: producer.send(ROWS, timeout=20),
    lambda: submits(producer.submit, ROWS),
    lambda: submits(producer.submit_ipc, b"a stream"),
):
    known.clear()
    at_every_point(call, named)
    assert set(known) == {True, False}
over.set()
completing.join()
"""
    )


CALLS = {
    "next": ("subscription.next(timeout=0.001)", 3e-3),
    "execute": ('session.execute("x")', 3e-4),
    "connect": ('connect("http://fake").close()', 5e-4),
    "close": ("close()", 2e-4),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_storm_of_signals_breaks_nothing(with_fake: Run, name: str) -> None:
    call, longest = CALLS[name]
    with_fake(
        STORM
        + f"""
session = connect("http://fake")
subscription = session.subscribe("r", name="s")
def close():
    made = connect("http://fake")
    made.prepare("x")
    made.close()
def call():
    try:
        {call}
    except DeadlineError:
        pass
def goes_on(raised):
    session.execute("rows s 1 1")
    assert len(subscription.next(timeout=20)) == 1
    assert not session._handle._tokens and not session._pump._turns
storm(call, goes_on, {longest})
assert signal.set_wakeup_fd(-1) == -1
subscription.close()
session.close()
del subscription, session
nothing_is_left()
"""
    )


def test_a_handler_that_reads_the_session_that_it_interrupted_is_served(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        subscription, seen = session.subscribe("r", name="s"), []
        def handler(*_):
            session.execute("rows s 1 3")
            seen.append(len(subscription.next(timeout=20)))
            session.execute("rows s 1 4")
        signal.signal(signal.SIGUSR1, handler)
        def send():
            until(lambda: fake.fake_waiting() > 0)
            os.kill(os.getpid(), signal.SIGUSR1)
        thread = threading.Thread(target=send)
        thread.start()
        assert len(subscription.next(timeout=20)) == 4 and seen == [3]
        thread.join()
        """
    )


def test_a_forked_child_is_told_at_once_while_a_thread_of_the_parent_reads(with_fake: Run) -> None:
    with_fake(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Forking a process that has threads.
        def until_closed(call):
            try:
                call()
            except ClosedError:
                pass
        session = connect("http://fake", domain="lab")
        subscription, clock, never = session.subscribe("r", name="s"), session.attach_clock(), session.subscribe("r", name="n")
        now = clock.read()
        for call in (subscription.next, clock.next):
            threading.Thread(target=lambda call=call: until_closed(call)).start()
        until(lambda: fake.fake_waiting() == 2)
        # As if the fork came while other threads were in the midst of it.
        held = [session._pump._lock, session._clocks._lock, session._selecting]
        ready, go = threading.Event(), threading.Event()
        def hold():
            for lock in held:
                lock.acquire()
            ready.set()
            go.wait()
            for lock in held:
                lock.release()
        holder = threading.Thread(target=hold)
        holder.start()
        ready.wait()
        child = os.fork()
        if child == 0:
            import faulthandler
            faulthandler.dump_traceback_later(20, exit=True)
            calls = [
                subscription.next, lambda: subscription.next(timeout=1), never.next, session.next_event, clock.next, clock.read,
                session.next_clock_event, session.attach_clock, lambda: now.sleep_until(0), lambda: session.subscribe("r"),
                lambda: session.execute("x"),
            ]
            for number, call in enumerate(calls):
                try:
                    call()
                except ClosedError as failure:
                    assert "forked" in str(failure)
                    continue
                os._exit(10 + number)
            for end in (subscription.close, never.close, clock.close, clock.detach, session.close):
                end()
            os._exit(0)
        go.set()
        holder.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session.close()
        """
    )
