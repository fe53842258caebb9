"""Ctrl-C, other signals, forks and the interpreter's exit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess[str]]

INTERRUPT = """
def interrupt(call, number=signal.SIGINT):
    \"\"\"Makes the call, and sends a signal once it waits in the library.\"\"\"
    sent = []
    def send():
        until(lambda: fake.fake_waiting() > 0)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        return call()
    finally:
        thread.join()
        took = time.monotonic() - sent[0]
        print(f"{took:.3f} s")
        assert took < 2, "the call did not end in time"

"""

CALLS = {
    "connect": 'lambda: connect("http://wait")',
    "execute": 'lambda: session.execute("wait")',
    "next_event": "session.next_event",
    "a subscription": "subscription.next",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_ends_a_waiting_call_and_the_session_goes_on(with_fake: Run, call: str) -> None:
    done = with_fake(
        INTERRUPT
        + f"""
session = connect("http://fake")
subscription = session.subscribe("r", name="s")
try:
    interrupt({call})
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("it was swallowed")
assert signal.set_wakeup_fd(-1) == -1
assert session.execute("x").completed
session.execute("rows s 1 2")
assert len(subscription.next()) == 2
subscription.close()
del subscription
session.close()
nothing_is_left()
"""
    )
    assert float(done.stdout.split()[0]) < 2


def test_a_handler_that_does_not_raise_disturbs_no_call(with_fake: Run) -> None:
    with_fake(
        INTERRUPT
        + """
session = connect("http://fake")
seen = []
signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), session.execute("rows s 1 2")))
event = interrupt(lambda: session.next_event(timeout=20), signal.SIGUSR1)
assert isinstance(event, Rows) and seen == [1]
"""
    )


def test_a_handler_that_does_not_raise_leaves_the_deadline_where_it_was(with_fake: Run) -> None:
    with_fake(
        INTERRUPT
        + """
session = connect("http://fake")
signal.signal(signal.SIGUSR1, lambda *_: None)
started = time.monotonic()
before = fake.fake_executed()
try:
    interrupt(lambda: session.execute("wait", timeout=0.5), signal.SIGUSR1)
except DeadlineError as failure:
    assert failure.reference == "reference-1"
else:
    raise AssertionError
assert 0.4 < time.monotonic() - started < 2
assert fake.fake_executed() == before + 2, "the same execution was run again"
"""
    )


def test_a_call_that_completed_when_the_signal_came_loses_nothing(with_fake: Run) -> None:
    with_fake(
        INTERRUPT
        + """
session = connect("http://fake")
def raises(*_):
    raise RuntimeError("from the handler")
signal.signal(signal.SIGUSR1, raises)
# The event arrives while the signal is on its way: whoever reads next gets it.
def push_and_send():
    until(lambda: fake.fake_waiting() > 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    session.execute("rows s 1 2")
for _ in range(50):
    thread = threading.Thread(target=push_and_send)
    thread.start()
    try:
        event = session.next_event()
    except RuntimeError:
        event = session.next_event()
    thread.join()
    assert len(event) == 2
del event
session.close()
nothing_is_left()
"""
    )


def test_the_wakeup_descriptor_of_another_is_kept_and_served(with_fake: Run) -> None:
    with_fake(
        INTERRUPT
        + """
import socket
session = connect("http://fake")
theirs, mine = socket.socketpair()
theirs.setblocking(False)
mine.setblocking(False)
signal.set_wakeup_fd(theirs.fileno())
signal.signal(signal.SIGUSR1, lambda *_: session.execute("rows s 1 2"))
interrupt(session.next_event, signal.SIGUSR1)
assert mine.recv(100) == bytes([signal.SIGUSR1])
assert signal.set_wakeup_fd(-1) == theirs.fileno()
theirs.close()
mine.close()
"""
    )


def test_a_call_without_a_descriptor_left_to_watch_signals_by_is_not_made(with_fake: Run) -> None:
    with_fake(
        """
import resource
found = []
thread = threading.Thread(target=lambda: found.append(connect("http://fake").prepare("x")))
thread.start()
thread.join()
(execution,) = found
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
before, failures = fake.fake_executed(), []
calls = {ConnectError: lambda: connect("http://fake"), TransportError: execution.run}
for kind, call in calls.items():
    try:
        call()
    except kind as failure:
        assert "nothing was sent" in str(failure) and "ulimit -n" in str(failure), failure
        assert isinstance(failure.__cause__, OSError)
        failures.append(failure)
assert len(failures) == 2 and fake.fake_executed() == before
for descriptor in held:
    os.close(descriptor)
assert failures[1].execution is execution and execution.run().completed
assert connect("http://fake").execute("x").completed
"""
    )


def test_another_thread_is_left_alone_by_ctrl_c(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        got = []
        thread = threading.Thread(target=lambda: got.append(session.next_event()))
        thread.start()
        until(lambda: fake.fake_waiting() == 1)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            pass
        session.execute("rows s 1 2")
        thread.join()
        assert len(got[0]) == 2
        """
    )


def test_the_interpreter_exits_cleanly_while_daemon_threads_wait(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        subscription = session.subscribe("r")
        calls = [lambda: session.execute("wait"), session.next_event, subscription.next, lambda: connect("http://wait")]
        for call in calls:
            threading.Thread(target=call, daemon=True).start()
        until(lambda: fake.fake_waiting() == 3)
        """
    )


def test_a_forked_child_releases_nothing_and_its_calls_raise_closed(with_fake: Run) -> None:
    done = with_fake(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Forking a process that has threads.
        session = connect("http://fake")
        execution, subscription = session.prepare("x"), session.subscribe("r")
        session.execute("rows s 1 3")
        event = session.next_event()
        frame = event.frame
        before = live()
        child = os.fork()
        if child == 0:
            for call in (execution.run, lambda: session.execute("x"), subscription.next, event.rows, session.next_event):
                try:
                    call()
                except ClosedError as failure:
                    assert "forked" in str(failure)
                    del failure
                    continue
                os._exit(3)
            session.close()
            event.release()
            del session, execution, subscription, event, frame, call
            gc.collect()
            if live() != before or fake.fake_bad_frees():
                os._exit(4)
            with connect("http://fake") as mine:
                if not mine.execute("x").completed:
                    os._exit(5)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert session.execute("x").completed and len(event.rows()) == 3
        del event, frame, execution, subscription
        session.close()
        del session
        nothing_is_left()
        """
    )
    assert done.stdout == ""
