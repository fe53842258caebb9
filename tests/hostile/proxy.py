"""A relay between clients and a node that breaks connections, to the byte or between two frames of HTTP/2.

Owns the copying of bytes, how a connection ends, and as much of HTTP/2 as it takes to put frames between frames. Must not know what a
message holds, nor anything of TLS: what is encrypted passes as it is, and is cut as it is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from ..support import PATIENCE

#: The directions of a connection.
TO_SERVER, TO_CLIENT = "to server", "to client"

#: How a connection ends: by an end of what there is to read, or by a reset.
FIN, RST = "FIN", "RST"

HEADERS, RST_STREAM, GOAWAY = 1, 3, 7
END_STREAM, END_HEADERS = 0x1, 0x4

#: The only stream that a client opens on a connection, the greatest there can be, and none.
STREAM, ANY_STREAM, NO_STREAM = 1, 0x7FFFFFFF, 0


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def reset_stream(code: int) -> bytes:
    """A reset of the client's stream."""
    return http2(RST_STREAM, 0, STREAM, struct.pack(">I", code))


def go_away(last: int, code: int) -> bytes:
    """No stream behind the last one is served."""
    return http2(GOAWAY, 0, 0, struct.pack(">II", last, code))


def headers(**fields: str) -> bytes:
    """Headers that end the client's stream: ``status`` is that of HTTP, and an underscore stands for a hyphen."""
    block = b""
    for name, value in fields.items():
        text = b":status" if name == "status" else name.replace("_", "-").encode("ascii")
        # Literals that enter no table, so that what the node says later is read as before.
        block += bytes([0, len(text)]) + text + bytes([len(value)]) + value.encode("ascii")
    return http2(HEADERS, END_STREAM | END_HEADERS, STREAM, block)


@dataclass(frozen=True)
class Plan:
    """What becomes of one connection. Without an act it only passes, and can be broken from outside."""

    act: Callable[[Line], None] | None = None
    #: The act is due when so many bytes passed in a direction, and none passes after them. Without it, instead of the first headers
    #: that the server sends.
    after: tuple[str, int] | None = None
    #: The origin that it leads to, unless that is the proxy's own.
    upstream: str | None = None
    #: The most bytes that are passed on at once.
    most: int = 65536


