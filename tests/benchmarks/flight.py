"""An Arrow Flight server that keeps what it is given, the yardstick for batches there and back.

Owns the server and its process. Run as a program it serves, and prints its port.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight


class Keeper(flight.FlightServerBase):  # type: ignore[misc]
    """Keeps the batches of each put by its path, and hands them out."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._kept: dict[bytes, tuple[pa.Schema, list[pa.RecordBatch]]] = {}

    def do_put(
        self,
        _context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        _writer: flight.FlightMetadataWriter,
    ) -> None:
        """Keep every batch."""
        self._kept[descriptor.path[0]] = (reader.schema, [chunk.data for chunk in reader])

    def do_get(self, _context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Hand them out, and forget them."""
        schema, batches = self._kept.pop(ticket.ticket)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches))


class Client:
    """Puts batches and gets them back."""

    def __init__(self, port: int) -> None:
        self._client = flight.FlightClient(f"grpc://127.0.0.1:{port}")

    def there_and_back(self, batches: Sequence[pa.RecordBatch]) -> int:
        """The rows that came back."""
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path("batches"), batches[0].schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
        reader = self._client.do_get(flight.Ticket(b"batches"))
        return sum(chunk.data.num_rows for chunk in reader)


@contextmanager
def keeper() -> Iterator[Client]:
    """A server in a process of its own, and its client."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Client(int(process.stdout.readline()))
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    with Keeper() as server:
        print(server.port, flush=True)
        server.serve()
