"""The package's own life with a node: starting one, sessions, signals, exits, forks, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import numpy
import pandas
import pyarrow
import pytest

import nervix_ffi
from nervix_ffi import (
    REDACTED,
    CommandFailed,
    ConnectError,
    InvalidArgumentError,
    Origin,
    Part,
    Rows,
    Session,
    Type,
    TypeMismatchError,
)
from nervix_ffi.testing import LoopbackError, LoopbackNode

GRAPH = """
CREATE UNPACED DOMAIN garden;
USE garden;
CREATE SCHEMA plant (
  id U32, bed STRING, note STRING OPTIONAL, tags VEC<STRING>, grid ARRAY<I16, 2, 2> OPTIONAL, spans VEC<ARRAY<DATETIME, 2>>,
  heights VEC<F32>, raw BYTES, at DATETIME, alive BOOL, secret VEC<STRING> SENSITIVE
);
CREATE SCHEMA bed_key (bed STRING);
CREATE BRANCH by_bed SCHEMA bed_key TTL 5m;
CREATE RELAY plants SCHEMA plant BRANCHED BY by_bed;
CREATE SCHEMA small (id U32, note STRING);
CREATE RELAY smalls SCHEMA small UNBRANCHED;
START;
"""

PLANTS = [
    {
        "id": 1,
        "bed": "a\0b",
        "note": None,
        "tags": ["", "héllo 世界", "x\0y"],
        "grid": [[1, -2], [32767, -32768]],
        "spans": [[-(2**63), 2**63 - 1], [0, 1]],
        "heights": [0.5, -0.0, 3.4028234663852886e38],
        "raw": b"\x00\xff\xfe",
        "at": -1,
        "alive": True,
        "secret": ["hidden"],
    },
    {
        "id": 2**32 - 1,
        "bed": "a\0b",
        "note": "",
        "tags": [],
        "grid": None,
        "spans": [],
        "heights": [],
        "raw": b"",
        "at": 2**63 - 1,
        "alive": False,
        "secret": [],
    },
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    with LoopbackNode(load=GRAPH) as made:
        yield made


@pytest.fixture
def session(node: LoopbackNode) -> Iterator[Session]:
    with nervix_ffi.connect(node.uri, domain="garden", timeout=30) as made:
        yield made


def rows_of(subscription: nervix_ffi.Subscription) -> Rows:
    event = subscription.next(timeout=30)
    assert isinstance(event, Rows), event
    return event


# ---- the node


def test_a_node_starts_in_well_under_a_second() -> None:
    started = time.monotonic()
    with LoopbackNode() as node:
        took = time.monotonic() - started
        print(f"{took:.3f} s")
        assert node.uris == [node.uri] == [node.leader]
        assert node.followers == []
        assert node.control("clear") == {}
    node.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(node.pid, 0)


def test_three_nodes_have_a_leader_and_two_followers() -> None:
    with LoopbackNode(3) as node:
        assert len(node.uris) == 3
        assert sorted([node.leader, *node.followers]) == sorted(node.uris)


def test_leadership_moves_at_one_frame_and_the_journal_tells_where() -> None:
    with LoopbackNode(3) as node, nervix_ffi.connect(node.leader, timeout=30) as session:
        start = node.journal()["next"]
        to = list(node.nodes)[1]
        node.control("leader", leader=to, direction="in", kind="CommandRequest", when="after", nth=2)
        references = [session.execute(f"CREATE UNPACED DOMAIN d{number};", timeout=30).reference for number in range(3)]
        journal = node.journal(start)
        told = [
            (entry["what"], entry["session"], entry.get("reference"), entry.get("when"))
            for entry in journal["entries"]
            if entry["kind"] == "CommandRequest"
        ]
        assert told == [
            ("frame", 1, references[0], None),
            ("frame", 1, references[1], None),
            ("leader", 1, None, "after"),
            ("frame", 1, references[2], None),
            ("frame", 2, references[2], None),
        ]
        assert [entry["number"] for entry in journal["entries"]] == list(range(start, journal["next"]))
        node.wait(session_over=1)
        with pytest.raises(LoopbackError, match="did not come"):
            node.wait(session_over=2, timeout=0.01)


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(LoopbackError, match=r"did not start: .*load:2: .*nonsense"):
        LoopbackNode(load="CREATE UNPACED DOMAIN d;\nnonsense;")
    with pytest.raises(LoopbackError, match=r"did not start: .*no-such\.nspl cannot be read"):
        LoopbackNode(load="no-such.nspl")


def test_a_node_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec cat\n", encoding="utf-8")
    silent.chmod(0o755)
    monkeypatch.setenv("NERVIX_LOOPBACK", str(silent))
    with pytest.raises(LoopbackError, match=r"said nothing within 0\.1 seconds"):
        LoopbackNode(timeout=0.1)


def test_a_node_starts_in_a_process_with_many_open_files(run_python: Run) -> None:
    done = run_python("""