class Line:
    """One connection of a client with the one to the server behind it. Methods are for the proxy's thread."""

    def __init__(self, plan: Plan, address: tuple[str, int], *, framed: bool) -> None:
        self._act, self._after, self._most = plan.act, plan.after, plan.most
        self._address = address
        #: Whether frames pass to the client whole, so that others can be put between them.
        self._framed = framed and plan.after is None
        self._begun = bytearray()
        self._muted = False
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        #: How many bytes passed in each direction.
        self.passed = {TO_SERVER: 0, TO_CLIENT: 0}
        #: Whether what was planned for it has happened.
        self.acted = threading.Event()
        #: Whether both connections are over.
        self.over = threading.Event()

    # ---- what can be done to it

    def end(self, how: str) -> None:
        """Ends it on both sides, behind what has passed."""
        self._muted = True
        for transport in (self._client, self._server):
            if transport is None or transport.is_closing():
                continue
            if how == RST:
                # What is still here would not go out.
                assert transport.get_write_buffer_size() == 0
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()
            elif transport is self._client:
                # What the client still sends is read, since closing would be a reset then.
                transport.write_eof()
            else:
                transport.close()

    def mute(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._muted = True

    def put(self, data: bytes) -> None:
        """Says something to the client in the server's name."""
        assert self._client is not None
        self._client.write(data)

    def last(self, data: bytes) -> None:
        """Says something to the client, and lets nothing pass after it."""
        self.put(data)
        self.mute()

    # ---- what happens to it

    def opened(self, client: asyncio.Transport) -> None:
        """The client is there."""
        client.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = client
        if not self._due():
            client.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(client))

    async def _connect(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            server, _ = await loop.create_connection(lambda: _Server(self), *self._address)
        except OSError:
            self.end(RST)
            return
        self._server = server
        if client.is_closing():
            server.abort()
        else:
            client.resume_reading()

    def received(self, way: str, data: bytes) -> None:
        """Bytes to be passed on."""
        if self._muted:
            return
        if way == TO_CLIENT and self._framed:
            self._begun += data
            while not self._muted and len(self._begun) >= 9:
                end = 9 + int.from_bytes(self._begun[:3], "big")
                if len(self._begun) < end:
                    break
                if self._begun[3] == HEADERS:
                    self._now()
                if not self._muted:
                    self._write(way, bytes(self._begun[:end]))
                del self._begun[:end]
            return
        if self._after is not None and self._after[0] == way:
            data = data[: self._after[1] - self.passed[way]]
        self._write(way, data)
        self._due()

    def _write(self, way: str, data: bytes) -> None:
        self.passed[way] += len(data)
        sink = self._client if way == TO_CLIENT else self._server
        assert sink is not None
        for at in range(0, len(data), self._most):
            sink.write(data[at : at + self._most])

    def _due(self) -> bool:
        """Acts if the byte for it has passed."""
        if self._after is None or self.passed[self._after[0]] < self._after[1]:
            return False
        self._now()
        return True

    def _now(self) -> None:
        if self._act is not None and not self.acted.is_set():
            self._act(self)
            self.acted.set()

    def closed(self, way: str) -> None:
        """The side from which bytes come has ended, or its connection is gone."""
        if way == TO_SERVER:
            self._muted = True
            for transport in (self._client, self._server):
                if transport is not None:
                    transport.close()
        elif not self._muted:
            self.end(FIN)

    def gone(self) -> None:
        """A connection is gone."""
        if all(transport is None or transport.is_closing() for transport in (self._client, self._server)):
            self.over.set()

    def abandon(self) -> None:
        """The proxy ends."""
        for transport in (self._client, self._server):
            if transport is not None:
                transport.abort()


class _End(asyncio.Protocol):
    """One of the two ends of a line. What comes from it flows in the direction ``way``."""

    way: str

    def __init__(self, line: Line) -> None:
        self.line = line

    def data_received(self, data: bytes) -> None:
        self.line.received(self.way, data)

    def eof_received(self) -> bool:
        self.line.closed(self.way)
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self.line.closed(self.way)
        self.line.gone()


class _Server(_End):
    way = TO_CLIENT


class _Client(_End):
    way = TO_SERVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.line.opened(transport)


class Proxy:
    """Listens on a free port of 127.0.0.1, in a thread of its own, and relays every connection to `upstream`, an origin."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._plans: deque[Plan] = deque()
        #: The connections since the last `fresh`.
        self.lines: list[Line] = []
        self._all: list[Line] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme, port = urlsplit(upstream).scheme, self._listener.getsockname()[1]
        self.uri = f"{scheme}://127.0.0.1:{port}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def plan(self, *plans: Plan) -> None:
        """What becomes of the next connections, and of no other: whatever was planned before is dropped."""
        self._plans = deque(plans)

    def fresh(self, *plans: Plan) -> None:
        """Counts connections anew, and plans."""
        self.lines = []
        self.plan(*plans)

    def do(self, act: Callable[[Line], None], line: Line | None = None) -> None:
        """Does something to a connection, the newest unless told, and waits until that is done."""
        line, done = line or self.lines[-1], threading.Event()

        def make() -> None:
            act(line)
            done.set()

        self._loop.call_soon_threadsafe(make)
        assert done.wait(PATIENCE)

    def settled(self) -> None:
        """Waits until every connection since the last `fresh` is over."""
        for line in self.lines:
            assert line.over.wait(PATIENCE), "a connection is left"

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.get_running_loop().create_server(self._accepted, sock=self._listener)
        await self._stop.wait()
        server.close()
        for line in self._all:
            line.abandon()
        # For the connections to be closed, which happens in the next round.
        await asyncio.sleep(0)

    def _accepted(self) -> _Client:
        plan = self._plans.popleft() if self._plans else Plan()
        origin = urlsplit(plan.upstream or self._upstream)
        assert origin.hostname is not None
        assert origin.port is not None
        line = Line(plan, (origin.hostname, origin.port), framed=origin.scheme == "http" and self.uri.startswith("http:"))
        self._all = [one for one in self._all if not one.over.is_set()]
        self._all.append(line)
        self.lines.append(line)
        return _Client(line)


def cut(way: str, count: int, how: str) -> Plan:
    """A connection that ends when so many bytes passed in a direction."""
    return Plan(act=lambda line: line.end(how), after=(way, count))
