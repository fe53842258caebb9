"""Threads, forks and the end of the interpreter, with everything that a session can have alive."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nervix_ffi.testing import LoopbackNode

from .. import endpoints
from ..support import DOMAIN, Running, expect_line, finish, reading, wait

HAMMER = Path(__file__).resolve().parent / "hammer.py"

GRAPH = (
    endpoints.GRAPH
    + """
USE lab;
CREATE SCHEMA reading (id U32, value I64 OPTIONAL, note STRING);
CREATE RELAY readings SCHEMA reading UNBRANCHED;
CREATE PACED DOMAIN beat WITH PERIOD 20ms SKEW 1ms;
USE beat;
START;
"""
)


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with relays, endpoints and a clock that ticks."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


def strict(*arguments: str) -> subprocess.Popen[str]:
    """A Python process in development mode, with warnings as errors and a trace of every thread should it crash."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-X", "faulthandler", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """As `strict`, for code that begins with everything that a session can have."""
    return strict("-c", EVERYTHING + textwrap.dedent(code), *arguments)


@pytest.mark.rule("B-2", "B-3", "B-9", "B-14", "B-15", "F-9")
@pytest.mark.parametrize("seed", [1, 2])
def test_eight_threads_use_everything_at_once(node: LoopbackNode, seed: int) -> None:
    process = strict(str(HAMMER), node.uri, str(seed), "3")
    over = threading.Event()

    def publish() -> None:
        rows = [reading(number, "n" * 100) for number in range(10)]
        while not over.is_set():
            node.control("publish", domain=DOMAIN, relay="readings", rows=rows)

    publishing = Running(publish)
    output, errors = finish(process)
    over.set()
    publishing.result()
    print(output)
    assert (errors, process.returncode) == ("", 0)
    assert output.endswith("DONE\n")
    wait(node, sessions={"exactly": 0}, clocks={"exactly": 0}, producers={"exactly": 0}, consumers={"exactly": 0})


#: One of everything, alive, and calls that wait in each of them.
EVERYTHING = '''
import gc
import os
import sys
import threading
import time
import warnings
from functools import partial

import nervix_ffi

FIELDS = "id U64, note STRING OPTIONAL"
ROWS = [{"id": 1, "note": "kept"}]

session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
subscription = session.subscribe("readings", timeout=30)
execution = session.prepare("SHOW CLUSTER STATUS;")
producer = session.open_producer("held", FIELDS, timeout=30)
other = session.open_producer("quick", FIELDS, timeout=30)
consumer = session.open_consumer("out", FIELDS, timeout=30)
clock = session.attach_clock("beat", timeout=30)
domain_clock = clock.read()
batch = producer.batch(ROWS)
submission = producer.submit(batch, timeout=30)
delivery = consumer.next(timeout=30)
outcome = session.execute("SHOW CLUSTER STATUS;", timeout=30)
print("OPEN", flush=True)
sys.stdin.readline()
event = subscription.next(timeout=30)
views = [event.frame, batch.ipc, delivery.ipc, event.to_arrow(), batch.to_arrow(), delivery.to_arrow()]

calls = {
    "read": subscription.next,
    "read any": session.next_event,
    "run": execution.run,
    "tick": clock.next,
    "outcome": submission.result,
    "deliver": consumer.next,
    "suggest": partial(session.suggest, "CREATE "),
    "submit": partial(producer.submit, batch),
    "settle": delivery.ack,
    "close": other.close,
}


def unchanged():
    """What is seen through the views."""
    assert bytes(views[0][4:8]) == b"NXSM"
    assert bytes(views[1][:4]) == bytes(views[2][:4]) == b"\\xff" * 4
    assert [one.num_rows for one in views[3:]] == [1, 1, 1]
    assert views[4].column("note").to_pylist() == views[5].column("note").to_pylist() == ["kept"]
'''