import os, resource
from nervix_ffi.testing import LoopbackNode
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2000 if hard == resource.RLIM_INFINITY else min(2000, hard), hard))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
with LoopbackNode() as node:
    assert node.counts()
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_load_may_be_longer_than_a_pipe_holds() -> None:
    load = "\n" * 1_000_000 + "CREATE UNPACED DOMAIN lawn;"
    with LoopbackNode(load=load) as node, nervix_ffi.connect(node.uri, timeout=30) as session:
        assert "lawn" in session.execute("LIST DOMAINS;", timeout=30).message


def test_a_data_frame_is_published_whatever_it_notes_down_about_itself(node: LoopbackNode, session: Session) -> None:
    subscription = session.subscribe("smalls")
    frame = pandas.DataFrame({"id": pandas.array([1, 2], dtype="uint32"), "note": ["a", "b"]})
    assert pyarrow.record_batch(frame).schema.metadata, "the frame says nothing about itself: the test says nothing"
    node.publish("smalls", frame, domain="garden")
    noted = pyarrow.field("id", pyarrow.uint32(), metadata={"k": "v"})
    schema = pyarrow.schema([noted, pyarrow.field("note", pyarrow.large_string())], metadata={"k": "v"})
    node.publish("smalls", pyarrow.table([[3], ["c"]], schema=schema), domain="garden")
    assert rows_of(subscription).rows() == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
    assert rows_of(subscription).rows() == [{"id": 3, "note": "c"}]
    with pytest.raises(LoopbackError, match="must not be nullable"):
        node.publish("smalls", frame.assign(note=["a", None]), domain="garden")


def test_rows_hold_any_integer_and_a_refused_value_is_named_with_its_field(node: LoopbackNode, session: Session) -> None:
    subscription = session.subscribe("smalls")
    node.publish("smalls", [{"id": numpy.uint32(7), "note": numpy.str_("n")}], domain="garden")
    assert rows_of(subscription).rows() == [{"id": 7, "note": "n"}]
    for value in (datetime.now(timezone.utc), object(), numpy.datetime64(0, "s")):
        with pytest.raises(TypeError, match=r"field id has a .*from_datetime"):
            node.publish("smalls", [{"id": value, "note": "n"}], domain="garden")


def test_what_the_control_endpoint_refuses_is_an_error_with_its_status(node: LoopbackNode) -> None:
    with pytest.raises(LoopbackError, match="no action") as caught:
        node.control("no_such_action")
    assert caught.value.status == 404
    with pytest.raises(LoopbackError, match="nowhere"):
        node.publish("nowhere", [{"id": 1}], domain="garden")


def test_counts_can_be_asked_for_some_references_alone(node: LoopbackNode, session: Session) -> None:
    first, second = (session.execute("SHOW CLUSTER STATUS;").reference for _ in range(2))
    assert first is not None
    assert second is not None
    with nervix_ffi.connect(node.uri, timeout=30) as other:
        other.execute("SHOW CLUSTER STATUS;")
    node.wait(sessions={"exactly": 1})
    for counts in (node.counts(references=[second, "nobody's"]), node.wait(references=[second], sessions={"exactly": 1})):
        assert counts["executed"] == {second: 1}
        assert [one["ended"] for one in counts["sessions"]["list"]] == [None]
        assert counts["sessions"]["opened"] == 2
    assert counts["frames"] == node.counts()["frames"]
    assert {first, second} <= node.counts()["executed"].keys()
    with pytest.raises(LoopbackError, match="references"):
        node.control("counts", references=second)


