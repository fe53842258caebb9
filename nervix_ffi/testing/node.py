"""Starting, driving and stopping a loopback node.

Owns the node's process and its control endpoint. Must not know the session protocol.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import urllib.parse
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from nervix_ffi.values import Value

__all__ = ["LoopbackError", "LoopbackNode"]

#: The variable that names another node binary.
VARIABLE = "NERVIX_LOOPBACK"

#: Seconds: longer than the node itself waits for anything.
_CONTROL_TIMEOUT = 660.0

_PACKAGED = Path(__file__).resolve().parent.parent / "nervix-loopback"


@runtime_checkable
class ArrowExporter(Protocol):
    """An Arrow batch of any library that has the PyCapsule protocol."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and array as capsules."""


@runtime_checkable
class ArrowStreamExporter(Protocol):
    """An Arrow table or stream of any library that has the PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The stream as a capsule."""


class LoopbackError(Exception):
    """The node could not be started, or refused what its control endpoint was asked. ``status`` is the HTTP status, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def binary() -> Path:
    """The node's program. Raises LoopbackError when there is none."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else _PACKAGED
    if not path.is_file():
        where = f"named by {VARIABLE}" if named else f"part of this package; {VARIABLE} can name another"
        raise LoopbackError(f"there is no loopback node at {path} ({where}); install the package to build it")
    return path


