"""What was done and what became of it, kept by all threads, and what of that contradicts what a client promises.

Every record is dropped as soon as nothing can contradict it any more, so that the books of an hour weigh what those of a minute do.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: More contradictions are not kept: the first ones tell.
PROBLEMS = 20


class Recent(Generic[K, V]):
    """A mapping that keeps the newest entries."""

    def __init__(self, room: int) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._room = room

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > self._room:
            self._entries.popitem(last=False)

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)


class Books:
    """The records of one soak. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.operations: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.gaps: Counter[str] = Counter()
        self.uncertain: Counter[str] = Counter()
        self.problems: list[str] = []
        #: References of commands that may have happened and have no outcome yet.
        self._open: set[str] = set()
        #: References with how often the node must have carried out each command, to be compared by the next audit.
        self._executed: dict[str, int] = {}
        #: The same for what a commit carried out of each append.
        self._applied: dict[str, int] = {}
        self._due_executed: dict[str, int] = {}
        self._due_applied: dict[str, int] = {}
        #: The delivery in which each row was seen.
        self._row_delivery: Recent[int, bytes] = Recent(40_000)
        self._delivery_rows: Recent[bytes, tuple[int, ...]] = Recent(8_000)
        #: Rows of batches that had no effect, by what the client was told.
        self._never: Recent[int, str] = Recent(20_000)
        self._perhaps_settled: Recent[bytes, None] = Recent(8_000)
        #: The attempt of each delivery that was confirmed.
        self._settled: Recent[bytes, bytes] = Recent(8_000)

    def did(self, operation: str, times: int = 1) -> None:
        with self._lock:
            self.operations[operation] += times

    def fault(self, name: str) -> None:
        with self._lock:
            self.faults[name] += 1

    def gap(self, name: str) -> None:
        with self._lock:
            self.gaps[name] += 1

    def wrong(self, problem: str) -> None:
        """Something happened that must not."""
        with self._lock:
            self._wrong(problem)

    def _wrong(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS:
            self.problems.append(problem)

    # ---- commands

    def may_have_happened(self, reference: str, kind: str) -> None:
        """A call ended without the command's outcome."""
        with self._lock:
            self.uncertain[kind] += 1
            self._open.add(reference)

    def has_outcome(self, reference: str) -> None:
        """The command's outcome is known."""
        with self._lock:
            if reference in self._open:
                self._open.discard(reference)
                self.uncertain["recovered"] += 1

    def expect_executed(self, reference: str | None, times: int = 1) -> None:
        if reference is None:
            self.wrong("an outcome of the server has no reference")
            return
        with self._lock:
            self._executed[reference] = times

    def expect_applied(self, reference: str, times: int) -> None:
        with self._lock:
            self._applied[reference] = times

    def audit(self, executed: dict[str, int], applied: dict[str, int]) -> None:
        """Compares what the node counted with what was expected before the count was asked for."""
        with self._lock:
            self._balance("carried out", self._due_executed, executed)
            self._balance("applied", self._due_applied, applied)

    def _balance(self, what: str, expected: dict[str, int], found: dict[str, int]) -> None:
        for reference, times in expected.items():
            if found.get(reference, 0) != times:
                self._wrong(f"command {reference} was {what} {found.get(reference, 0)} times, not {times}")

    def begin_audit(self) -> set[str]:
        """What is expected by now is what the next ``audit`` compares; returns its references."""
        with self._lock:
            self._due_executed, self._executed = self._executed, {}
            self._due_applied, self._applied = self._applied, {}
            return self._due_executed.keys() | self._due_applied.keys()

    def left_uncertain(self) -> list[str]:
        with self._lock:
            return sorted(self._open)

    # ---- batches

    def never(self, rows: Sequence[int], why: str) -> None:
        """The client was told that a batch had no effect."""
        with self._lock:
            for row in rows:
                if row in self._row_delivery:
                    self._wrong(f"row {row} was delivered, and its batch had no effect: {why}")
                self._never.put(row, why)

    def delivered(self, identity: bytes, rows: tuple[int, ...]) -> bool:
        """A delivery was read. Whether it is known to be over: then this is an attempt from before, which nobody can settle any
        more, as it waited here while its time ran out or its session ended, and another attempt was confirmed.
        """
        with self._lock:
            self.operations["delivery"] += 1
            before = self._delivery_rows.get(identity)
            if before is not None and before != rows:
                self._wrong(f"delivery {identity.hex()} came again with other rows: {before} and then {rows}")
            self._delivery_rows.put(identity, rows)
            for row in rows:
                why = self._never.get(row)
                if why is not None:
                    self._wrong(f"row {row} was delivered, and its batch had no effect: {why}")
                other = self._row_delivery.get(row)
                if other is not None and other != identity:
                    self._wrong(f"row {row} is in two deliveries, {other.hex()} and {identity.hex()}")
                self._row_delivery.put(row, identity)
            return identity in self._settled

    def settling(self, identity: bytes) -> bool:
        """An acknowledgement is about to be sent. Whether one was before."""
        with self._lock:
            before = identity in self._perhaps_settled
            self._perhaps_settled.put(identity, None)
            return before

    def not_settled(self, identity: bytes) -> None:
        """The acknowledgement was never sent."""
        with self._lock:
            self._perhaps_settled.drop(identity)

    def settled(self, identity: bytes, reference: bytes) -> None:
        """The server confirmed that the delivery is over, by an acknowledgement or a rejection of this attempt."""
        with self._lock:
            before = self._settled.get(identity)
            if before is not None and before != reference:
                self._wrong(f"delivery {identity.hex()} came again after it was settled, and that was confirmed")
            self._settled.put(identity, reference)

    def completed(self, rows: Sequence[int]) -> None:
        """A batch completed, so each of its rows was acknowledged."""
        with self._lock:
            for row in rows:
                identity = self._row_delivery.get(row)
                if identity is None:
                    self._wrong(f"row {row} is of a completed batch, and no consumer saw it")
                elif identity not in self._perhaps_settled:
                    self._wrong(f"row {row} is of a completed batch, and nobody acknowledged delivery {identity.hex()}")
                self._row_delivery.drop(row)
