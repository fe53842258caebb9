"""A connection that ends after any number of bytes, in either direction, by an end or a reset, in the clear or in TLS.

First in its opening, and then in the scripted session of ``tests/cuts``, with everything open at once, which is held to the invariants
that hold for it when it is cut at its frames. ``NERVIX_BYTES=all`` tries every count there is, which takes a night;
``NERVIX_BYTES=50`` every fiftieth from the one that ``NERVIX_BYTES_SEED`` (0 by default) names; without it counts are sampled from
that seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..cuts.cluster import Cluster
from ..cuts.host import Host
from ..cuts.invariants import leave_nothing
from ..soak.residue import Residue, left_behind
from ..support import GRAPH, PATIENCE, connect
from .proxy import FIN, RST, TO_CLIENT, TO_SERVER, Line, Plan, Proxy, cut
from .test_tls import Authority

EVERY = os.environ.get("NERVIX_BYTES", "")
SEED = int(os.environ.get("NERVIX_BYTES_SEED", "0"))

#: How many counts of each way of ending a connection are tried, unless all are.
OPENINGS, SESSIONS = 80, 40

#: After one of so many cuts of a session nobody is to be reached until the host was told so.
AWAY = 5

#: How many nodes are tried side by side, since most of it is waiting for the next session.
CROWD = 6

WAYS = [(way, how) for way in (TO_CLIENT, TO_SERVER) for how in (FIN, RST)]


@dataclass(frozen=True)
class After:
    """The connection ended when so many bytes passed in a direction, of which the node knows nothing.

    ``away``: it accepts no other then, for a while.
    """

    way: str
    count: int
    how: str
    away: bool = False

    def __str__(self) -> str:
        return f"{self.how} after {self.count} bytes {self.way}{' and away' if self.away else ''}"

    def arm(self, node: LoopbackNode) -> None:
        """Has the node do nothing."""

    def plan(self) -> Plan:
        """What the proxy is to do."""
        return cut(self.way, self.count, self.how)


def places(totals: dict[str, int], sample: int, away: int = 0) -> list[After]:
    """Counts below the totals, by each way of ending a connection; after every so many of them nobody is to be reached for a while."""
    dice = random.Random(SEED)
    found = []
    for way, how in WAYS:
        counts: Iterable[int] = range(SEED if EVERY != "all" else 0, totals[way], int(EVERY) if EVERY.isdigit() else 1)
        if not EVERY:
            # Shares, and no counts: the name of a port takes a byte more or less.
            counts = sorted({int(dice.random() * totals[way]) for _ in range(sample)})
        found += [After(way, count, how, away=away > 0 and number % away == 0) for number, count in enumerate(counts)]
    return found


#: How many bytes fewer may pass than in another run: signatures differ in length, and what is read at once is acknowledged at once.
SLACK = 64


class Server:
    """How a node serves: in the clear, or over TLS, with what that takes to start it and to trust it."""

    def __init__(self, authority: Authority | None) -> None:
        self.options: dict[str, Any] = {}
        self.trust: dict[str, Any] = {}
        if authority is not None:
            chain, key = authority.issue("127.0.0.1")
            self.options = {"tls_cert": chain, "tls_key": key}
            self.trust = {"ca_file": authority.file}


@pytest.fixture(params=["plain", "TLS"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(None if request.param == "plain" else Authority(tmp_path / "ours"))


def in_a_crowd(work: Callable[[int], Counter[str]]) -> None:
    """Does a share of the work with each of several nodes, leaves nothing behind, and says what was done."""
    started, before = time.monotonic(), Residue.now()
    with ThreadPoolExecutor(CROWD) as threads:
        done = list(threads.map(work, range(CROWD)))
    assert not left_behind(before)
    total = sum(done, Counter())
    print(f"\n{', '.join(f'{number} {what}' for what, number in total.items())}, {time.monotonic() - started:.0f} s")
    assert total["cuts"] > CROWD


def made(after: After, line: Line, total: int) -> Counter[str]:
    """A cut was made, to the byte, unless that byte never came, as the last ones need not."""
    if not line.acted.is_set():
        assert after.count > total - SLACK, f"only {line.passed} passed"
        return Counter({"not due": 1})
    assert line.passed[after.way] == after.count
    return Counter({"cuts": 1})


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """What a process has that connected once is there."""
    with pytest.raises(nervix_ffi.ConnectError):
        nervix_ffi.connect("http://127.0.0.1:1", timeout=PATIENCE)


# ---- the opening


def opening(node: LoopbackNode, proxy: Proxy, **options: Any) -> bool:
    """Connects, and again if that failed, and runs a command. Whether the first connect succeeded."""
    said = ""
    try:
        session = connect(node, proxy.uri, **options)
    except nervix_ffi.ConnectError as failure:
        said = str(failure)
        # A server is tried once, and the message is one line that names it.
        assert len(proxy.lines) == 1
        session = connect(node, proxy.uri, **options)
    assert "\n" not in said
    assert not said or proxy.uri in said
    with session:
        assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
    proxy.settled()
    assert len(proxy.lines) <= 2
    return not said


@pytest.mark.timeout(3600 if EVERY else 120)
@pytest.mark.rule("C-4", "D-4", "D-6", "E-3", "F-8", "T-2", "T-8", "X-7", "SM-2")
def test_a_connection_that_ends_after_any_byte_of_its_opening_is_told_or_replaced(server: Server) -> None:
    def work(share: int) -> Counter[str]:
        done: Counter[str] = Counter()
        with LoopbackNode(load=GRAPH, **server.options) as node, Proxy(node.uri) as proxy:
            assert opening(node, proxy, **server.trust)
            totals = dict(proxy.lines[0].passed)
            for after in places(totals, OPENINGS)[share::CROWD]:
                proxy.fresh(after.plan())
                try:
                    done["refused"] += not opening(node, proxy, **server.trust)
                    done += made(after, proxy.lines[0], totals[after.way])
                except BaseException as failure:
                    raise AssertionError(f"{after}: {failure}") from failure
            assert leave_nothing(node)["sessions"]["ended"]["end_stream"] == 0
        return done

    in_a_crowd(work)


# ---- a session with everything open


class RelayedHost(Host):
    """A host that is cut by a proxy, of which the journal tells nothing."""

    def __init__(self, proxy: Proxy, *script: Any, **options: Any) -> None:
        super().__init__(*script, **options)
        self._proxy = proxy

    def faults_among(self, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.story.made or not self._proxy.lines or not self._proxy.lines[0].acted.is_set():
            return []
        # Only the first connection is cut. If that was before connecting was over, nothing was held on it.
        lost = self.journal.entries[0]["session"] if self.now > 1 and self.journal.entries else 0
        after = [entry["number"] for entry in self.journal.entries if entry["session"] != lost]
        return [{"what": "cut", "session": lost, "number": min(after, default=inf)}]


class Relayed(Cluster):
    """A node behind a proxy."""

    def __init__(self, server: Server) -> None:
        super().__init__(1, **server.options)
        self._trust = server.trust
        #: What becomes of the connections behind those that a fault is made to.
        self.plans: list[Plan] = []
        self.proxy = Proxy(self.uris[0])
        self.uris = [self.proxy.uri]

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__(None, None, None)
        super().__exit__()

    def host(self, number: int, faults: Sequence[Any]) -> Host:
        self.proxy.fresh(*(fault.plan() for fault in faults), *self.plans)
        return RelayedHost(self.proxy, self.node, number, self.uris, faults, **self._trust)


@pytest.mark.timeout(24 * 3600 if EVERY else 300)
@pytest.mark.rule("D-4", "D-5", "D-6", "E-2", "E-3", "X-2", "X-3", "X-5", "X-6", "X-7", "S-3", "S-7", "K-5", "P-5", "P-8", "L-3")
@pytest.mark.rule("EC-4", "EC-5", "EC-6", "SM-1", "SM-2", "SM-3", "SM-4", "SM-5", "B-1", "B-7", "B-9", "B-14", "B-15", "B-16")
def test_a_connection_that_ends_after_any_byte_of_a_session_loses_nothing(server: Server) -> None:
    def work(share: int) -> Counter[str]:
        done: Counter[str] = Counter()
        with Relayed(server) as cluster:
            assert cluster.run().story.made == []
            totals = dict(cluster.proxy.lines[0].passed)
            for after in places(totals, SESSIONS, AWAY)[share::CROWD]:
                try:
                    story = cluster.run(after).story  # type: ignore[arg-type]
                    cluster.proxy.settled()
                    done += made(after, cluster.proxy.lines[0], totals[after.way])
                    # Nobody hears twice of one cut.
                    assert all(one.gaps <= len(story.made) for one in story.held.values())
                except BaseException as failure:
                    raise AssertionError(f"{after}: {failure}") from failure
                done["gaps told"] += sum(len(made.held) for made in story.made)
                done["commands run again"] += sum(command.again > 0 for command in story.commands)
        assert done["gaps told"]
        return done

    in_a_crowd(work)


@pytest.mark.rule("F-2", "F-7")
def test_bytes_that_come_one_by_one_change_nothing(server: Server) -> None:
    with Relayed(server) as cluster:
        cluster.run()
        cluster.plans = [Plan(most=1)]
        assert cluster.run().story.made == []
        assert len(cluster.proxy.lines) == 1
        print(f"\n{cluster.proxy.lines[0].passed}")
