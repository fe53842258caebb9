"""Batches of rows: reading one column by column or as Arrow, and building one.

Owns the objects. Must not know where a batch comes from or goes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from nervix_ffi._handle import Handle, borrowed
from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import NULL, Out, check
from nervix_ffi._told import named
from nervix_ffi.column import FORMATS, Column, Values, dicts
from nervix_ffi.enums import CellState, Type
from nervix_ffi.errors import InvalidArgumentError, TypeMismatchError, UnsupportedError
from nervix_ffi.schema import Field, Schema, own_schema
from nervix_ffi.values import Value

if TYPE_CHECKING:
    import pyarrow

    from nervix_ffi._ffi import CData

__all__ = [
    "ArrowArrayExporter",
    "ArrowStreamExporter",
    "Batch",
    "BatchBuilder",
    "BatchData",
    "NestedColumn",
    "batch_of",
    "read_once",
]


@runtime_checkable
class ArrowArrayExporter(Protocol):
    """An Arrow batch of any library that has the PyCapsule protocol."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and array as capsules."""


@runtime_checkable
class ArrowStreamExporter(Protocol):
    """An Arrow table or stream of any library that has the PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The stream as a capsule."""


#: What becomes a batch: a Batch, an Arrow batch or table of any library (all its rows one batch), or rows as mappings.
BatchData: TypeAlias = "Batch | ArrowArrayExporter | ArrowStreamExporter | Iterable[Mapping[str, Value]]"


class NestedColumn(Column):
    """A list column of a batch, level by level.

    ``level_offsets(n)`` has the positions that a VEC level gives the cells of the next one; an ARRAY level has none, since each of
    its cells holds as many. ``values``, or ``offsets`` and ``data``, are those of the innermost level. ``to_list()`` makes nested
    Python lists of it all.
    """

    def __init__(
        self,
        field: Field,
        states: memoryview,
        level_offsets: Mapping[int, memoryview],
        *,
        values: Values | None,
        offsets: memoryview | None,
        data: memoryview | None,
    ) -> None:
        super().__init__(field, states, values=values, offsets=offsets, data=data)
        self._level_offsets = level_offsets

    def level_offsets(self, level: int) -> memoryview:
        """Positions in the cells of the next level, format Q. Raises TypeMismatchError unless the level is a VEC."""
        if level not in self._level_offsets:
            raise TypeMismatchError(
                f"level {level} of column {self.field.name} ({self.field.spelling}) is no VEC and has no offsets"
            )
        return self._level_offsets[level]

    def __getitem__(self, index: int) -> Value:
        return self.to_list()[index]

    def to_list(self) -> list[Value]:
        """Every cell as a nested Python list, None where there is none."""
        if self._lists is None:
            self._lists = self._nested()
        return list(self._lists)

    def _nested(self) -> list[Value]:
        cells: list[Value] = list(self._values) if self._values is not None else self._joined()
        for level in range(len(self.field.levels) - 2, -1, -1):
            size = self.field.levels[level].length
            if level in self._level_offsets:
                ends = self._level_offsets[level].tolist()
                cells = [cells[start:end] for start, end in zip(ends, ends[1:])]
            elif size:
                cells = [cells[start : start + size] for start in range(0, len(cells), size)]
        return [cell if state == CellState.VALUE else None for cell, state in zip(cells, self.states)]


