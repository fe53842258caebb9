"""Nodes for the tests of the rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH, connect


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """One node with the graph."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture
def cluster() -> Iterator[LoopbackNode]:
    """Three nodes with the graph, the first of them leading."""
    with LoopbackNode(3, load=GRAPH) as three:
        yield three


@pytest.fixture
def session(node: LoopbackNode) -> Iterator[nervix_ffi.Session]:
    """A session with the node."""
    with connect(node) as opened:
        yield opened
