"""Many runs of the scripted host against one node process, each in a domain of its own.

Owns what lies between two runs. Must not judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nervix_ffi.testing import LoopbackNode

from .host import BATCHES, Host, graph
from .invariants import check
from .places import Fault, census


class Cluster:
    """A node, or three, whose time stands still. With ``follower`` the host connects to one that does not lead."""

    def __init__(self, nodes: int, *, follower: bool = False, **options: Any) -> None:
        self.node = LoopbackNode(nodes, options=["--frozen-time"], **options)
        first, *others = self.node.uris
        self.uris = [*others, first] if follower else [first, *others]
        self._runs = 0
        self._sizes: list[int] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()

    def host(self, number: int, faults: Sequence[Fault]) -> Host:
        """The host of a run."""
        return Host(self.node, number, self.uris, faults)

    def run(self, *faults: Fault) -> Host:
        """Runs the script once with these faults, and judges it."""
        self._runs += 1
        host = self.host(self._runs, faults)
        for statement in graph(host.domain):
            domain = {} if "DOMAIN" in statement else {"domain": host.domain}
            self.node.control("execute", **domain, statement=statement)
        for fault in faults:
            fault.arm(self.node)
        try:
            host.run()
            check(host, self._sizes or self._measure(host))
        finally:
            self.node.control("clear")
            self.node.control("leader", leader=next(iter(self.node.nodes)))
        self.node.control("execute", domain=host.domain, statement="STOP;")
        self.node.control("execute", statement=f"DROP DOMAIN {host.domain};")
        return host

    def _measure(self, host: Host) -> list[int]:
        """How large the streams of the batches are, by a run in which each of them arrived."""
        self._sizes = [one["bytes"] for one in self.node.batches()[host.batches_before :]]
        assert len(set(self._sizes)) == len(BATCHES)
        return self._sizes

    def census(self) -> Counter[tuple[str, str]]:
        """The frames of a run in which nothing happens."""
        return census(self.run().journal.entries)