def test_a_node_ends_with_the_process_that_started_it_and_leaves_nothing(tmp_path: Path) -> None:
    script = "from nervix_ffi.testing import LoopbackNode\n"
    script += f"node = LoopbackNode(load={GRAPH!r})\nprint(node.pid, flush=True)\ninput()\n"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < deadline, "the node outlived its parent"
        time.sleep(0.005)
    assert list(tmp_path.iterdir()) == []


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rows_an_ipc_stream_and_arrow_data_can_be_published(node: LoopbackNode, session: Session) -> None:
    subscription = session.subscribe("smalls")
    schema = pyarrow.schema([pyarrow.field("id", "uint32", nullable=False), pyarrow.field("note", "string", nullable=False)])
    table = pyarrow.table({"id": [2, 3], "note": ["b", "c"]}, schema=schema)
    node.publish("smalls", [{"id": 1, "note": "a"}], domain="garden")
    node.publish("smalls", table, domain="garden")
    node.publish("smalls", table.to_batches()[0], domain="garden")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    node.publish("smalls", sink.getvalue().to_pybytes(), domain="garden")
    assert [len(rows_of(subscription)) for _ in range(4)] == [1, 2, 2, 2]


# ---- rows


@pytest.mark.rule("R-3", "R-4", "R-5")
def test_lists_read_the_same_as_python_values_and_as_arrow(node: LoopbackNode, session: Session) -> None:
    with session.subscribe("plants") as subscription:
        assert [field.spelling for field in subscription.schema.fields][3:7] == [
            "VEC<STRING>",
            "ARRAY<I16, 2, 2>",
            "VEC<ARRAY<DATETIME, 2>>",
            "VEC<F32>",
        ]
        node.publish("plants", PLANTS, domain="garden")
        rows = rows_of(subscription)
        assert rows.rows() == [{**plant, "secret": REDACTED} for plant in PLANTS]
        assert rows.key == {"bed": "a\0b"}
        assert [column.to_list() for column in map(rows.column, range(len(rows.schema.fields)))] == [
            [row[name] for row in rows.rows()] for name in rows.schema.names
        ]
        batch = rows.to_arrow()
        batch.validate(full=True)
        assert batch.schema.metadata[b"nervix.branch"] == b"by_bed"
        assert batch.schema.metadata[b"nervix.branch_key"] == b'{"bed": "a\\u0000b"}'
        secret = batch.schema.field("secret")
        assert secret.nullable
        assert secret.metadata == {b"nervix.redacted": b"true"}
        assert batch.column("secret").null_count == 2
        for name in ("tags", "grid", "heights", "note", "raw", "alive"):
            assert batch.column(name).to_pylist() == [plant[name] for plant in PLANTS]
        assert batch.column("at").cast("int64").to_pylist() == [plant["at"] for plant in PLANTS]
        assert batch.column("heights").flatten().view(pyarrow.uint32()).to_pylist()[1] == 0x80000000
        assert pyarrow.record_batch(rows).equals(batch)
        rows.release()
        assert batch.column("tags").to_pylist()[0] == PLANTS[0]["tags"], "a batch outlives its event"
        # A capsule that nobody takes is released with itself.
        node.publish("plants", PLANTS, domain="garden")
        rows_of(subscription).__arrow_c_array__()


