"""The pytest plugin of nervix_ffi: the fixture ``loopback_node``.

It stands outside of the package so that pytest does not load the client library for tests that never use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nervix_ffi.testing import LoopbackNode


@pytest.fixture
def loopback_node() -> Iterator[LoopbackNode]:
    """A loopback node with one session endpoint and no credentials, for one test."""
    from nervix_ffi.testing import LoopbackNode

    with LoopbackNode() as node:
        yield node
