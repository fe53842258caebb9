"""One soak from its start to its summary."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import random
import sys
import threading
import time
from typing import Any

import nervix_ffi
from nervix_ffi.testing import LoopbackError, LoopbackNode

from .books import Books
from .calls import PATIENCE, Canceller
from .faults import Faults
from .graph import DOMAIN, GRAPH, RELAY
from .residue import GROWTH, Residue, left_behind, resident
from .workers import WORKERS, Worker

#: Seconds between two looks at what the node counted.
AUDIT = 5.0
#: Seconds after which a thread that took no turn is stuck.
STUCK = 200.0
#: The share of the soak after which memory is measured first, and the seconds that are enough for it.
WARM_SHARE, WARM = 0.35, 90.0
#: How often memory is looked at, for the summary.
SAMPLES = 12
#: Seconds after which a silent session is given up, and after which a call that finds no answer is.
REQUEST_TIMEOUT, RETRY_TIMEOUT = 1.5, 3.0


class Soak:
    """The node, the sessions that threads share, and the threads."""

    def __init__(self, seed: int, duration: float) -> None:
        self.seed = seed
        self.duration = duration
        self.books = Books()
        self.node = LoopbackNode(3, load=GRAPH)
        self.canceller = Canceller()
        self.ending = threading.Event()
        self.failed = threading.Event()
        self.fed = threading.Event()
        #: The numbers of rows that are submitted.
        self.rows = itertools.count(1)
        self._dice = random.Random(f"sessions {seed}")
        self._publishing = threading.Event()

    # ---- what the threads use

    def connect_once(self, timeout: float = PATIENCE) -> nervix_ffi.Session:
        """A session with one of the nodes, which knows of the others."""
        uris = self.node.uris
        first = self._dice.choice(uris)
        return nervix_ffi.connect(
            first,
            seeds=[uri for uri in uris if uri != first],
            domain=DOMAIN,
            request_timeout=REQUEST_TIMEOUT,
            retry_timeout=RETRY_TIMEOUT,
            timeout=timeout,
        )

    def connect(self) -> nervix_ffi.Session:
        """A session as soon as one can be had."""
        for attempt in itertools.count(1):
            try:
                return self.connect_once()
            except (nervix_ffi.ConnectError, nervix_ffi.DeadlineError):
                self.books.did("connect refused")
                if attempt == 50:
                    raise
                time.sleep(0.1)
        raise AssertionError

    def execute(self, statement: str) -> str:
        """Has the node run a statement, past every session."""
        return str(self.node.control("execute", domain=DOMAIN, statement=statement)["message"])

    def exists(self, schema: str) -> bool:
        """Whether a schema is there, whatever any client was told."""
        try:
            self.execute(f"SHOW CREATE SCHEMA {schema};")
        except LoopbackError:
            return False
        return True

    # ---- the run

    def run(self) -> list[str]:
        """Everything, and what is wrong with it."""
        sys.unraisablehook = self._unraisable
        try:
            self._warm_up()
            start = Residue.now()
            self._soak()
            if not self.books.problems:
                self.books.problems += left_behind(start)
            if not self.books.problems:
                self._check_memory()
        finally:
            self.node.stop()
        return self.books.problems

    def _unraisable(self, what: Any) -> None:
        self.books.wrong(f"ignored in {what.object!r}: {what.exc_value!r} {what.err_msg or ''}")

    def _warm_up(self) -> None:
        """What a process keeps once it had a session is there before anything is counted."""
        with self.connect_once() as session:
            session.execute("LIST DOMAINS;", timeout=PATIENCE)
        self.node.wait(sessions={"exactly": 0}, connections={"exactly": 0}, timeout=PATIENCE)

    def _soak(self) -> None:
        self.shared = self.connect()
        self.traffic = self.connect()
        faults = Faults(self.node, self.books, self.seed)
        publisher = threading.Thread(target=self._publish, name="publisher", daemon=True)
        workers = [kind(self) for kind in WORKERS]
        self.canceller.start()
        publisher.start()
        for worker in workers:
            worker.thread.start()
        faults.start()
        self._watch(workers)
        faults.stop()
        self._calm()
        self.ending.set()
        self._join(workers)
        self._publishing.set()
        publisher.join(PATIENCE)
        self.canceller.stop()
        if self.books.problems:
            return
        self._audit()
        for reference in self.books.left_uncertain():
            self.books.wrong(f"command {reference} was left uncertain")
        # What the threads knew goes with them.
        del workers
        self.shared.close()
        self.traffic.close()
        del self.shared, self.traffic
        gc.collect()
        self._check_node()

    def _publish(self) -> None:
        """Rows that count up, for whoever subscribes."""
        for number in itertools.count(1):
            if self._publishing.wait(0.02):
                return
            row = {"id": number, "value": None if number % 2 else number, "note": f"row {number}"}
            self.node.control("publish", domain=DOMAIN, relay=RELAY, rows=[row])

    def _watch(self, workers: list[Worker]) -> None:
        begin = time.monotonic()
        audited = begin
        warm = begin + min(WARM, WARM_SHARE * self.duration)
        self.memory_warm = 0
        #: What memory came to in between, in equal steps.
        self.memory: list[int] = []
        while time.monotonic() < begin + self.duration and not self.failed.is_set() and not self.books.problems:
            self.failed.wait(0.25)
            now = time.monotonic()
            if now - audited > AUDIT:
                audited = now
                self._audit()
            if not self.memory_warm and now > warm:
                self.memory_warm = resident()
            if now > begin + (len(self.memory) + 1) * self.duration / SAMPLES:
                self.memory.append(resident())
            self._see_who_is_stuck(workers, now)

    def _see_who_is_stuck(self, workers: list[Worker], now: float) -> None:
        stuck = [worker.name for worker in workers if now - worker.last > STUCK]
        if stuck:
            faulthandler.dump_traceback(all_threads=True)
            self.books.wrong(f"without a turn for {STUCK} s: {', '.join(stuck)}")

    def _calm(self) -> None:
        """Nothing is wrong any more."""
        for name in self.node.nodes:
            self.node.control("node", node=name, state="running")
        self.node.control("accept", mode="accept")
        self.node.control("silence", silent=False)
        self.node.control("leader", leader=next(iter(self.node.nodes)))
        self.node.control("clear")
        # The outcome of a batch whose answer was dropped never comes on that session.
        self.node.control("cut", how="abort")

    def _join(self, workers: list[Worker]) -> None:
        deadline = time.monotonic() + STUCK
        for worker in workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
        late = [worker.name for worker in workers if worker.thread.is_alive()]
        if late:
            faulthandler.dump_traceback(all_threads=True)
            self.books.wrong(f"did not come to an end: {', '.join(late)}")

    def _audit(self) -> None:
        found = self.node.counts(references=self.books.begin_audit())
        self.books.audit(found["executed"], found["applied"])
        for what in ("forbidden_in_transaction", "violations"):
            if found[what]:
                self.books.wrong(f"the node counts {what}: {found[what]}")
        if found["batches"]["forbidden_resends"]:
            self.books.wrong(f"{found['batches']['forbidden_resends']} batches came again that must not have")
        if found["sessions"]["ended"]["end_stream"]:
            self.books.wrong(f"{found['sessions']['ended']['end_stream']} sessions were half-closed")

    def _check_node(self) -> None:
        """Nothing of ours is left in the node."""
        nothing = {"exactly": 0}
        try:
            self.node.wait(
                sessions=nothing,
                connections=nothing,
                subscriptions=nothing,
                clocks=nothing,
                producers=nothing,
                consumers=nothing,
                parked_reads=nothing,
                references=[],
                timeout=PATIENCE,
            )
        except LoopbackError:
            found = self.node.counts(references=[])
            names = ("subscriptions", "clocks", "producers", "consumers", "parked_reads")
            left = {name: found[name] for name in names if found[name]}
            sessions = [session for session in found["sessions"]["list"] if session["ended"] is None]
            self.books.wrong(
                f"something of the client is left in the node: {left}, connections {found['connections']}, sessions {sessions}; "
                f"in the client there are {dict(Residue.now().handles)}"
            )
        self.last_counts = self.node.counts(references=[])

    def _check_memory(self) -> None:
        self.memory_end = resident()
        if self.memory_warm and self.memory_end - self.memory_warm > GROWTH:
            self.books.wrong(
                f"memory grew by {(self.memory_end - self.memory_warm) >> 10} KiB, from {self.memory_warm >> 10} KiB when warm"
            )

    def summary(self) -> str:
        """What was done, for a person."""

        def line(what: str, counter: dict[str, int]) -> str:
            items = ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items(), key=lambda it: (-it[1], it[0])))
            return f"{what}: {items or 'none'}"

        books = self.books
        lines = [
            f"seed {self.seed}, {self.duration:.0f} s",
            line("operations", books.operations),
            line(f"{sum(books.faults.values())} faults", books.faults),
            line("gaps", books.gaps),
            line("uncertain", books.uncertain),
        ]
        if not books.problems:
            sessions, batches = self.last_counts["sessions"], self.last_counts["batches"]
            lines.append(
                f"the node saw {sessions['opened']:,} sessions, which ended {sessions['ended']}, and the batches {batches}"
            )
            between = ", ".join(f"{sample >> 10:,}" for sample in self.memory)
            lines.append(
                f"memory: {self.memory_warm >> 10:,} KiB when warm, {self.memory_end >> 10:,} KiB at the end; between: {between}"
            )
        return "\n".join(lines)
