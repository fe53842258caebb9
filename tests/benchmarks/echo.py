"""A unary gRPC echo on 127.0.0.1, the yardstick for a command's round trip.

Owns the server and the call. Frames are bytes; nothing here knows what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc  # type: ignore[import-untyped]

METHOD = "/echo.Echo/Say"


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)


@contextmanager
def echo() -> Iterator[Callable[[bytes], bytes]]:
    """Serve an echo and give the function that calls it."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), handlers=[_Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.unary_unary(METHOD)
    finally:
        server.stop(None).wait()