class Batch:
    """Rows of one schema, column by column. It never changes and may be used by several threads.

    ``rows()`` makes Python values, ``to_arrow()`` a pyarrow batch, ``column()`` one column; any consumer of the Arrow PyCapsule
    protocol takes the batch itself. Nothing is withheld here: a sensitive field has its values. ``release()``, the end of a
    ``with`` block or garbage collection lets go of it; views keep what they need (B-15).
    """

    def __init__(self, schema: Schema, pointer: CData) -> None:
        self._schema = schema
        self._handle = Handle("batch", pointer)
        self._count = int(lib.nx_batch_row_count(pointer))

    @classmethod
    def from_rows(cls, schema: Schema, rows: Iterable[Mapping[str, Value]]) -> Batch:
        """A batch of rows as mappings by field name; a missing name is a null.

        A DATETIME is an int of nanoseconds or a datetime with a zone, an F32 a float that is rounded to the nearest one. Raises
        InvalidArgumentError, naming the column and the first row, for a value that the field does not hold, and for an iterator
        without a row, which may have been read before: an empty batch is made of a list.
        """
        from nervix_ffi import _rows

        taken = list(rows)
        if not taken and read_once(rows):
            raise InvalidArgumentError(
                "the iterator gave no row: it was read before, or there is none; pass a list, [] if an empty batch is meant"
            )
        with BatchBuilder(schema, len(taken)) as builder:
            _rows.fill(builder, schema.fields, taken)
            return builder.finish()

    @classmethod
    def from_arrow(cls, schema: Schema, data: ArrowArrayExporter | ArrowStreamExporter, *, cast: bool = False) -> Batch:
        """A batch of Arrow data of any library. Needs pyarrow. A table or stream becomes one batch.

        What is only spelled in another way is taken as it is: large and view strings, binaries and lists; any name of a list's
        element; the zone UTC by any of its names; a nullable column without a null; metadata. ``cast=True`` also converts what
        changes a value or its meaning (integer and float widths, units and zones of timestamps, a missing zone taken as UTC,
        dictionaries, lists to arrays), and refuses where that would lose anything. Raises InvalidArgumentError that names the first
        difference, and ImportError without pyarrow. A stream that can be read only once is not read where its fields do not fit,
        and refused where it gives no batch, as it may have been read before: an empty batch is made of an empty table.
        """
        from nervix_ffi import _convert

        conformed = _convert.conform(data, schema.fields, cast)
        if not extension("arrow_batches"):
            with BatchBuilder(schema, conformed.num_rows) as builder:
                _convert.fill(builder, schema.fields, conformed)
                return builder.finish()
        from nervix_ffi import _arrow

        arrow_schema, array = conformed.__arrow_c_array__()
        with Out("nx_batch", lib.nx_batch_release) as out, native_schema(schema) as native:
            check(
                lib.nxx_batch_from_arrow(
                    native, _arrow.schema_of_capsule(arrow_schema), _arrow.array_of_capsule(array), out.place
                )
            )
            return cls(schema, out.take())

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Batch of {self._count} rows: {named(', '.join(self._schema.names))}>"

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of the batch. Reading it afterwards raises ClosedError; what was read and views stay valid."""
        self._handle.close()

    @property
    def schema(self) -> Schema:
        """The fields of the batch."""
        return self._schema

    @property
    def row_count(self) -> int:
        """How many rows it has."""
        return self._count

    @property
    def ipc(self) -> memoryview:
        """The Arrow IPC stream of the batch, read-only, without a copy. The view keeps what it shows, not this object."""
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        with self._handle as batch:
            check(lib.nx_batch_ipc(batch, pointer, length))
            return borrowed(pointer[0], length[0], lib.nx_batch_retain, batch, lib.nx_batch_release)

    def column(self, column: int | str) -> Column:
        """One column, by position or by name, copied out of the batch; a NestedColumn for lists.

        Raises InvalidArgumentError when there is no such column.
        """
        index = self._schema.index(column)
        with self._handle as batch:
            return _read_column(batch, index, self._schema.fields[index], self._count)

    def rows(self) -> list[dict[str, Value]]:
        """The rows as dicts: a missing value is None, a DATETIME an int of nanoseconds.

        Raises TypeMismatchError where two fields have one name: a dict would lose a value.
        """
        return dicts([self.column(index) for index in range(len(self._schema.fields))], self._count)

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The batch as a pyarrow.RecordBatch, whose buffers are those of the stream where that is what they were read from.

        Raises ImportError without pyarrow.
        """
        from nervix_ffi import _pyarrow

        if extension("arrow_batches"):
            return _pyarrow.batch_of_capsules(self)
        return _pyarrow.batch_of_columns([self.column(index) for index in range(len(self._schema.fields))], withheld=False)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and array as PyCapsules, for any consumer of the Arrow PyCapsule protocol."""
        if not extension("arrow_batches"):
            capsules: tuple[object, object] = self.to_arrow().__arrow_c_array__(requested_schema)
            return capsules
        from nervix_ffi import _arrow

        with self._handle as batch:
            return _arrow.capsules(lambda schema, array: lib.nxx_batch_arrow(batch, schema, array))


def batch_of(schema: Schema, data: BatchData, cast: bool) -> Batch:
    """A batch of the schema from whatever can become one. Raises what ``Batch.from_arrow`` and ``Batch.from_rows`` raise."""
    if isinstance(data, Batch):
        return data
    if isinstance(data, (ArrowArrayExporter, ArrowStreamExporter)):
        return Batch.from_arrow(schema, data, cast=cast)
    if isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are no batch; submit_ipc takes an Arrow IPC stream")
    if isinstance(data, (str, Mapping)) or not isinstance(data, Iterable):
        raise TypeError(f"a batch is Arrow data or a list of rows, each a mapping by field name; not {type(data).__name__}")
    return Batch.from_rows(schema, data)


def read_once(data: object) -> bool:
    """Whether it cannot be read again: an iterator, or an Arrow stream, which unlike a table has no length."""
    if isinstance(data, ArrowStreamExporter):
        return not isinstance(data, (ArrowArrayExporter, Sized))
    return isinstance(data, Iterator)


def native_schema(schema: Schema) -> Handle:
    """The library's own schema. Raises InvalidArgumentError for a description that was not read from an endpoint or a batch."""
    if schema._native is None:
        raise InvalidArgumentError(
            "a batch is built from the schema of a producer, a consumer or another batch, which the library knows; "
            "this one is a description only"
        )
    return schema._native


