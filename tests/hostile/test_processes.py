"""Signals, forks and the end of the interpreter."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH, PATIENCE, connect, counts, expect_line, finish, python, wait

#: What a call may take to come back after Ctrl-C before the test fails; the aim is 0.2 s, and the time is printed.
WORST = 2.0

PRELUDE = """
    import os
    import signal
    import sys
    import threading
    import time

    import nervix_ffi

    def interrupted(what, call):
        began = time.monotonic()
        print("WAITING", flush=True)
        try:
            call()
        except KeyboardInterrupt:
            print(f"INTERRUPTED {time.time():.6f}", flush=True)
        else:
            print(f"{what} came back", flush=True)
"""


def interrupt(process: subprocess.Popen[str], what: str, asleep: float = 0.3) -> None:
    """Send SIGINT to a process that waits, and check when it says that it was interrupted."""
    expect_line(process, "WAITING")
    time.sleep(asleep)  # Nothing tells from outside when a call has begun to wait.
    sent = time.time()
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("INTERRUPTED "), line
    took = float(line.split()[1]) - sent
    print(f"{what}: {took * 1000:.1f} ms after SIGINT")
    assert took < WORST


def test_interrupt_in_connect_to_a_socket_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, LoopbackNode(load=GRAPH) as node:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = python(
            PRELUDE
            + """
    interrupted("connect", lambda: nervix_ffi.connect(sys.argv[1]))
    with nervix_ffi.connect(sys.argv[2], domain="lab", timeout=30) as session:
        print(session.execute("SHOW CREATE RELAY readings;", timeout=30).completed, flush=True)
""",
            uri,
            node.uri,
        )
        interrupt(process, "connect")
        assert finish(process) == ("True\n", "")
        assert process.returncode == 0


@pytest.mark.rule("B-1", "D-4")
def test_interrupt_in_execute() -> None:
    with LoopbackNode(load=GRAPH) as node:
        node.control("delay", when="after")
        process = python(
            PRELUDE
            + """
    with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as session:
        execution = session.prepare("CREATE SCHEMA made (id U32);")
        print(execution.reference, flush=True)
        interrupted("execute", lambda: execution.run())
        sys.stdin.readline()
        print(execution.run(timeout=30).completed, flush=True)
""",
            node.uri,
        )
        assert process.stdout is not None
        reference = process.stdout.readline().strip()
        wait(node, held=1)
        interrupt(process, "execute")
        node.control("release")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert finish(process) == ("True\n", "")
        assert counts(node)["executed"][reference] == 1


@pytest.mark.parametrize("reader", ["session.next_event()", "next(subscription)"])
def test_interrupt_in_next_event(reader: str) -> None:
    with LoopbackNode(load=GRAPH) as node:
        process = python(
            PRELUDE
            + f"""
    with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as session:
        subscription = session.subscribe("readings", name="s")
        interrupted("next_event", lambda: {reader})
        print("AGAIN", flush=True)
        event = {reader}
        print(event.rows(), flush=True)
""",
            node.uri,
        )
        interrupt(process, reader)
        expect_line(process, "AGAIN")
        node.control("publish", domain="lab", relay="readings", rows=[{"id": 1, "value": None, "note": "x"}])
        assert finish(process) == ("[{'id': 1, 'value': None, 'note': 'x'}]\n", "")


def test_a_signal_whose_handler_does_not_raise_disturbs_no_call() -> None:
    """Handlers run while the call waits, once a signal, and the call then gives what it would have given."""
    with LoopbackNode(load=GRAPH) as node:
        node.control("delay", when="after")
        process = python(
            PRELUDE
            + """
    seen = []
    def handler(number, frame):
        seen.append(number)
        print("HANDLED", flush=True)

    signal.signal(signal.SIGUSR1, handler)
    with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as session:
        execution = session.prepare("CREATE SCHEMA made (id U32);")
        outcome = execution.run(timeout=60)
        print(outcome.completed, outcome.reference == execution.reference, flush=True)
        subscription = session.subscribe("readings", name="s")
        print("SUBSCRIBED", flush=True)
        print(len(subscription.next(timeout=60)), len(seen), flush=True)
