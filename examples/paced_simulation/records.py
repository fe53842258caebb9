"""The two files of a run: the ledger of what was submitted, and the store of effects. Both survive a crash at any moment.

A line is written whole and synced before anything relies on it. A line that a crash cut short is dropped when a file is opened again.
Other drivers write and read the same files.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")


def time_text(nanoseconds: int) -> str:
    """An instant as RFC 3339, with as many digits as it needs: 0, 3, 6 or 9."""
    whole, part = divmod(nanoseconds, 10**9)
    digits = f"{part:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    instant = EPOCH + timedelta(seconds=whole)
    return f"{instant:%Y-%m-%dT%H:%M:%S}{f'.{digits}' if digits else ''}Z"


def time_of(text: str) -> int:
    """The nanoseconds of an instant in RFC 3339."""
    match = RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time like 2030-01-01T00:00:00.000000001Z")
    instant = datetime.fromisoformat(f"{match[1]}+00:00")
    return (instant - EPOCH) // timedelta(seconds=1) * 10**9 + int((match[2] or "").ljust(9, "0"))


@dataclass(frozen=True)
class Reading:
    """One reading of one sensor."""

    reading_id: str
    generation: int
    tick: int
    sensor: str
    occurred_at: int
    value: int

    def row(self) -> dict[str, Any]:
        """The reading as the ingestor takes it."""
        return {
            "reading_id": self.reading_id,
            "sensor": self.sensor,
            "tick": self.tick,
            "occurred_at": self.occurred_at,
            "value": self.value,
        }


class Lines:
    """A file of JSON lines that is only ever added to."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        try:
            self.found: list[dict[str, Any]] = [json.loads(line) for line in data[:whole].splitlines()]
        except ValueError as failure:
            raise ValueError(f"{path} holds a line that is no JSON: {failure}") from failure

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Adds lines, and returns when they are on disk."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with self._lock:
            self._file.write(lines.encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Ledger:
    """What was submitted, and what became of it."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self.readings: dict[str, Reading] = {}
        self._completed: set[str] = set()
        for record in self._lines.found:
            if record["record"] == "reading":
                self.readings[record["reading_id"]] = Reading(
                    record["reading_id"],
                    record["generation"],
                    record["tick"],
                    record["sensor"],
                    time_of(record["occurred_at"]),
                    record["value"],
                )
            elif record["outcome"] == "completed":
                self._completed.update(record["reading_ids"])

    def incomplete(self) -> list[Reading]:
        """The readings that did not complete, in the order they were submitted."""
        return [reading for name, reading in self.readings.items() if name not in self._completed]

    def submitting(self, readings: Iterable[Reading], ingestor: str, timestamps: str) -> None:
        """Notes readings that are about to be submitted."""
        self._lines.add(
            {
                "record": "reading",
                "reading_id": reading.reading_id,
                "generation": reading.generation,
                "tick": reading.tick,
                "sensor": reading.sensor,
                "occurred_at": time_text(reading.occurred_at),
                "value": reading.value,
                "ingestor": ingestor,
                "timestamps": timestamps,
                "stamp": "center",
            }
            for reading in readings
        )

    def ended(self, readings: Iterable[Reading], outcome: str, cause: str | None) -> None:
        """Notes what became of readings."""
        names = [reading.reading_id for reading in readings]
        self._lines.add([{"record": "outcome", "reading_ids": names, "outcome": outcome, "cause": cause}])

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


class Effects:
    """What was done for each reading, at most once."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self._lock = threading.Lock()
        self._applied = {(record["kind"], record["reading_id"]) for record in self._lines.found}

    def apply(self, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Applies the effects that were not yet, all on disk when it returns, and returns those."""
        with self._lock:
            fresh = []
            for record in records:
                key = (record["kind"], record["reading_id"])
                if key not in self._applied:
                    self._applied.add(key)
                    fresh.append(record)
            if fresh:
                self._lines.add(fresh)
            return fresh

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()