class BatchBuilder:
    """Builds a batch of ``rows`` rows column by column, from buffers that are taken as they are (B-13).

    ``schema`` is that of a producer, a consumer or a batch. Every buffer is copied before a call returns. One thread at a time.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        if not 0 <= rows < 2**63:
            raise InvalidArgumentError(f"a batch has 0 rows or more, not {rows}")
        with Out("nx_batch_builder", lib.nx_batch_builder_free) as out, native_schema(schema) as native:
            check(lib.nx_batch_builder_new(native, rows, out.place))
            self._handle = Handle("batch builder", out.take())
        self._schema = schema

    def __enter__(self) -> BatchBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of the builder; batches that it finished stay."""
        self._handle.close()

    def states(self, column: int | str, states: object) -> None:
        """One CellState a row, as unsigned bytes; VALUE or NULL. Without it every row holds a value."""
        buffer, size = _buffer(states, "uint8_t[]", 1)
        with self._handle as builder:
            check(lib.nx_batch_builder_states(builder, self._schema.index(column), buffer, size))

    def offsets(self, column: int | str, level: int, offsets: object) -> None:
        """Positions of a VEC level in the cells of the next one: unsigned 64-bit numbers, one more than cells, from 0."""
        buffer, size = _buffer(offsets, "uint64_t[]", 8)
        with self._handle as builder:
            check(lib.nx_batch_builder_offsets(builder, self._schema.index(column), _level(level), buffer, size))

    def fixed(self, column: int | str, level: int, values: object) -> None:
        """The values of the innermost level in their exact width, in native order; a BOOL is one byte, 0 or 1."""
        buffer, size = _buffer(values, "uint8_t[]", 1)
        with self._handle as builder:
            check(lib.nx_batch_builder_fixed(builder, self._schema.index(column), _level(level), buffer, size))

    def varlen(self, column: int | str, level: int, offsets: object, data: object) -> None:
        """The values of an innermost STRING (UTF-8) or BYTES level, joined, with unsigned 64-bit offsets, one more than cells."""
        ends, count = _buffer(offsets, "uint64_t[]", 8)
        buffer, size = _buffer(data, "uint8_t[]", 1)
        with self._handle as builder:
            check(lib.nx_batch_builder_varlen(builder, self._schema.index(column), _level(level), ends, count, buffer, size))

    def finish(self) -> Batch:
        """The batch; the builder is empty then, for another one of as many rows.

        Raises InvalidArgumentError when something is missing or does not fit; what was set stays.
        """
        with self._handle as builder, Out("nx_batch", lib.nx_batch_release) as out:
            check(lib.nx_batch_builder_finish(builder, out.place))
            return Batch(self._schema, out.take())