""",
            node.uri,
        )
        wait(node, held=1)
        for _ in range(5):
            process.send_signal(signal.SIGUSR1)
            expect_line(process, "HANDLED")
        assert counts(node)["frames"]["in"]["CommandRequest"] >= 1
        node.control("release")
        expect_line(process, "True True")
        expect_line(process, "SUBSCRIBED")
        for _ in range(5):
            process.send_signal(signal.SIGUSR1)
            expect_line(process, "HANDLED")
        node.control("publish", domain="lab", relay="readings", rows=[{"id": 1, "value": None, "note": "x"}])
        expect_line(process, "1 10")
        assert finish(process) == ("", "")
        executed = counts(node)["executed"]
        assert max(executed.values()) == 1


def test_a_wakeup_descriptor_of_the_host_keeps_hearing_signals(node: LoopbackNode) -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        reader.settimeout(PATIENCE)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        previous = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            with connect(node) as session:
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(nervix_ffi.DeadlineError):
                    session.next_event(timeout=0.6)
                timer.join()
                assert signal.SIGUSR1 in reader.recv(16)
            assert signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False) == writer.fileno()
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGUSR1, previous)


@pytest.mark.rule("D-4")
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_a_timeout_ends_a_wait_in_time_and_the_object_goes_on(node: LoopbackNode, seconds: float) -> None:
    with connect(node) as session:
        began = time.monotonic()
        with pytest.raises(nervix_ffi.DeadlineError):
            session.next_event(timeout=seconds)
        took = time.monotonic() - began
        print(f"a timeout of {seconds} s took {took:.3f} s")
        assert seconds <= took < seconds + WORST
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


# ---- the end of the interpreter


def test_exit_while_daemon_threads_are_blocked_in_calls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, LoopbackNode(load=GRAPH) as node:
        node.control("delay", when="after", count=10)
        process = python(
            PRELUDE
            + """
    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
    subscription = session.subscribe("readings", name="s")
    calls = [
        lambda: session.next_event(),
        lambda: next(subscription),
        lambda: session.execute("CREATE SCHEMA made (id U32);"),
        lambda: nervix_ffi.connect(sys.argv[2]),
    ]
    for call in calls:
        threading.Thread(target=call, daemon=True).start()
    print("BLOCKED", flush=True)
    sys.stdin.readline()
""",
            node.uri,
            f"http://127.0.0.1:{silent.getsockname()[1]}",
        )
        expect_line(process, "BLOCKED")
        wait(node, held=1)
        began = time.monotonic()
        assert finish(process) == ("", "")
        print(f"exit took {time.monotonic() - began:.3f} s")
        assert process.returncode == 0
        wait(node, sessions={"exactly": 0})
        assert counts(node)["sessions"]["ended"]["end_stream"] == 0


def test_exit_with_everything_open_and_in_cycles() -> None:
    with LoopbackNode(load=GRAPH) as node:
        process = python(
            PRELUDE
            + """
    class Holder:
        pass

    holders = []
    for _ in range(5):
        holder = Holder()
        holder.session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
        holder.execution = holder.session.prepare("SHOW CLUSTER STATUS;")
        holder.subscription = holder.session.subscribe("readings")
        holder.me = holder
        holders.append(holder)
    sys.modules["kept"] = holders
""",
            node.uri,
        )
        assert finish(process) == ("", "")
        assert process.returncode == 0
        wait(node, sessions_ended=5)


# ---- forks


FORK = """
    import warnings

    warnings.filterwarnings("ignore", category=DeprecationWarning)  # CPython warns at every fork with threads.
    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
    subscription = session.subscribe("readings", name="s")
    execution = session.prepare("SHOW CLUSTER STATUS;")
    print("READY", flush=True)
    sys.stdin.readline()
    rows = subscription.next(timeout=30)
    view = rows.frame
    child = os.fork()
    if child == 0:
        for call in (
            lambda: session.execute("SHOW CLUSTER STATUS;"),
            lambda: session.next_event(),
            lambda: next(subscription),
            lambda: execution.run(),
            lambda: session.prepare("SHOW CLUSTER STATUS;"),
            lambda: rows.rows(),
        ):
            began = time.monotonic()
            try:
                call()
            except nervix_ffi.ClosedError:
                assert time.monotonic() - began < 1
            else:
                print("an old handle answered", flush=True)
        session.close()
        with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as own:
            assert own.execute("SHOW CREATE RELAY readings;", timeout=30).completed
            with own.subscribe("readings", name="s") as mine:
                print("CHILD", flush=True)
                assert mine.next(timeout=30).rows()[0]["id"] == 2
        print("CHILD DONE", flush=True)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert bytes(view)[4:8] == b"NXSM"
    assert subscription.next(timeout=30).rows()[0]["id"] == 2
    assert execution.run(timeout=30).completed
    print("PARENT", status, flush=True)
