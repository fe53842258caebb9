"""What a subscription reports: rows, and the gaps around them.

Owns the objects that events are. Must not know where they are read from.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import TYPE_CHECKING

from nervix_ffi._handle import Handle, borrowed
from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import Out, check, read_bytes, read_text
from nervix_ffi._told import NAMED, TOLD, cut
from nervix_ffi.column import Column, dicts, read_column, read_lists
from nervix_ffi.enums import EndReason, EventKind, Part, SkipCause, Type, read
from nervix_ffi.errors import InvalidArgumentError
from nervix_ffi.schema import Field, Schema, read_branch, read_schema
from nervix_ffi.values import REDACTED, Value

if TYPE_CHECKING:
    import pyarrow

    from nervix_ffi._ffi import CData

__all__ = [
    "DeliveryLost",
    "Ended",
    "Event",
    "Interrupted",
    "Overflow",
    "RestorationFailed",
    "Rows",
    "RowsSkipped",
    "read_event",
]


class Event:
    """Something that a subscription reports. ``subscription`` is its name; ``generation`` tells its openings apart (S-3)."""

    kind: EventKind | int

    def __init__(self, subscription: str, generation: int) -> None:
        self.subscription = subscription
        self.generation = generation

    def __repr__(self) -> str:
        said = ((name, value) for name, value in vars(self).items() if not name.startswith("_") and name not in _COMMON)
        details = "".join(f", {name}={cut(repr(value), TOLD)}" for name, value in said)
        return f"{type(self).__name__}({cut(repr(self.subscription), NAMED)}, generation={self.generation}{details})"

    def _weight(self) -> int:
        """The bytes that it keeps in memory, beside what every event does."""
        return sys.getsizeof(self.subscription)

    def _shorten(self) -> None:
        """Lets go of what it says at length."""


_COMMON = ("subscription", "generation")

#: How many characters stay of a report's message where there is no room for more.
BRIEF = 256


class _Report(Event):
    """An event without rows. ``message`` is what the server or the library says about it, None without the extension."""

    def __init__(self, subscription: str, generation: int, message: str | None = None) -> None:
        super().__init__(subscription, generation)
        self.message = message

    def _weight(self) -> int:
        return super()._weight() + sys.getsizeof(self.message)

    def _shorten(self) -> None:
        if self.message is not None:
            self.message = cut(self.message, BRIEF)


class DeliveryLost(_Report):
    """``count`` rows were dropped because they were not taken in time: a gap (S-5).

    ``local`` is true when they were dropped inside this process, by a reader that served several subscriptions, and false when
    the server dropped them.
    """

    kind = EventKind.DELIVERY_LOST

    def __init__(
        self, subscription: str, generation: int, count: int, message: str | None = None, *, local: bool = False
    ) -> None:
        super().__init__(subscription, generation, message)
        self.count = count
        self.local = local


class RowsSkipped(_Report):
    """``count`` rows could not be judged or encoded and were left out: a gap (S-5). ``cause`` is None without the extension."""

    kind = EventKind.ROWS_SKIPPED

    def __init__(
        self,
        subscription: str,
        generation: int,
        count: int,
        message: str | None = None,
        cause: SkipCause | int | None = None,
    ) -> None:
        super().__init__(subscription, generation, message)
        self.count = count
        self.cause = cause


class Ended(_Report):
    """The last event of this generation; the session never opens it again (S-4, B-7). ``reason`` is None without the extension."""

    kind = EventKind.ENDED

    def __init__(
        self, subscription: str, generation: int, message: str | None = None, reason: EndReason | int | None = None
    ) -> None:
        super().__init__(subscription, generation, message)
        self.reason = reason


class Interrupted(_Report):
    """A gap: the session was lost, and the subscription is being opened again as another generation (B-7, S-7)."""

    kind = EventKind.INTERRUPTED


class Overflow(_Report):
    """The reader was too slow, and the library ended this subscription's delivery on this session (B-7, S-8).

    What was queued is lost, and nothing more comes until the next session. To go on at once, delete it and subscribe again; to keep
    up, read in a thread that does nothing else, or have the server send less: ``where``, ``sample_rate``, or DROPPING delivery,
    whose losses are reported one by one.
    """

    kind = EventKind.CONSUMER_OVERFLOW


class RestorationFailed(_Report):
    """An attempt to open the subscription again was refused or not answered. The session repeats it (B-7)."""

    kind = EventKind.RESTORATION_FAILED


class Unknown(_Report):
    """An event of a kind that this version does not know. ``kind`` is the library's number for it."""

    def __init__(self, subscription: str, generation: int, kind: int, message: str | None = None) -> None:
        super().__init__(subscription, generation, message)
        self.kind = kind


