"""Frames by their number: the node's journal, and the faults that can be made at each frame of it.

Owns how a fault is addressed and armed. Must not know what a host does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nervix_ffi.testing import LoopbackNode

#: A frame whose number nobody can tell beforehand.
TICK = "DomainClockTicked"

#: How a connection or a stream can end beside an abort.
OTHER_WAYS: list[dict[str, Any]] = [
    {"how": "close"},
    {"how": "goaway"},
    {"how": "reset", "code": 8},
    {"how": "status", "code": 14},
]


@dataclass(frozen=True)
class Place:
    """The ``nth`` frame of a kind, as the node sees its direction, and a side of it."""

    direction: str
    kind: str
    nth: int
    when: str

    def __str__(self) -> str:
        return f"{self.when} {self.direction}:{self.kind}#{self.nth}"


@dataclass(frozen=True)
class Fault:
    """What happens at a place: a cut in some way, or leadership moving. ``away``: no connection is accepted after it, for a while."""

    place: Place
    how: str = "abort"
    code: int | None = None
    leader: str | None = None
    away: bool = False

    def __str__(self) -> str:
        what = f"leader to {self.leader}" if self.leader else self.how + (" and away" if self.away else "")
        return f"{what} {self.place}"

    def arm(self, node: LoopbackNode) -> None:
        """Has the node make it."""
        place = self.place
        where: dict[str, Any] = {"direction": place.direction, "kind": place.kind, "nth": place.nth, "when": place.when}
        if self.leader is not None:
            node.control("leader", leader=self.leader, **where)
        else:
            code = {} if self.code is None else {"code": self.code}
            node.control("cut", how=self.how, **code, **where)


class Journal:
    """The node's journal from some point on."""

    def __init__(self, node: LoopbackNode) -> None:
        self._node = node
        self._next = self._read(2**62)["next"]
        self.entries: list[dict[str, Any]] = []

    def _read(self, since: int) -> dict[str, Any]:
        return self._node.journal(since)

    def more(self) -> list[dict[str, Any]]:
        """The entries since the last look."""
        answer = self._read(self._next)
        self._next = answer["next"]
        new: list[dict[str, Any]] = answer["entries"]
        self.entries += new
        return new


def frames(entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries that are frames."""
    return (entry for entry in entries if entry["what"] == "frame")


def faults(entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries that are faults."""
    return (entry for entry in entries if entry["what"] in ("cut", "leader"))


def census(entries: Iterable[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """How many frames of each kind went each way, ticks aside."""
    return Counter((entry["direction"], entry["kind"]) for entry in frames(entries) if entry["kind"] != TICK)


def places(counted: Counter[tuple[str, str]]) -> list[Place]:
    """Both sides of every frame."""
    return [
        Place(direction, kind, nth, when)
        for (direction, kind), total in sorted(counted.items())
        for nth in range(1, total + 1)
        for when in ("before", "after")
    ]


def cuts(places: Iterable[Place]) -> list[Fault]:
    """The connection aborted at each place."""
    return [Fault(place) for place in places]


def moves(places: Iterable[Place], leader: str) -> list[Fault]:
    """Leadership moving at each place."""
    return [Fault(place, leader=leader) for place in places]


def next_places(entries: list[dict[str, Any]], first: Place, within: int) -> list[Place]:
    """Both sides of the frames that follow the fault at ``first``, up to so many."""
    counted: Counter[tuple[str, str]] = Counter()
    found: list[Place] = []
    seen = False
    for entry in entries:
        if entry["what"] in ("cut", "leader"):
            seen = True
            # A frame before which its session ended is none that passed, and counts all the same.
            counted[entry["direction"], entry["kind"]] += entry["what"] == "cut" and entry["when"] == "before"
        elif entry["what"] == "frame":
            way = entry["direction"], entry["kind"]
            counted[way] += 1
            if seen and entry["kind"] != TICK:
                found += [Place(*way, counted[way], when) for when in ("before", "after")]
    return found[: 2 * within]


def otherwise(faults: Iterable[Fault], dice: random.Random) -> list[Fault]:
    """The same places, each cut in another way."""
    return [replace(fault, **dice.choice(OTHER_WAYS)) for fault in faults]


def away(faults: Iterable[Fault]) -> list[Fault]:
    """The same faults, with nobody to connect to afterwards."""
    return [replace(fault, away=True) for fault in faults]