"""


@pytest.mark.rule("B-2")
def test_after_a_fork_old_handles_are_closed_and_a_new_connect_works() -> None:
    with LoopbackNode(load=GRAPH) as node:
        process = python(PRELUDE + FORK, node.uri)
        expect_line(process, "READY")
        node.control("publish", domain="lab", relay="readings", rows=[{"id": 1, "value": None, "note": "x"}])
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        expect_line(process, "CHILD")
        node.control("publish", domain="lab", relay="readings", rows=[{"id": 2, "value": None, "note": "y"}])
        expect_line(process, "CHILD DONE")
        expect_line(process, "PARENT 0")
        assert finish(process) == ("", "")
        assert process.returncode == 0
        # The parent's session lived through it all, and no child ended it.
        found = counts(node)["sessions"]
        assert found["opened"] == 2
        assert found["ended"]["end_stream"] == 0


WORKER = """
    import multiprocessing

    def work(uri):
        with nervix_ffi.connect(uri, domain="lab", timeout=30) as session:
            return session.execute("SHOW CREATE RELAY readings;", timeout=30).completed

    if __name__ == "__main__":
        import warnings

        warnings.filterwarnings("ignore", category=DeprecationWarning)
        context = multiprocessing.get_context("fork")
        session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
        with context.Pool(4) as pool:
            print(pool.map(work, [sys.argv[1]] * 8), flush=True)
        print(session.execute("SHOW CLUSTER STATUS;", timeout=30).completed, flush=True)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_forked_workers_have_sessions_of_their_own() -> None:
    with LoopbackNode(load=GRAPH) as node:
        process = python(PRELUDE + WORKER, node.uri)
        output, errors = finish(process)
        assert (output, errors) == (f"{[True] * 8}\nTrue\n", "")


def test_a_fork_while_other_threads_are_in_calls() -> None:
    """The child inherits locks that threads it does not have may hold: it must come out of a connect all the same."""
    code = """
    import warnings

    warnings.filterwarnings("ignore", category=DeprecationWarning)
    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)

    def busy():
        while True:
            session.execute("SHOW CLUSTER STATUS;", timeout=30)

    for _ in range(3):
        threading.Thread(target=busy, daemon=True).start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=20) as own:
                assert own.execute("SHOW CLUSTER STATUS;", timeout=20).completed
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    print("DONE", flush=True)
"""
    with LoopbackNode(load=GRAPH) as node:
        process = python(PRELUDE + code, node.uri)
        assert finish(process) == ("DONE\n", "")
        assert process.returncode == 0


def test_a_host_without_the_main_thread(node: LoopbackNode) -> None:
    """Calls from other threads neither touch the wakeup descriptor nor hear signals."""
    with connect(node) as session:
        found: list[object] = []

        def work() -> None:
            try:
                session.next_event(timeout=0.2)
            except nervix_ffi.DeadlineError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)
        assert len(found) == 1
    assert sys.exc_info() == (None, None, None)


BUSY = """
    import sys
    import threading

    import nervix_ffi

    session = nervix_ffi.connect(sys.argv[1], domain="lab")
    subscription = session.subscribe("readings")

    def connects():
        while True:
            with nervix_ffi.connect(sys.argv[1]) as other:
                other.execute("LIST DOMAINS;")

    def executes():
        while True:
            session.execute("LIST DOMAINS;")

    def iterates():
        for event in subscription:
            pass

    busy = threading.Barrier(7)

    def begins(work):
        busy.wait()
        work()

    for work in (connects, connects, connects, executes, executes, iterates):
        threading.Thread(target=begins, args=(work,), daemon=True).start()
    busy.wait()
    threading.Event().wait(float(sys.argv[2]))
"""


@pytest.mark.parametrize("after", ["0", "0.05", "0.2"])
def test_the_interpreter_exits_quietly_while_daemon_threads_are_busy(node: LoopbackNode, after: str) -> None:
    for _ in range(5):
        process = python(BUSY, node.uri, after)
        assert finish(process) == ("", "")
        assert process.returncode == 0
