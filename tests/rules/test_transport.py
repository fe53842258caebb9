"""Credentials, layouts of a table whose order is not known, and replies that arrive in parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH, PATIENCE, Running, connect, counts, next_event, publish, read_ids, sent, wait


@pytest.fixture
def guarded() -> Iterator[LoopbackNode]:
    """A node that asks for credentials."""
    with LoopbackNode(user="ada", password="pass:wörd ü", load=GRAPH) as node:
        yield node


CREDENTIALS = {"username": "ada", "password": "pass:wörd ü"}


@pytest.mark.rule("T-4")
def test_credentials_accompany_every_session(guarded: LoopbackNode) -> None:
    with connect(guarded, **CREDENTIALS) as session:
        guarded.control("cut", how="abort")
        assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
    found = counts(guarded)
    assert [entry["user"] for entry in found["sessions"]["list"]] == ["ada", "ada"]
    assert found["calls"]["unauthenticated"] == 0


@pytest.mark.rule("T-5")
@pytest.mark.parametrize("credentials", [{}, {"username": "ada", "password": "wrong"}, {"username": "bob", "password": "x"}])
def test_refused_credentials_end_connecting_at_once_and_are_not_tried_again(
    guarded: LoopbackNode, credentials: dict[str, str]
) -> None:
    with pytest.raises(nervix_ffi.ConnectError) as caught:
        connect(guarded, **credentials)
    assert counts(guarded)["calls"]["unauthenticated"] == 1
    for value in credentials.values():
        assert value not in str(caught.value).split() or value == "ada"


@pytest.mark.rule("T-5", "D-6")
def test_credentials_refused_on_a_reconnection_end_the_session(guarded: LoopbackNode) -> None:
    with connect(guarded, **CREDENTIALS) as session:
        subscription = session.subscribe("readings")
        guarded.control("auth", answer="unauthenticated", count=1000)
        guarded.control("cut", direction="in", when="before", kind="CommandRequest", how="abort")
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
        assert caught.value.reference is not None
        refused = counts(guarded)["calls"]["unauthenticated"]
        assert refused == 1

        def drain() -> None:
            while True:
                assert isinstance(next_event(subscription), nervix_ffi.Interrupted)

        with pytest.raises(nervix_ffi.ClosedError):
            drain()
        with pytest.raises(nervix_ffi.ClosedError):
            session.suggest("SHOW ", timeout=PATIENCE)
        with pytest.raises(nervix_ffi.Error):
            session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
        assert counts(guarded)["calls"]["unauthenticated"] == refused
        assert "wörd" not in str(caught.value)


@pytest.mark.rule("T-5")
def test_a_node_that_cannot_verify_now_is_asked_again(node: LoopbackNode) -> None:
    node.control("auth", answer="unavailable", count=3)
    with connect(node) as session:
        assert counts(node)["calls"]["unavailable"] == 3
        node.control("auth", answer="unavailable", count=2)
        node.control("cut", how="reset")
        assert session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE).completed
    assert counts(node)["calls"]["unavailable"] == 5


@pytest.mark.rule("T-5", "T-8")
def test_a_node_that_never_can_verify_is_given_up_at_the_deadline(node: LoopbackNode) -> None:
    node.control("auth", answer="unavailable", count=100_000)
    with pytest.raises(nervix_ffi.DeadlineError):
        connect(node, timeout=0.5)
    assert counts(node)["calls"]["unavailable"] >= 2


@pytest.mark.rule("T-8", "D-4")
def test_a_node_that_accepts_and_says_nothing_is_given_up_at_the_deadline(node: LoopbackNode) -> None:
    node.control("accept", mode="stall")
    with pytest.raises(nervix_ffi.DeadlineError):
        connect(node, timeout=0.3)


@pytest.mark.rule("T-8", "D-4", "D-6")
def test_a_reply_that_never_comes_ends_the_session_after_the_request_timeout(node: LoopbackNode) -> None:
    with connect(node, request_timeout=0.5, retry_timeout=10.0) as session:
        node.control("drop_reply", kind="SuggestRequest")
        with pytest.raises(nervix_ffi.TransportError):
            session.suggest("SHOW ", timeout=PATIENCE)
        assert session.suggest("SHOW ", timeout=PATIENCE) is not None
    assert counts(node)["sessions"]["opened"] == 2


@pytest.mark.rule("F-1", "RP-4a")
@pytest.mark.parametrize("layout", ["standard", "alternate"])
def test_domains_are_read_in_either_layout(node: LoopbackNode, layout: str) -> None:
    node.control("domain_info", layout=layout)
    with connect(node) as session:
        # Every change of the domains is told, in the layout that was asked for.
        session.execute("CREATE UNPACED DOMAIN another;", timeout=PATIENCE)
        session.execute("CREATE PACED DOMAIN ticking WITH PERIOD 100ms SKEW 50ms;", timeout=PATIENCE)
        listed = session.execute("LIST DOMAINS;", timeout=PATIENCE)
        assert [name for name in ("another", "lab", "ticking") if name in listed.message] == ["another", "lab", "ticking"]
        found = dict(line.split(": ", 1) for line in listed.message.splitlines())
        assert found["lab"] == "running, unpaced, start version 1"
        assert found["another"] == "stopped, unpaced, start version 0"
        assert found["ticking"].startswith("stopped, paced with ")
    assert counts(node)["sessions"]["opened"] == 1


# ---- parts of replies


@pytest.mark.rule("F-7", "C-3", "SM-1")
@pytest.mark.parametrize("notices", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_a_reply_in_parts_is_one_reply(node: LoopbackNode, session: nervix_ffi.Session, size: int, notices: bool) -> None:
    whole = session.execute("SHOW CREATE SCHEMA reading;", timeout=PATIENCE).message
    node.control("parts", bytes=size, notices=notices, count=1000)
    assert session.execute("SHOW CREATE SCHEMA reading;", timeout=PATIENCE).message == whole
    assert "lab" in session.execute("LIST DOMAINS;", timeout=PATIENCE).message
    with session.subscribe("sites", name="s") as subscription:
        assert subscription.schema.names == ("id", "site", "secret")
        node.control(
            "publish", domain="lab", relay="sites", rows=[{"id": number, "site": "a", "secret": "b"} for number in range(3)]
        )
        assert read_ids(subscription, 3) == [0, 1, 2]
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("F-7", "C-3")
def test_the_parts_of_several_replies_may_be_mixed_with_rows(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("parts", bytes=5, notices=True, count=100_000)
    with session.subscribe("readings") as subscription:
        stop = threading.Event()

        def suggest() -> None:
            while not stop.is_set():
                session.suggest("SHOW ", timeout=PATIENCE)

        calls = [Running(suggest) for _ in range(3)]
        for number in range(50):
            publish(node, number)
            assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
        stop.set()
        for call in calls:
            call.result()
        assert read_ids(subscription, 50) == list(range(50))
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("F-7", "C-4", "D-6")
def test_a_session_lost_between_two_parts_delivers_nothing_of_the_reply(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("parts", bytes=16)
    node.control("cut", direction="out", when="after", kind="TransferPart", nth=2, how="abort")
    outcome = session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
    assert outcome.completed
    assert outcome.origin == nervix_ffi.Origin.RECOVERED


# ---- several requests at once


@pytest.mark.rule("C-6")
def test_no_more_than_64_requests_are_in_flight(node: LoopbackNode) -> None:
    """A hundred callers at once: the node would refuse the 65th, and nobody hears of it."""
    with connect(node) as session:
        node.control("delay", kind="SuggestRequest", when="before", count=64)
        calls = [Running(lambda: session.suggest("SHOW ", timeout=PATIENCE)) for _ in range(100)]
        wait(node, held=64)
        assert sent(node, "SuggestRequest") <= 64
        node.control("release")
        for call in calls:
            assert call.result() is not None
        assert counts(node)["frames"]["out"].get("RequestRejected", 0) == 0
    assert counts(node)["sessions"]["opened"] == 1