def _level(level: int) -> int:
    if not 0 <= level < 2**32:
        raise InvalidArgumentError(f"levels count from 0; {level} is none")
    return level


def _buffer(data: object, c_type: str, width: int) -> tuple[CData, int]:
    """A buffer as the library takes it, and its items of ``width`` bytes."""
    view = memoryview(data).cast("B")  # type: ignore[arg-type]
    if len(view) % width:
        raise InvalidArgumentError(f"a buffer of {len(view)} bytes holds no whole number of {width}-byte items")
    pointer = ffi.from_buffer(c_type, view)
    if int(ffi.cast("uintptr_t", pointer)) % width:
        pointer = ffi.from_buffer(c_type, bytearray(view))
    return pointer, len(view) // width


def _cells(batch: CData, column: int, level: int) -> int:
    place = ffi.new("size_t *")
    check(lib.nx_batch_cells(batch, column, level, place))
    return int(place[0])


def _into(size: int, c_type: str = "uint8_t[]") -> tuple[bytearray, CData]:
    data = bytearray(size)
    return data, ffi.from_buffer(c_type, data)


def _read_column(batch: CData, index: int, field: Field, rows: int) -> Column:
    data, place = _into(rows)
    check(lib.nx_batch_states(batch, index, place, rows))
    states = memoryview(data).toreadonly()
    last = len(field.levels) - 1
    level_offsets = {}
    for level in range(last):
        if field.levels[level].type == Type.LIST:
            count = _cells(batch, index, level) + 1
            data, place = _into(count * 8, "uint64_t[]")
            check(lib.nx_batch_offsets(batch, index, level, place, count))
            level_offsets[level] = memoryview(data).toreadonly().cast("Q")
    cells = _cells(batch, index, last)
    values, offsets, joined = _read_innermost(batch, index, last, field, cells)
    if last:
        return NestedColumn(field, states, level_offsets, values=values, offsets=offsets, data=joined)
    return Column(field, states, values=values, offsets=offsets, data=joined)


def _read_innermost(
    batch: CData, index: int, level: int, field: Field, cells: int
) -> tuple[Values | None, memoryview | None, memoryview | None]:
    kind = field.levels[level].type
    if isinstance(kind, Type) and kind in FORMATS:
        letter, width = FORMATS[kind]
        data, place = _into(cells * width)
        check(lib.nx_batch_fixed(batch, index, level, place, cells * width))
        return memoryview(data).toreadonly().cast(letter), None, None
    if kind not in (Type.STRING, Type.BYTES):
        raise UnsupportedError(f"column {field.name} is of {field.spelling}, a type that this version cannot read")
    size = ffi.new("size_t *")
    check(lib.nx_batch_varlen(batch, index, level, NULL, 0, NULL, 0, size))
    length = int(size[0])
    joined, joined_place = _into(length)
    ends, ends_place = _into((cells + 1) * 8, "uint64_t[]")
    check(lib.nx_batch_varlen(batch, index, level, ends_place, cells + 1, joined_place, length, size))
    return None, memoryview(ends).toreadonly().cast("Q"), memoryview(joined).toreadonly()


def read_batch_schema(batch: CData) -> Schema:
    """The schema of a batch of the library."""
    with Out("nx_schema", lib.nx_schema_free) as out:
        check(lib.nx_batch_schema(batch, out.place))
        return own_schema(out.take())