def test_a_column_read_as_another_type_is_refused_and_the_session_goes_on(node: LoopbackNode, session: Session) -> None:
    subscription = session.subscribe("plants")
    node.publish("plants", PLANTS, domain="garden")
    rows = rows_of(subscription)
    column = rows.column("tags")
    assert (column.type, len(column), column[1]) == (Type.LIST, 2, [])
    for read in (
        lambda: column.values,
        lambda: column.offsets,
        lambda: rows.cell(0, "id"),
        lambda: rows.cell(0, "note"),
        lambda: rows.cell(0, "tags"),
        lambda: rows.cell(0, "secret"),
    ):
        with pytest.raises(TypeMismatchError):
            read()
    for bad in (lambda: rows.cell(2, "raw"), lambda: rows.column(99), lambda: rows.column(1, Part.BRANCH_KEY)):
        with pytest.raises(InvalidArgumentError):
            bad()
    assert bytes(rows.cell(0, "raw")) == PLANTS[0]["raw"]
    assert bytes(rows.cell(0, "bed", Part.BRANCH_KEY)) == b"a\0b"
    assert session.execute("SHOW CREATE RELAY plants;").completed


# ---- bad input


@pytest.mark.parametrize(
    "server",
    ["", "127.0.0.1:1", "ftp://127.0.0.1:1", "http://", "http://127.0.0.1:1/path", "http://u:p@127.0.0.1:1", "http://a b"],
)
def test_a_malformed_server_is_an_invalid_argument(server: str) -> None:
    with pytest.raises(InvalidArgumentError):
        nervix_ffi.connect(server, timeout=30)


def test_half_a_pair_of_credentials_is_an_invalid_argument(node: LoopbackNode) -> None:
    for half in ({"username": "ann"}, {"password": "secret"}):
        with pytest.raises(InvalidArgumentError):
            nervix_ffi.connect(node.uri, timeout=30, **half)  # type: ignore[arg-type]


def test_a_wrong_password_is_refused_at_once_and_never_shown() -> None:
    with LoopbackNode(user="ann", password="right") as node:
        with pytest.raises(ConnectError) as caught:
            nervix_ffi.connect(node.uri, username="ann", password="not-this-one", timeout=30)
        assert "not-this-one" not in str(caught.value)
        with nervix_ffi.connect(node.uri, username="ann", password="right", timeout=30) as session:
            assert session.execute("LIST DOMAINS;").completed


def test_a_port_that_nobody_listens_on_is_a_connect_error() -> None:
    with pytest.raises(ConnectError):
        nervix_ffi.connect("http://127.0.0.1:1", timeout=30)


def test_a_syntax_error_is_drawn_under_the_statement_and_the_session_goes_on(session: Session) -> None:
    with pytest.raises(CommandFailed) as caught:
        session.execute("CREATE RELAY\n  é !;")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.span is not None
    line = str(caught.value).splitlines()
    assert line[-2].startswith("2 | ")
    assert "^" in line[-1]
    assert caught.value.reference is not None
    outcome = session.execute("SHOW CREATE RELAY plants;")
    assert (outcome.origin, outcome.already_existed, outcome.decided_locally) == (Origin.EXECUTED, False, False)


@pytest.mark.parametrize("text", ["", "a\ud800b", "SHOW CREATE RELAY a\0b;"])
def test_a_text_that_is_none_is_refused_and_the_session_goes_on(session: Session, text: str) -> None:
    with pytest.raises((InvalidArgumentError, CommandFailed)):
        session.execute(text, timeout=30)
    assert session.execute("SHOW CREATE RELAY plants;").completed


# ---- signals, exits, forks

INTERRUPT = f"""
import os, signal, socket, sys, threading, time
import nervix_ffi
from nervix_ffi.testing import LoopbackNode

node = LoopbackNode(load={GRAPH!r})
"""
INTERRUPT += """
session = nervix_ffi.connect(node.uri, domain="garden", timeout=30)

def interrupted(begun, call):
    sent = []
    def send():
        begun()
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        call()
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
        print(f"{took:.3f} s")
        assert took < 2
    else:
        raise AssertionError("it was swallowed")
    finally:
        thread.join()
"""