class Rows(Event):
    """Rows of one relay batch, all of one branch.

    The rows stay in the frame they arrived in until they are read: ``rows()`` makes Python values, ``to_arrow()`` an Arrow batch
    (made here, from typed rows), ``column()`` one column. Any consumer of the Arrow PyCapsule protocol takes the event itself.
    ``release()``, the end of a ``with`` block or garbage collection lets go of it; views of its frame keep what they need (B-3).
    """

    kind = EventKind.ROWS

    def __init__(self, subscription: str, generation: int, count: int, pointer: CData) -> None:
        super().__init__(subscription, generation)
        self._count = count
        # Each event's own, never one that was kept: what a subscription is called and how its openings are numbered comes again,
        # with other fields, once a server starts anew. It is described only when it is asked for.
        with Out("nx_schema", lib.nx_schema_free) as out:
            check(lib.nx_event_schema(pointer, out.place))
            self._native = Handle("schema", out.take())
        self._described: Schema | None = None
        self._handle = Handle("event", pointer)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Rows({cut(repr(self.subscription), NAMED)}, generation={self.generation}, rows={self._count})"

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of the event. Reading it afterwards raises ClosedError; what was read and views of the frame stay valid."""
        self._handle.close()

    @property
    def schema(self) -> Schema:
        """The schema that the rows were checked against (R-1, R-2)."""
        return self._schema

    @property
    def _schema(self) -> Schema:
        if self._described is None:
            with self._native as schema:
                self._described = read_schema(schema)
        return self._described

    @property
    def key(self) -> dict[str, Value] | None:
        """The branch key by field name; None for the rows of an unbranched relay.

        Raises UnsupportedError for a key with lists when the library has no ``arrow`` extension, and TypeMismatchError where two of
        its fields have one name.
        """
        if not self._schema.key_fields:
            return None
        return self._dicts(Part.BRANCH_KEY)[0]

    def rows(self) -> list[dict[str, Value]]:
        """The rows as dicts: a missing value is None, a withheld one REDACTED, a DATETIME an int of nanoseconds.

        Raises UnsupportedError for list columns when the library has no ``arrow`` extension, and TypeMismatchError where two fields
        have one name: a dict would lose a value.
        """
        return self._dicts(Part.ROWS)

    def column(self, column: int | str, part: Part = Part.ROWS) -> Column:
        """One column, by position or by name, copied out of the event (B-6).

        Raises InvalidArgumentError when there is no such column, UnsupportedError for lists without the ``arrow`` extension.
        """
        index = self._schema.index(column, part)
        with self._handle as event:
            return read_column(event, part, index, self._schema.part(part)[index], self._cells(part))

    def cell(self, row: int, column: int | str, part: Part = Part.ROWS) -> memoryview:
        """The bytes of one STRING or BYTES value where they lie in the frame, read-only. The view keeps the frame.

        Raises TypeMismatchError for another type or a cell without a value, InvalidArgumentError when there is no such cell.
        """
        index = self._schema.index(column, part)
        if isinstance(row, bool) or not hasattr(row, "__index__"):
            raise TypeError(f"row is a position (int), not {type(row).__name__}")
        if not 0 <= row < self._cells(part):
            raise InvalidArgumentError(f"row {row} does not exist; rows count from 0 to {self._cells(part) - 1}")
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        with self._handle as event:
            check(lib.nx_event_cell_varlen(event, part, row, index, pointer, length))
            return _view(event, pointer[0], length[0])

    @property
    def frame(self) -> memoryview:
        """The verified frame that the rows arrived in, read-only, without a copy. The view keeps the frame, not this object."""
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        with self._handle as event:
            check(lib.nx_event_frame(event, pointer, length))
            return _view(event, pointer[0], length[0])

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The rows as a pyarrow.RecordBatch.

        A withheld column is a nullable column of nulls whose field metadata holds ``nervix.redacted`` = ``true``. For a branched
        relay the schema metadata holds ``nervix.branch``, the branch's name, and ``nervix.branch_key``, the key as a JSON object:
        a float that JSON has no number for is ``{"bits": hex}``, BYTES are ``{"hex": ...}``, a DATETIME is an integer of
        nanoseconds, a withheld value is ``{"redacted": true}``. Raises UnsupportedError for lists without the ``arrow``
        extension, and ImportError without pyarrow.
        """
        from nervix_ffi import _pyarrow

        whole = extension("arrow")
        batch = _pyarrow.batch_of_capsules(self) if whole else _pyarrow.batch_of_columns(self._columns(Part.ROWS))
        with self._native as schema:
            branch = read_branch(schema)
        return batch if branch is None else _pyarrow.with_key(batch, branch, self._key_json())

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and array as PyCapsules, for any consumer of the Arrow PyCapsule protocol."""
        if not extension("arrow"):
            capsules: tuple[object, object] = self.to_arrow().__arrow_c_array__(requested_schema)
            return capsules
        from nervix_ffi import _arrow

        with self._handle as event:
            return _arrow.capsules(lambda schema, array: lib.nxx_event_arrow(event, Part.ROWS, schema, array))

    def _weight(self) -> int:
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        with self._handle as event:
            check(lib.nx_event_frame(event, pointer, length))
        return super()._weight() + int(length[0])

    def _cells(self, part: Part) -> int:
        return 1 if part == Part.BRANCH_KEY else self._count

    def _columns(self, part: Part) -> list[Column]:
        fields = self._schema.part(part)
        lists = [index for index, field in enumerate(fields) if field.is_list]
        cells = self._cells(part)
        with self._handle as event:
            values = dict(zip(lists, read_lists(event, part, lists, fields[lists[0]].name))) if lists else {}
            return [read_column(event, part, index, field, cells, values.get(index)) for index, field in enumerate(fields)]

    def _dicts(self, part: Part) -> list[dict[str, Value]]:
        return dicts(self._columns(part), self._cells(part))

    def _key_json(self) -> str | None:
        if not self._schema.key_fields:
            return None
        # Not by a dict, which would lose a value where two fields have one name.
        pairs = [(column.field.name, _json(column)) for column in self._columns(Part.BRANCH_KEY)]
        return f"{{{', '.join(': '.join(json.dumps(part, ensure_ascii=False) for part in pair) for pair in pairs)}}}"


def _json(column: Column) -> object:
    """A key value for JSON. The bits of a float are taken from the column, where they are exact."""
    value = column[0]
    if isinstance(value, float) and not math.isfinite(value):
        bits = column.values.tobytes()
        return {"bits": f"{int.from_bytes(bits, sys.byteorder):0{2 * len(bits)}x}"}
    return _plain(value, column.field)


def _plain(value: Value, field: Field) -> object:
    if value is REDACTED:
        return {"redacted": True}
    if isinstance(value, list):
        return [_plain(item, field) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"bits": struct.pack(">f" if field.levels[-1].type == Type.F32 else ">d", value).hex()}
    return value


def _view(event: CData, pointer: CData, length: int) -> memoryview:
    """A read-only view of borrowed bytes that holds a reference of its own to the event (B-3)."""
    return borrowed(pointer, length, lib.nx_event_retain, event, lib.nx_event_release)


def read_event(event: CData) -> Event:
    """The object for an event of the library, which it shares."""
    name, length, number = ffi.new("const uint8_t **"), ffi.new("size_t *"), ffi.new("uint64_t *")
    lib.nx_event_subscription(event, name, length, number)
    subscription, generation = read_bytes(name, length).decode("utf-8", "replace"), int(number[0])
    kind = read(EventKind, lib.nx_event_kind_of(event))
    count = lib.nx_event_row_count(event)
    if kind == EventKind.ROWS:
        return Rows(subscription, generation, count, event)
    message = cause = reason = None
    if extension("event_details"):
        message = read_text(lambda pointer, size: lib.nxx_event_message(event, pointer, size))
        place = ffi.new("nxx_skip_cause *")
        if lib.nxx_event_skip_cause(event, place):
            cause = read(SkipCause, int(place[0]))
        place = ffi.new("nxx_end_reason *")
        if lib.nxx_event_end_reason(event, place):
            reason = read(EndReason, int(place[0]))
    if kind == EventKind.DELIVERY_LOST:
        return DeliveryLost(subscription, generation, count, message)
    if kind == EventKind.ROWS_SKIPPED:
        return RowsSkipped(subscription, generation, count, message, cause)
    if kind == EventKind.ENDED:
        return Ended(subscription, generation, message, reason)
    if kind == EventKind.INTERRUPTED:
        return Interrupted(subscription, generation, message)
    if kind == EventKind.CONSUMER_OVERFLOW:
        return Overflow(subscription, generation, message)
    if kind == EventKind.RESTORATION_FAILED:
        return RestorationFailed(subscription, generation, message)
    return Unknown(subscription, generation, int(kind), message)
