"""What bad input gets: an exception of its own that says what to do, and a session that goes on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Part, Rows
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, connect, next_event


@pytest.fixture
def usable(session: nervix_ffi.Session) -> Iterator[nervix_ffi.Session]:
    """A session that must still work when the test is over."""
    yield session
    assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed


@pytest.fixture
def rows(node: LoopbackNode, usable: nervix_ffi.Session) -> Iterator[Rows]:
    """An event with two rows of one branch."""
    with usable.subscribe("sites") as subscription:
        data = [{"id": 1, "site": "a", "secret": "x"}, {"id": 2, "site": "a", "secret": "y"}]
        node.control("publish", domain=DOMAIN, relay="sites", rows=data)
        event = next_event(subscription)
        assert isinstance(event, Rows)
        yield event


# ---- connecting


@pytest.mark.rule("T-2")
@pytest.mark.parametrize(
    "server",
    [
        "",
        "127.0.0.1:47391",
        "nonsense",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:47391/path",
        "http://127.0.0.1:47391/?query=1",
        "http://127.0.0.1:47391/#fragment",
        "http://user@127.0.0.1:47391",
        "http://user:password@127.0.0.1:47391",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://[::1",
        "http://host name/",
        "http://127.0.0.1\0/",
    ],
)
def test_a_server_that_is_no_origin(server: str) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError) as caught:
        nervix_ffi.connect(server, timeout=PATIENCE)
    assert isinstance(caught.value, ValueError)
    assert "password@" not in str(caught.value)


@pytest.mark.rule("T-2")
def test_an_origin_may_end_in_a_slash(node: LoopbackNode) -> None:
    with connect(node, f"{node.uri}/") as session:
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


@pytest.mark.rule("T-4")
@pytest.mark.parametrize("half", [{"username": "ada"}, {"password": "sesame"}])
def test_half_a_pair_of_credentials(node: LoopbackNode, half: dict[str, str]) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError) as caught:
        connect(node, **half)
    assert "sesame" not in str(caught.value)


def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(nervix_ffi.ConnectError) as caught:
        nervix_ffi.connect(f"http://127.0.0.1:{port}", timeout=PATIENCE)
    assert str(port) in str(caught.value)


def test_a_name_that_is_no_host() -> None:
    with pytest.raises(nervix_ffi.ConnectError):
        nervix_ffi.connect("http://no-such-host.invalid:47391", timeout=PATIENCE)


def test_a_peer_that_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        from ..support import Running

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(64)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        served = Running(answer)
        with pytest.raises(nervix_ffi.ConnectError):
            nervix_ffi.connect(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENCE)
        served.result()


@pytest.mark.parametrize("domain", ["no domain", "a;b", "\0", "ü"])
def test_a_domain_that_is_no_name_fails_where_it_is_used_or_before(node: LoopbackNode, domain: str) -> None:
    with pytest.raises(nervix_ffi.Error):
        connect(node, domain=domain).execute("SHOW CREATE RELAY readings;", timeout=PATIENCE)


# ---- commands


@pytest.mark.rule("E-6")
@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("CREATE RELAY;", (12, 12)),
        ("SHOW CREATE RELAY nowhere;", (18, 25)),
        ("CREATE  NONSENSE x;", (8, 16)),
        ("CREATE SCHEMA é (id U99);", (14, 16)),
    ],
)
def test_a_syntax_error_is_drawn_under_the_statement(usable: nervix_ffi.Session, text: str, span: tuple[int, int]) -> None:
    with pytest.raises(nervix_ffi.CommandFailed) as caught:
        usable.execute(text, timeout=PATIENCE)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message
    assert diagnostic.span == span
    drawn = str(caught.value).splitlines()
    place = next(index for index, line in enumerate(drawn) if text.rstrip() in line)
    column = drawn[place].index(text[0]) + len(text.encode()[: span[0]].decode())
    assert drawn[place + 1][column] == "^"
    assert drawn[place + 1].count("^") == max(1, len(text.encode()[span[0] : span[1]].decode()))


@pytest.mark.rule("B-4")
@pytest.mark.parametrize("text", ["SHOW CREATE RELAY \udcff;", "\ud800"])
def test_text_without_utf_8(usable: nervix_ffi.Session, text: str) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        usable.execute(text, timeout=PATIENCE)


def test_an_empty_command(usable: nervix_ffi.Session) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        usable.execute("", timeout=PATIENCE)


@pytest.mark.rule("B-4")
@pytest.mark.parametrize("text", ["SHOW CREATE RELAY read\0ings;", "CREATE SUBSCRIPTION a\0b TO readings;", "USE la\0b;"])
def test_a_nul_in_a_name(usable: nervix_ffi.Session, text: str) -> None:
    with pytest.raises((nervix_ffi.CommandFailed, nervix_ffi.InvalidArgumentError)):
        usable.execute(text, timeout=PATIENCE)


@pytest.mark.parametrize("text", [" ", ";", "// nothing", "x" * 100_000, "'unended"])
def test_text_that_is_no_statement(usable: nervix_ffi.Session, text: str) -> None:
    with pytest.raises((nervix_ffi.CommandFailed, nervix_ffi.InvalidArgumentError)):
        usable.execute(text, timeout=PATIENCE)


@pytest.mark.rule("F-6")
def test_a_command_too_large_for_a_frame_is_refused_and_not_sent(node: LoopbackNode, usable: nervix_ffi.Session) -> None:
    from ..support import counts, sent

    with pytest.raises(nervix_ffi.InvalidArgumentError):
        usable.execute(f"CREATE SCHEMA s (id U32); // {'x' * (5 << 20)}", timeout=PATIENCE)
    assert sent(node, "CommandRequest") == 0
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.subscribe("a b"),
        lambda session: session.subscribe("readings", name="a b"),
        lambda session: session.subscribe("readings", delivery="SOMETIMES"),
        lambda session: session.subscribe("readings", sample_rate=0),
        lambda session: session.subscribe("readings", sample_rate=1.5),
        lambda session: session.subscribe("CREATE SUBSCRIPTION a TO readings;", where="id > 1"),
        lambda session: session.suggest("SHOW", 5),
        lambda session: session.suggest("SHOW", -1),
        lambda session: session.suggest("SHOW", page_size=0),
        lambda session: session.suggest("SHOW", page_size=101),
        lambda session: session.execute("SHOW CLUSTER STATUS;", timeout=-1),
        lambda session: session.execute("SHOW CLUSTER STATUS;", timeout=float("nan")),
    ],
)
def test_arguments_out_of_range(usable: nervix_ffi.Session, call: Callable[[nervix_ffi.Session], object]) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        call(usable)


@pytest.mark.parametrize(
    "options", [{"request_timeout": 0}, {"retry_timeout": -1}, {"request_timeout": float("nan")}, {"seeds": ["nonsense"]}]
)
def test_connect_options_out_of_range(node: LoopbackNode, options: dict[str, Any]) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        connect(node, **options)


# ---- tokens


def test_a_token_that_was_triggered_already(usable: nervix_ffi.Session) -> None:
    cancel = nervix_ffi.Cancel()
    cancel.trigger()
    with usable.prepare("SHOW CLUSTER STATUS;") as execution:
        for _ in range(2):
            with pytest.raises(nervix_ffi.CancelledError) as caught:
                execution.run(cancel=cancel)
            assert caught.value.reference == execution.reference
        assert execution.run(timeout=PATIENCE).completed
    with pytest.raises(nervix_ffi.CancelledError):
        usable.next_event(cancel=cancel)


def test_a_token_whose_time_is_over(node: LoopbackNode, usable: nervix_ffi.Session) -> None:
    cancel = nervix_ffi.Cancel(timeout=0)
    for _ in range(2):
        with pytest.raises(nervix_ffi.DeadlineError) as caught:
            usable.execute("SHOW CLUSTER STATUS;", cancel=cancel)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.reference is not None
    with pytest.raises(nervix_ffi.DeadlineError):
        connect(node, timeout=None, cancel=cancel)


# ---- rows


@pytest.mark.rule("R-3")
def test_a_column_read_as_another_type(rows: Rows) -> None:
    reads: list[Callable[[], object]] = [
        lambda: rows.column("site").values,
        lambda: rows.column("id").data,
        lambda: rows.column("id").offsets,
        lambda: rows.cell(0, "id"),
        lambda: rows.cell(0, "secret"),
    ]
    for read in reads:
        with pytest.raises(nervix_ffi.TypeMismatchError) as caught:
            read()
        assert isinstance(caught.value, TypeError)


def test_an_index_out_of_range(rows: Rows) -> None:
    for read in (
        lambda: rows.column(3),
        lambda: rows.column(-1),
        lambda: rows.column("nothing"),
        lambda: rows.column(1, Part.BRANCH_KEY),
        lambda: rows.cell(2, "site"),
        lambda: rows.cell(-1, "site"),
        lambda: rows.cell(1, "site", Part.BRANCH_KEY),
    ):
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            read()
    with pytest.raises(IndexError):
        rows.column("site")[2]
    with pytest.raises(KeyError):
        rows.schema.field("nothing")


# ---- objects that are over


@pytest.mark.rule("B-2")
def test_a_released_event(rows: Rows) -> None:
    view, column = rows.frame, rows.column("site")
    rows.release()
    rows.release()
    reads: list[Callable[[], object]] = [
        rows.rows,
        rows.to_arrow,
        lambda: rows.column(0),
        lambda: rows.frame,
        lambda: rows.cell(0, "site"),
    ]
    for read in reads:
        with pytest.raises(nervix_ffi.ClosedError):
            read()
    assert bytes(view[4:8]) == b"NXSM"
    assert column.to_list() == ["a", "a"]


@pytest.mark.rule("B-2")
def test_a_released_execution(usable: nervix_ffi.Session) -> None:
    execution = usable.prepare("SHOW CLUSTER STATUS;")
    execution.release()
    with pytest.raises(nervix_ffi.ClosedError):
        execution.run(timeout=PATIENCE)


@pytest.mark.rule("B-2")
def test_a_closed_session(node: LoopbackNode) -> None:
    session = connect(node)
    execution = session.prepare("SHOW CLUSTER STATUS;")
    subscription = session.subscribe("sites")
    node.control("publish", domain=DOMAIN, relay="sites", rows=[{"id": 1, "site": "a", "secret": "x"}])
    event = next_event(subscription)
    session.close()
    session.close()
    for call in (
        lambda: session.execute("SHOW CLUSTER STATUS;"),
        lambda: session.prepare("SHOW CLUSTER STATUS;"),
        lambda: execution.run(),
        lambda: session.next_event(timeout=PATIENCE),
        lambda: subscription.next(timeout=PATIENCE),
        lambda: session.suggest("SHOW "),
        lambda: session.subscribe("readings"),
    ):
        with pytest.raises(nervix_ffi.ClosedError):
            call()
    # What was read from it stays.
    assert isinstance(event, Rows)
    assert event.rows()[0]["site"] == "a"


def test_a_deleted_subscription(usable: nervix_ffi.Session) -> None:
    subscription = usable.subscribe("readings")
    subscription.delete(timeout=PATIENCE)
    assert subscription.delete(timeout=PATIENCE) is None
    assert list(subscription) == []
    with pytest.raises(nervix_ffi.ClosedError):
        subscription.next(timeout=PATIENCE)


def test_every_kind_of_error_has_a_class_of_its_own() -> None:
    from nervix_ffi.errors import ERROR_CLASSES

    assert set(ERROR_CLASSES) == set(nervix_ffi.ErrorKind)
    assert len(set(ERROR_CLASSES.values())) == len(ERROR_CLASSES)
    for kind, one in ERROR_CLASSES.items():
        assert issubclass(one, nervix_ffi.Error)
        assert one.kind == kind
