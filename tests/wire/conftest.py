"""The second reader's classes, and a node behind a recording relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH
from . import reader
from .tap import Tap


@pytest.fixture(scope="session", autouse=True)
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that flatc made from the schema."""
    folder = tmp_path_factory.mktemp("wire")
    reader.generate(folder)
    return folder


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