def test_ctrl_c_ends_a_wait_with_a_node_and_the_same_objects_go_on(run_python: Run) -> None:
    done = run_python(
        INTERRUPT
        + textwrap.dedent(
            """
            mute = socket.create_server(("127.0.0.1", 0))
            peers = []
            interrupted(
                lambda: peers.append(mute.accept()), lambda: nervix_ffi.connect(f"http://127.0.0.1:{mute.getsockname()[1]}")
            )
            peers[0][0].close()
            mute.close()

            node.control("delay", when="before")
            execution = session.prepare("SHOW CREATE RELAY plants;")
            interrupted(lambda: node.wait(held=1), execution.run)
            node.control("release")
            node.control("clear")
            assert execution.run(timeout=30).completed

            subscription = session.subscribe("smalls")
            interrupted(lambda: node.wait(subscriptions=1), subscription.__next__)
            node.publish("smalls", [{"id": 1, "note": "after"}], domain="garden")
            assert subscription.next(timeout=30).rows() == [{"id": 1, "note": "after"}]
            session.close()
            node.stop()
            """
        )
    )
    assert (done.returncode, done.stderr) == (0, "")
    print(done.stdout)
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.rule("X-7")
@pytest.mark.parametrize("end", ["close", "collect", "exit", "kill", "daemon threads"])
def test_however_a_process_lets_go_the_node_sees_no_half_close(node: LoopbackNode, run_python: Run, end: str) -> None:
    how = {
        "close": "session.close()",
        "collect": "del session, execution",
        "exit": "",
        "kill": "os.kill(os.getpid(), 9)",
        "daemon threads": textwrap.dedent(
            """
            for call in (session.next_event, session.subscribe("smalls").next, lambda: session.execute("SHOW CLUSTER STATUS;")):
                threading.Thread(target=call, daemon=True).start()
            """
        ),
    }[end]
    done = run_python(
        "import os, threading, nervix_ffi\n"
        f"session = nervix_ffi.connect({node.uri!r}, domain='garden', timeout=30)\n"
        "execution = session.prepare('SHOW CREATE RELAY plants;')\n"
        "execution.run()\n" + how
    )
    assert (done.returncode, done.stderr) == (-9 if end == "kill" else 0, "")
    node.wait(sessions={"exactly": 0})
    ended = node.counts()["sessions"]["ended"]
    assert ended["end_stream"] == 0
    assert ended["reset"] + ended["lost"] == 1


def test_after_a_fork_old_handles_are_closed_and_a_new_connect_works(node: LoopbackNode, run_python: Run) -> None:
    script = f"""
        import os, sys, warnings
        import nervix_ffi
        warnings.simplefilter("ignore", DeprecationWarning)  # Forking a process that has threads.
        session = nervix_ffi.connect({node.uri!r}, domain="garden", timeout=30)
        subscription = session.subscribe("smalls")
        for _ in range(3):
            child = os.fork()
            if child == 0:
                for call in (lambda: session.execute("SHOW CLUSTER STATUS;"), subscription.next, session.next_event):
                    try:
                        call()
                    except nervix_ffi.ClosedError:
                        continue
                    sys.exit(3)
                session.close()
                del session, subscription
                with nervix_ffi.connect({node.uri!r}, domain="garden", timeout=30) as mine:
                    sys.exit(0 if mine.execute("SHOW CREATE RELAY plants;", timeout=30).completed else 4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert session.execute("SHOW CREATE RELAY plants;", timeout=30).completed
        assert not subscription.delete(timeout=30) is None
        """
    done = run_python(textwrap.dedent(script))
    assert (done.returncode, done.stderr) == (0, "")


# ---- memory


def test_a_hundred_thousand_events_leave_memory_where_it_was(node: LoopbackNode, session: Session) -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as status:
            return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    subscription = session.subscribe("smalls", delivery="BLOCKING")
    batch, first = 100, 0
    for read in range(0, 100_000, batch):
        node.control("flood", domain="garden", relay="smalls", rows=[{"id": 7, "note": "x" * 100}], times=batch)
        for _ in range(batch):
            event = subscription.next(timeout=30)
            assert isinstance(event, Rows), event
            assert len(event.frame) > 100
        if read == 1000:
            first = resident()
    grown = resident() - first
    print(f"grown by {grown / 2**20:.1f} MiB")
    assert grown < 16 * 2**20
