"""Classes to read frames with, and a node behind a recording relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH
from .tap import Tap


@pytest.fixture(scope="session", autouse=True)
def read(generated: None) -> None:
    """Every test here reads frames."""


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture
def tap(node: LoopbackNode) -> Iterator[Tap]:
    """What clients and the node say to each other."""
    with Tap(node.uri) as one:
        yield one
