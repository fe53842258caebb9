"""A Nervix stand-in for tests: starts the loopback node that comes with the package, and drives it.

The node keeps everything in memory, listens on 127.0.0.1 alone and ends with the process that started it. It is not a Nervix
server.
"""

from nervix_ffi.testing.node import LoopbackError, LoopbackNode

__all__ = ["LoopbackError", "LoopbackNode"]
