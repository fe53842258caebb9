"""A relay between client and node that keeps what passed, so that a test reads the wire itself.

Owns the copying of bytes and as much of HTTP/2 as finds the messages: frame headers, padding, and gRPC's five bytes before each
message. Header blocks are left alone. It must not know what a message holds.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, GOAWAY = 0, 1, 3, 7
END_STREAM, PADDED = 0x1, 0x8


class Http2Frame(NamedTuple):
    """One frame of HTTP/2."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Recorded:
    """What one connection carried, each direction joined."""

    def __init__(self) -> None:
        self.from_client = bytearray()
        self.from_server = bytearray()
        self.client_closed = threading.Event()
        #: What arrives is dropped, either way, and nothing is closed.
        self.silent = False


def http2_frames(data: bytes) -> Iterator[Http2Frame]:
    """The complete frames of one direction of a connection."""
    at = len(PREFACE) if data.startswith(PREFACE) else 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, flags = data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
        end = at + 9 + length
        if end > len(data):
            return
        yield Http2Frame(kind, flags, stream, data[at + 9 : end])
        at = end


def grpc_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of one direction with the stream of each, in the order they ended. Every one must be uncompressed."""
    open_streams: dict[int, bytearray] = {}
    for frame in http2_frames(data):
        if frame.kind != DATA:
            continue
        payload = frame.payload
        if frame.flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        buffer = open_streams.setdefault(frame.stream, bytearray())
        buffer += payload
        while len(buffer) >= 5:
            compressed, length = struct.unpack_from(">BI", buffer)
            assert compressed == 0, "a message is compressed"
            if len(buffer) < 5 + length:
                break
            yield frame.stream, bytes(buffer[5 : 5 + length])
            del buffer[: 5 + length]


class Tap:
    """Listens on a free port of 127.0.0.1 and relays every connection to `upstream`, an http origin."""

    def __init__(self, upstream: str) -> None:
        split = urlsplit(upstream)
        assert split.hostname is not None
        assert split.port is not None
        self._upstream = (split.hostname, split.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[Recorded] = []
        #: When each of those came who found it shut.
        self.turned_away: list[float] = []
        self._shut = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        """The origin to connect to."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        self.shut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._shut:
                        client.close()
                        self.turned_away.append(time.monotonic())
                        self._lock.notify_all()
                        continue
                    server = socket.create_connection(self._upstream)
                    self._sockets += [client, server]
                    recorded = Recorded()
                    self.connections.append(recorded)
            except OSError:
                return
            for source, sink, kept, closed in (
                (client, server, recorded.from_client, recorded.client_closed),
                (server, client, recorded.from_server, None),
            ):
                threading.Thread(target=self._relay, args=(source, sink, recorded, kept, closed), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, sink: socket.socket, of: Recorded, kept: bytearray, closed: threading.Event | None) -> None:
        try:
            while data := source.recv(65536):
                if of.silent:
                    continue
                # Kept before it is passed on: once a peer acts on bytes, a test finds them here.
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            if closed is not None:
                closed.set()

    def shut(self) -> None:
        """Ends what is open, and puts out at once whoever comes from now on."""
        with self._lock:
            self._shut = True
            for one in self._sockets:
                # To close it alone would leave its thread in recv, and the connection open.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets.clear()

    def open(self) -> None:
        """Relays again what connects."""
        with self._lock:
            self._shut = False

    def wait_for(self, attempts: int, timeout: float) -> None:
        """Waits until so many were put out."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.turned_away) >= attempts, timeout), self.turned_away

    def black_hole(self) -> None:
        """Have what is open now carry nothing any more. What connects later is relayed."""
        with self._lock:
            for one in self.connections:
                one.silent = True

    def client_messages(self) -> list[bytes]:
        """Every message that clients sent so far."""
        return [message for one in self.connections for _, message in grpc_messages(bytes(one.from_client))]

    def server_messages(self) -> list[bytes]:
        """Every message that the node sent so far."""
        return [message for one in self.connections for _, message in grpc_messages(bytes(one.from_server))]