class LoopbackNode:
    """A loopback node in a process of its own, which ends with this one.

    ``nodes`` is 1 or 3 session endpoints over one cluster state. With ``password``, sessions need it, together with ``user``.
    ``load`` is a file of statements, or their text, that the node runs before it serves. ``options`` are further arguments of
    the program. Used as a context manager, or ended by ``stop``; garbage collection and the end of this process stop it too.
    Raises LoopbackError when it does not start within ``timeout`` seconds.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        user: str = "default",
        password: str | None = None,
        load: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        timeout: float = 10.0,
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="nervix-loopback-")
        self._finish = weakref.finalize(self, _stop, None, self._folder, os.getpid())
        command = [str(binary()), "--listen", "127.0.0.1:0", "--nodes", str(nodes), "--exit-with-parent"]
        if password is not None:
            command += ["--user", user, "--password", password]
        if load is not None:
            command += ["--load", str(self._file(load))]
        log = Path(self._folder) / "stderr"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, close_fds=True
            )
        self._finish.detach()
        self._finish = weakref.finalize(self, _stop, process, self._folder, os.getpid())
        try:
            started = json.loads(_first_line(process, timeout))
        except (LoopbackError, ValueError) as failure:
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            self.stop()
            raise LoopbackError(f"the loopback node did not start: {said or failure}") from failure
        self._process = process
        #: The session URI of each node by its name.
        self.nodes: dict[str, str] = {node["name"]: node["uri"] for node in started["nodes"]}
        self._leader = started["leader"]
        self._control = urllib.parse.urlsplit(started["control"])

    def __enter__(self) -> LoopbackNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<LoopbackNode {self.uri}>"

    def _file(self, load: str | os.PathLike[str]) -> Path:
        if isinstance(load, str) and ("\n" in load or ";" in load):
            path = Path(self._folder) / "load.nspl"
            path.write_text(load, encoding="utf-8")
            return path
        return Path(load)

    @property
    def pid(self) -> int:
        """The node's process."""
        return self._process.pid

    @property
    def uris(self) -> list[str]:
        """The session URI of each node."""
        return list(self.nodes.values())

    @property
    def uri(self) -> str:
        """The session URI of the first node."""
        return self.uris[0]

    @property
    def leader(self) -> str:
        """The session URI of the node that led when it started."""
        return self.nodes.get(self._leader, self.uri)

    @property
    def followers(self) -> list[str]:
        """The session URIs of the other nodes."""
        return [uri for uri in self.uris if uri != self.leader]

    def stop(self) -> None:
        """Ends the node, cleanly if it lets itself be. Again is a no-op."""
        self._finish()

    def control(self, action: str, /, **body: object) -> dict[str, Any]:
        """Asks the control endpoint for ``action`` with a JSON body and returns its answer. Raises LoopbackError when it refuses."""
        return self._request("POST", action, json.dumps(body).encode("utf-8"), "application/json")

    def publish(
        self,
        relay: str,
        rows: Iterable[Mapping[str, Value]] | bytes | ArrowExporter | ArrowStreamExporter,
        *,
        domain: str,
    ) -> dict[str, Any]:
        """Publishes one batch into a relay: rows as dicts of Python values, an Arrow IPC stream as bytes, or Arrow data.

        Returns what the node says about it once the batch is in the relay. Raises LoopbackError when the node refuses the batch.
        """
        data = _ipc(rows) if isinstance(rows, (ArrowExporter, ArrowStreamExporter)) else rows
        if isinstance(data, bytes):
            query = urllib.parse.urlencode({"domain": domain, "relay": relay})
            return self._request("POST", f"publish?{query}", data, "application/vnd.apache.arrow.stream")
        made = [{name: _json(value) for name, value in row.items()} for row in data]
        return self.control("publish", domain=domain, relay=relay, rows=made)

    def counts(self) -> dict[str, Any]:
        """What the node counted: frames and requests by kind, connections, how sessions ended."""
        return self._request("GET", "counts", b"", None)

    def transactions(self) -> list[dict[str, Any]]:
        """The node's transactions: identity, domain, owner, state, counts of operations, the session that holds it, its statements."""
        found: list[dict[str, Any]] = self._request("GET", "transactions", b"", None)["transactions"]
        return found

    def wait(self, *, timeout: float = 10.0, **counts: object) -> dict[str, Any]:
        """Waits inside the node until each count named is reached, and returns all counts.

        A count is a number to reach (0 is exactly none) or ``{"exactly": number}``; for ``frames`` and ``ended``, a dict of such by
        kind. Raises LoopbackError after ``timeout`` seconds.
        """
        return self.control("wait", timeout_ms=math.ceil(timeout * 1000), **counts)

    def _request(self, method: str, action: str, body: bytes, content: str | None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(
            self._control.hostname or "127.0.0.1", self._control.port, timeout=_CONTROL_TIMEOUT
        )
        try:
            headers = {} if content is None else {"Content-Type": content}
            connection.request(method, f"{self._control.path.rstrip('/')}/{action}", body or None, headers)
            response = connection.getresponse()
            data, status = response.read(), response.status
        except OSError as failure:
            raise LoopbackError(f"the control endpoint does not answer {action}: {failure}") from failure
        finally:
            connection.close()
        try:
            answer: dict[str, Any] = json.loads(data) if data else {}
        except ValueError:
            answer = {"error": data.decode("utf-8", "replace")}
        if status >= 400:
            raise LoopbackError(f"the node refused {action}: {answer.get('error', answer)}", status)
        return answer


def _first_line(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """The line that the node prints when it serves."""
    output: IO[bytes] | None = process.stdout
    assert output is not None
    deadline = time.monotonic() + timeout
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise LoopbackError(f"it said nothing within {timeout} seconds")
        more = os.read(output.fileno(), 65536)
        if not more:
            raise LoopbackError(f"it ended with status {process.wait()}")
        line += more
    return line


def _stop(process: subprocess.Popen[bytes] | None, folder: str, owner: int) -> None:
    """Ends the node's process, unless this one is a child that inherited the object."""
    if os.getpid() != owner:
        return
    if process is not None:
        process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def _json(value: Value) -> object:
    """A value as the node's control endpoint takes it."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"bits": struct.pack(">d", value).hex()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return value


def _ipc(data: ArrowExporter | ArrowStreamExporter) -> bytes:
    """An IPC stream with the data as its one batch."""
    import pyarrow

    if isinstance(data, ArrowExporter):
        batch = pyarrow.record_batch(data)
    else:
        table = pyarrow.table(data).combine_chunks()
        batches = table.to_batches()
        batch = batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
