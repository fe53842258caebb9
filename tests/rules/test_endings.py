"""However a session ends, the node sees a reset or a lost connection, and never the end of the stream."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, connect, counts, expect_line, finish, python, wait

pytestmark = pytest.mark.rule("X-7")


def ended(node: LoopbackNode, sessions: int = 1, how: str = "reset") -> None:
    """Wait until so many sessions have ended, and check how: reset, as long as the process lived to do it."""
    wait(node, sessions_ended=sessions)
    found: dict[str, Any] = counts(node)["sessions"]["ended"]
    assert found == {"end_stream": 0, "reset": 0, "lost": 0, "server": 0, how: sessions}


def test_close(node: LoopbackNode) -> None:
    connect(node).close()
    ended(node)


def test_the_end_of_a_with_block_and_of_the_object_inside_it(node: LoopbackNode) -> None:
    with connect(node) as session, session.subscribe("readings"):
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    ended(node)


def test_garbage_collection(node: LoopbackNode) -> None:
    session = connect(node)
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    subscription = session.subscribe("readings")
    del session, subscription
    gc.collect()
    ended(node)


def test_a_cycle_with_the_session_in_it(node: LoopbackNode) -> None:
    session = connect(node)
    loop: list[Any] = [session]
    loop.append(loop)
    del session, loop
    gc.collect()
    ended(node)


CONNECT = """
    import sys
    import nervix_ffi

    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
    subscription = session.subscribe("readings")
    print("OPEN", flush=True)
"""


def test_the_end_of_the_interpreter(node: LoopbackNode) -> None:
    process = python(CONNECT, node.uri)
    expect_line(process, "OPEN")
    assert finish(process) == ("", "")
    assert process.returncode == 0
    ended(node)


def test_exit_without_ceremony(node: LoopbackNode) -> None:
    process = python(CONNECT + "    import os\n    os._exit(0)\n", node.uri)
    expect_line(process, "OPEN")
    finish(process)
    ended(node, how="lost")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_that_ends_the_process(node: LoopbackNode, number: signal.Signals) -> None:
    process = python(CONNECT + "    sys.stdin.read()\n", node.uri)
    expect_line(process, "OPEN")
    process.send_signal(number)
    finish(process)
    assert process.returncode == -number
    ended(node, how="lost")


@pytest.mark.rule("F-8")
def test_a_violation(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("corrupt", what="identifier", kind="CommandOutcome")
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    ended(node)


@pytest.mark.rule("D-4")
def test_a_request_that_outlived_its_timeout(node: LoopbackNode) -> None:
    with connect(node, request_timeout=0.3) as session:
        node.control("drop_reply")
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
        ended(node)


def test_a_connect_that_was_given_up(node: LoopbackNode) -> None:
    # The node keeps its first frame back, so the session is open there and not yet here.
    node.control("cut", direction="out", when="before", kind="LeadershipObserved", how="reset")
    with pytest.raises(nervix_ffi.Error):
        connect(node, timeout=PATIENCE)
    ended(node, how="server")


def test_a_redirect(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.followers[0]) as session:
        session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
        ended(cluster)
    ended(cluster, 2)


def test_a_session_freed_while_a_call_waits_in_it(node: LoopbackNode) -> None:
    from ..support import Running

    session = connect(node)
    waiting = Running(lambda: session.next_event(timeout=PATIENCE))
    node.control("delay", when="after")
    command = Running(lambda: session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE))
    wait(node, held=1)
    session.close()
    with pytest.raises(nervix_ffi.ClosedError):
        waiting.result()
    with pytest.raises(nervix_ffi.ClosedError) as caught:
        command.result()
    assert caught.value.reference is not None
    ended(node)