def opened(process: subprocess.Popen[str], node: LoopbackNode) -> None:
    """Give an event to a script that has opened everything."""
    expect_line(process, "OPEN")
    node.control("publish", domain=DOMAIN, relay="readings", rows=[reading(1, "x")])
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.rule("B-2", "B-3", "B-14", "B-15")
def test_a_fork_with_everything_alive_and_in_use(node: LoopbackNode) -> None:
    """Old objects are closed in the child, at once, whatever threads of the parent are in; views stay; the parent goes on."""
    process = script(
        """
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # CPython warns at every fork with threads.
    stop = threading.Event()

    def busy(call):
        while not stop.is_set():
            try:
                call(timeout=0.05)
            except (nervix_ffi.DeadlineError, nervix_ffi.CancelledError):
                pass

    threads = [threading.Thread(target=busy, args=(calls[name],)) for name in ("read", "run", "tick", "outcome", "deliver", "suggest")]
    for thread in threads:
        thread.start()
    for number in range(5):
        child = os.fork()
        if child == 0:
            began = time.monotonic()
            for name, call in calls.items():
                try:
                    call(timeout=20)
                except nervix_ffi.ClosedError:
                    continue
                print(f"{name} came back in the child", flush=True)
            for one in (event, batch, delivery, domain_clock):
                try:
                    one.rows() if one is not domain_clock else one.logical_time_at()
                except nervix_ffi.ClosedError:
                    continue
                print(f"{one!r} was read in the child", flush=True)
            unchanged()
            session.close()
            if time.monotonic() - began > 10:
                print("something waited in the child", flush=True)
            with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as own:
                assert own.execute("SHOW CLUSTER STATUS;", timeout=30).completed
            if number % 2:
                sys.exit(0)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            print("a child failed", flush=True)
    stop.set()
    for thread in threads:
        thread.join()
    unchanged()
    assert delivery.ack(timeout=30) is nervix_ffi.Settlement.CONFIRMED
    assert submission.result(timeout=30).completed
    assert execution.run(timeout=30).completed
    print("DONE", flush=True)
""",
        node.uri,
    )
    opened(process, node)
    assert finish(process) == ("DONE\n", "")
    assert process.returncode == 0


@pytest.mark.rule("B-2", "B-3", "X-7")
@pytest.mark.parametrize("kept", ["in the module", "in a cycle", "by the threads"])
def test_the_interpreter_ends_with_everything_alive_and_daemon_threads_in_calls(node: LoopbackNode, kept: str) -> None:
    process = script(
        """
    started = threading.Barrier(len(calls) + 1)

    def blocked(call):
        started.wait()
        call()

    for name in calls:
        if name in ("run", "suggest", "submit", "settle", "close"):
            continue
        threading.Thread(target=blocked, args=(calls[name],), daemon=True).start()
    print("HOLD", flush=True)
    sys.stdin.readline()  # From here on, nothing is answered.
    for name in ("run", "suggest", "submit", "settle", "close"):
        threading.Thread(target=blocked, args=(calls[name],), daemon=True).start()
    started.wait()
    if sys.argv[2] == "in a cycle":
        class Holder:
            pass
        holder = Holder()
        holder.everything = [globals().pop(name) for name in (
            "session", "subscription", "producer", "consumer", "clock", "batch", "delivery", "event", "views", "submission", "calls",
        )]
        holder.me = holder
        del holder
    elif sys.argv[2] == "by the threads":
        gc.disable()
        del session, subscription, event, views, batch, delivery, calls
    print("BLOCKED", flush=True)
    sys.stdin.readline()
""",
        node.uri,
        kept,
    )
    opened(process, node)
    expect_line(process, "HOLD")
    for kind in ("CommandRequest", "SuggestRequest", "SubmitBatchRequest", "SettleEmitterBatchRequest", "CloseIngestorRequest"):
        node.control("delay", kind=kind, when="before", count=10)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    expect_line(process, "BLOCKED")
    process.stdin.write("\n")
    assert finish(process) == ("", "")
    assert process.returncode == 0
    node.control("release")
    ended = wait(node, sessions={"exactly": 0})
    assert ended["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("B-2")
def test_the_interpreter_waits_for_threads_that_are_no_daemons(node: LoopbackNode) -> None:
    """Their calls go on until they are over, and the end comes then."""
    process = script(
        """
    def work():
        main.join()  # The main thread is over.
        unchanged()
        assert execution.run(timeout=30).completed
        try:
            consumer.next(timeout=0.2)
        except nervix_ffi.DeadlineError:
            assert delivery.ack(timeout=30) is nervix_ffi.Settlement.CONFIRMED
            assert submission.result(timeout=30).completed
            print("DONE", flush=True)

    main = threading.main_thread()
    threading.Thread(target=work).start()
""",
        node.uri,
    )
    opened(process, node)
    assert finish(process) == ("DONE\n", "")
    assert process.returncode == 0
    wait(node, sessions={"exactly": 0})


@pytest.mark.rule("B-3", "F-9")
def test_views_outlive_everything_they_came_from_on_other_threads(node: LoopbackNode) -> None:
    """Owners are released by one thread while others read what they were given."""
    process = script(
        """
    ready = threading.Barrier(9)
    failures = []

    def look():
        try:
            ready.wait()
            for _ in range(200):
                unchanged()
                again = [memoryview(view)[:] for view in views[:3]]
                del again
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    ready.wait()
    for one in (event, batch, delivery, producer, other, consumer, execution, domain_clock):
        one.release()
    session.close()
    del event, batch, delivery, producer, other, consumer, execution, domain_clock, session, subscription, submission, clock, calls
    gc.collect()
    for thread in threads:
        thread.join()
    assert not failures, failures
    unchanged()
    print("DONE", flush=True)
""",
        node.uri,
    )
    opened(process, node)
    assert finish(process) == ("DONE\n", "")
    assert process.returncode == 0
