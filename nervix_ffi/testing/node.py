"""Starting, driving and stopping a loopback node.

Owns the node's process and its control endpoint. Must not know the session protocol.
"""

from __future__ import annotations

import http.client
import json
import math
import numbers
import operator
import os
import re
import selectors
import struct
import subprocess
import tempfile
import time
import urllib.parse
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

from nervix_ffi._arrow import UTC_ZONES
from nervix_ffi.values import Value

if TYPE_CHECKING:
    import pyarrow

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
    With ``tls_cert`` and ``tls_key``, files of a PEM certificate chain and its key, sessions are served over TLS and every URI
    begins with https; the certificate should be for 127.0.0.1, and clients connect with the ``ca_file`` that vouches for it.
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
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        load: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        timeout: float = 10.0,
    ) -> None:
        command = [str(binary()), "--listen", "127.0.0.1:0", "--nodes", str(nodes), "--exit-with-parent"]
        if password is not None:
            command += ["--user", user, "--password", password]
        for option, file in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
            if file is not None:
                command += [option, os.fspath(file)]
        # Files without names: nothing is left behind, however this process ends.
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as text:
            inherited: tuple[int, ...] = ()
            if isinstance(load, str) and ("\n" in load or ";" in load):
                text.write(load.encode("utf-8"))
                text.seek(0)
                inherited = (text.fileno(),)
                command += ["--load", f"/dev/fd/{text.fileno()}"]
            elif load is not None:
                command += ["--load", os.fspath(load)]
            process = subprocess.Popen(
                [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, pass_fds=inherited
            )
            self._finish = weakref.finalize(self, _stop, process, os.getpid())
            try:
                started = json.loads(_first_line(process, timeout))
            except (LoopbackError, ValueError) as failure:
                self.stop()
                errors.seek(0)
                said = errors.read().decode("utf-8", "replace").strip()
                said = said.replace(f"/dev/fd/{text.fileno()}:", "load:")
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
        if isinstance(rows, (ArrowExporter, ArrowStreamExporter)):
            return self._publish_arrow(relay, domain, _batch(rows))
        if isinstance(rows, bytes):
            return self._publish_ipc(relay, domain, rows)
        made = [{name: _json(value, name) for name, value in row.items()} for row in rows]
        return self.control("publish", domain=domain, relay=relay, rows=made)

    def _publish_ipc(self, relay: str, domain: str, stream: bytes) -> dict[str, Any]:
        query = urllib.parse.urlencode({"domain": domain, "relay": relay})
        return self._request("POST", f"publish?{query}", stream, "application/vnd.apache.arrow.stream")

    def _publish_arrow(self, relay: str, domain: str, batch: pyarrow.RecordBatch) -> dict[str, Any]:
        """Publishes a batch. A field that may be null and never is counts as required where the relay's is."""
        required: set[str] = set()
        while True:
            try:
                return self._publish_ipc(relay, domain, _ipc(batch, required))
            except LoopbackError as failure:
                match = _REQUIRED.search(str(failure))
                if match is None or match[1] in required or batch.column(match[1]).null_count:
                    raise
                required.add(match[1])

    def counts(self, *, references: Iterable[str] | None = None) -> dict[str, Any]:
        """What the node counted: frames and requests by kind, connections, how sessions ended.

        With ``references``, only these commands are told, and only the sessions that are open: a node that ran for hours has
        counted tens of thousands of each.
        """
        if references is None:
            return self._request("GET", "counts", b"", None)
        return self.control("counts", references=list(references))

    def transactions(self) -> list[dict[str, Any]]:
        """The node's transactions: identity, domain, owner, state, counts of operations, the session that holds it, its statements."""
        found: list[dict[str, Any]] = self._request("GET", "transactions", b"", None)["transactions"]
        return found

    def batches(self) -> list[dict[str, Any]]:
        """Each content of a batch that the node received, in the order of first receipt, with the outcomes it told."""
        found: list[dict[str, Any]] = self._request("GET", "batches", b"", None)["batches"]
        return found

    def journal(self, since: int = 0) -> dict[str, Any]:
        """What passed in the node, in order: ``entries`` from number ``since`` on, and the number of the ``next`` one."""
        return self._request("GET", f"journal?since={since}", b"", None)

    def wait(self, *, timeout: float = 10.0, references: Iterable[str] | None = None, **counts: object) -> dict[str, Any]:
        """Waits inside the node until each count named is reached, and returns the counts as ``counts(references=references)``.

        A count is a number to reach (0 is exactly none) or ``{"exactly": number}``; for ``frames`` and ``ended``, a dict of such by
        kind. Raises LoopbackError after ``timeout`` seconds.
        """
        only = {} if references is None else {"references": list(references)}
        return self.control("wait", timeout_ms=math.ceil(timeout * 1000), **only, **counts)

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
    # This one needs no descriptor of its own, and takes descriptors of any number.
    with selectors.PollSelector() as readable:
        readable.register(output, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not readable.select(max(0.0, deadline - time.monotonic())):
                raise LoopbackError(f"it said nothing within {timeout} seconds")
            more = os.read(output.fileno(), 65536)
            if not more:
                raise LoopbackError(f"it ended with status {process.wait()}")
            line += more
    return line


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends the node's process, unless this one is a child that inherited the object."""
    if os.getpid() != owner:
        return
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


def _json(value: object, name: str) -> object:
    """A value as the node's control endpoint takes it. Raises TypeError, naming the field, for what is no value of any type."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    if isinstance(value, (list, tuple)):
        return [_json(item, name) for item in value]
    if isinstance(value, datetime):
        raise TypeError(f"field {name} has a datetime; a DATETIME is an int of nanoseconds: pass nervix_ffi.from_datetime(it)")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    if not isinstance(value, numbers.Real):
        raise TypeError(
            f"field {name} has a value of type {type(value).__name__}; values are bool, int, float, str, bytes, lists of them and "
            "None, and a DATETIME is an int of nanoseconds, which nervix_ffi.from_datetime makes of a datetime"
        )
    number = float(value)
    return number if math.isfinite(number) else {"bits": struct.pack(">d", number).hex()}


def _batch(data: ArrowExporter | ArrowStreamExporter) -> pyarrow.RecordBatch:
    """The data as one batch."""
    import pyarrow

    if isinstance(data, ArrowExporter):
        return pyarrow.record_batch(data)
    table = pyarrow.table(data).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


#: How the node refuses a field that may be null.
_REQUIRED = re.compile(r"the field `([^`]*)` must not be nullable")


def _ipc(batch: pyarrow.RecordBatch, required: set[str]) -> bytes:
    """An IPC stream of one batch, without metadata: what other libraries note down about themselves says nothing about the rows."""
    import pyarrow

    fields = [
        pyarrow.field(field.name, _plain(field.type), field.nullable and field.name not in required) for field in batch.schema
    ]
    columns = [
        column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type)
        for column, field in zip(batch.columns, fields)
    ]
    plain = pyarrow.RecordBatch.from_arrays(columns, schema=pyarrow.schema(fields))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_batch(plain)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _plain(kind: pyarrow.DataType) -> pyarrow.DataType:
    """An Arrow type as the node spells it, where others spell the same values differently."""
    import pyarrow
    from pyarrow import types

    def element() -> pyarrow.Field:
        field = kind.value_field
        return pyarrow.field("item", _plain(field.type), field.nullable)

    if types.is_fixed_size_list(kind):
        return pyarrow.list_(element(), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return pyarrow.list_(element())
    if types.is_timestamp(kind) and kind.tz in UTC_ZONES:
        return pyarrow.timestamp(kind.unit, UTC_ZONES[0])
    shorter = {"large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary"}
    return pyarrow.type_for_alias(shorter[str(kind)]) if str(kind) in shorter else kind
