"""Arrow data of any library, brought into the exact form that a batch has.

Respellings that change no value are made without asking. What changes a value or its meaning is made only when asked for, and refused
when it would lose anything. Everything else is refused, naming the first difference. A message never shows a value.
"""

from __future__ import annotations

from array import array as numbers
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from nervix_ffi._arrow import UTC_ZONES
from nervix_ffi._pyarrow import arrow_schema, arrow_type, compute, pyarrow
from nervix_ffi._rows import blank
from nervix_ffi.batch import ArrowArrayExporter, ArrowStreamExporter, read_once
from nervix_ffi.column import FORMATS
from nervix_ffi.enums import CellState, Type
from nervix_ffi.errors import InvalidArgumentError
from nervix_ffi.schema import Field, Level

if TYPE_CHECKING:
    from nervix_ffi.batch import BatchBuilder

__all__ = ["conform", "fill"]

#: pyarrow has no types to check against.
Array: TypeAlias = Any
DataType: TypeAlias = Any

#: The rows of a batch are counted in 32 bits where lists and texts are.
_LONGEST = 2**31 - 1


class _Refused(Exception):
    """A cell, counted at its own level, that cannot be taken. ``cell`` is None where it is the whole column."""

    def __init__(self, reason: str, cell: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cell = cell


class _Different(_Refused):
    """A type that is not the one wanted; ``cast`` says whether it could be converted."""

    def __init__(self, cast: bool = False) -> None:
        super().__init__("pass cast=True to convert it" if cast else "it cannot be converted without changing what it means")


def conform(data: ArrowArrayExporter | ArrowStreamExporter, fields: Sequence[Field], cast: bool) -> pyarrow.RecordBatch:
    """One batch of exactly ``fields``. Raises InvalidArgumentError that names the first difference."""
    return _conformed(_one_batch(data, fields, cast), fields, cast)


def _conformed(batch: pyarrow.RecordBatch, fields: Sequence[Field], cast: bool) -> pyarrow.RecordBatch:
    _check_names(batch.schema.names, fields)
    arrays = []
    for field, array in zip(fields, batch.columns):
        try:
            conformed = _conform(array, field.levels, cast)
            if conformed.null_count and not field.nullable:
                raise _Refused("a required field has no value", _first_null(conformed))
        except _Refused as refused:
            where = f"column {field.name}" + ("" if refused.cell is None else f", row {refused.cell}")
            raise InvalidArgumentError(
                f"{where}: {field.spelling} (Arrow {arrow_type(field.levels)}) is wanted and {array.type} was given; {refused.reason}"
                if refused.cell is None
                else f"{where}: {refused.reason}"
            ) from None
        arrays.append(_aligned(conformed))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=arrow_schema(fields))


def _one_batch(data: ArrowArrayExporter | ArrowStreamExporter, fields: Sequence[Field], cast: bool) -> pyarrow.RecordBatch:
    try:
        if isinstance(data, pyarrow.RecordBatch):
            return data
        if not isinstance(data, ArrowStreamExporter):
            return pyarrow.record_batch(data)
        return _whole(_read(data, fields, cast) if read_once(data) else pyarrow.table(data))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, TypeError) as failure:
        raise InvalidArgumentError(f"the Arrow data is no batch of columns: {failure}") from failure


def _read(stream: ArrowStreamExporter, fields: Sequence[Field], cast: bool) -> pyarrow.Table:
    """What a stream gives that can be read only once. It is left alone where its fields do not fit: it may come again, to be cast."""
    if hasattr(stream, "__arrow_c_schema__"):  # Of other libraries some streams are gone as soon as they are asked for.
        _check_fields(pyarrow.schema(stream), fields, cast)
    reader = pyarrow.RecordBatchReader.from_stream(stream)
    _check_fields(reader.schema, fields, cast)
    batches = list(reader)
    if not batches:
        raise InvalidArgumentError(
            "the stream gave no batch: it was read before, or there is none; pass an empty table or [] if an empty batch is meant"
        )
    return pyarrow.Table.from_batches(batches, schema=reader.schema)


def _check_fields(schema: pyarrow.Schema, fields: Sequence[Field], cast: bool) -> None:
    with suppress(pyarrow.ArrowNotImplementedError):  # Of some types there is nothing empty; they are refused once they are read.
        _conformed(_whole(pyarrow.Table.from_batches([], schema=schema)), fields, cast)


def _whole(table: pyarrow.Table) -> pyarrow.RecordBatch:
    # Without the batches that have no rows: pyarrow cannot join one whose buffers are empty and which begins behind their start.
    filled = [batch for batch in table.to_batches() if len(batch)]
    table = pyarrow.Table.from_batches(filled, schema=table.schema).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:
        raise InvalidArgumentError("the table is too large to be one batch; submit it in slices")
    if batches:
        return batches[0]
    return pyarrow.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _check_names(given: Sequence[str], fields: Sequence[Field]) -> None:
    wanted = [field.name for field in fields]
    if list(given) == wanted:
        return
    if sorted(given) == sorted(wanted):
        raise InvalidArgumentError(f"the columns come in another order: {', '.join(given)} instead of {', '.join(wanted)}")
    for index, name in enumerate(wanted):
        if index >= len(given) or given[index] != name:
            found = "nothing" if index >= len(given) else f"a column {given[index]}"
            raise InvalidArgumentError(f"column {index} should be {fields[index]}, and there is {found}")
    raise InvalidArgumentError(f"column {len(wanted)}, {given[len(wanted)]}, is no field; the fields are {', '.join(wanted)}")


def _first_null(array: Array) -> int:
    return int(compute.index(array.is_valid(), False).as_py())


def _validity(present: Array) -> pyarrow.Buffer:
    """A bitmap that starts with the first row."""
    return (pyarrow.concat_arrays([present, present.slice(0, 0)]) if present.offset else present).buffers()[1]


def _aligned(array: Array) -> Array:
    """The array, copied when a buffer does not lie where its items can be read."""
    if any(buffer is not None and buffer.address % 8 for buffer in array.buffers()):
        return pyarrow.concat_arrays([array, array.slice(0, 0)])
    return array


# ---- types


def _conform(array: Array, levels: Sequence[Level], cast: bool) -> Array:
    """The array in the form that the levels have. Raises _Refused."""
    array = _decoded(array, cast)
    kind = levels[0].type
    if kind == Type.LIST:
        return _conform_list(array, levels, cast)
    if kind == Type.FIXED_LIST:
        return _conform_fixed_list(array, levels, cast)
    return _conform_scalar(array, Type(kind), arrow_type(levels), cast)


def _decoded(array: Array, cast: bool) -> Array:
    """The array without dictionary, run-end or extension encoding."""
    while True:
        if _is(array.type, "dictionary"):
            decode: Callable[[Array], Array] = _decode_dictionary
        elif _is(array.type, "run_end_encoded"):
            decode = compute.run_end_decode
        elif isinstance(array.type, pyarrow.BaseExtensionType):
            decode = _storage
        else:
            return array
        if not cast:
            raise _Different(cast=True)
        array = decode(array)


def _decode_dictionary(array: Array) -> Array:
    return array.dictionary_decode()


def _storage(array: Array) -> Array:
    return array.storage


def _is(given: DataType, *kinds: str) -> bool:
    """Whether a type is one of some kinds, as pyarrow.types names them; older versions do not know all."""
    return any(getattr(pyarrow.types, f"is_{kind}", _never)(given) for kind in kinds)


def _never(_: DataType) -> bool:
    return False


def _is_list(given: DataType) -> bool:
    return _is(given, "list", "large_list", "list_view", "large_list_view")


def _conform_list(array: Array, levels: Sequence[Level], cast: bool) -> Array:
    given = array.type
    if _is(given, "fixed_size_list"):
        if not cast:
            raise _Different(cast=True)
    elif _is(given, "null") and cast:
        return pyarrow.nulls(len(array), arrow_type(levels))
    elif not _is_list(given):
        raise _Different(cast=_is(given, "null"))
    if _is(given, "list") and not array.null_count:
        first = array.offsets[0].as_py()
        child = array.values.slice(first, array.offsets[len(array)].as_py() - first)
        offsets = array.offsets if not first else compute.subtract(array.offsets, pyarrow.scalar(first, pyarrow.int32()))
    else:
        child = array.flatten()
        offsets = _offsets(_lengths(array))
    child = _conform_items(child, levels[1:], cast, lambda cell: _owner(offsets, cell))
    validity = _validity(array.is_valid()) if array.null_count else None
    # Offsets that are a slice carry where they start.
    start = offsets.buffers()[1].slice(offsets.offset * 4, len(offsets) * 4)
    return pyarrow.Array.from_buffers(arrow_type(levels), len(array), [validity, start], array.null_count, children=[child])


def _lengths(array: Array) -> Array:
    return compute.fill_null(compute.list_value_length(array), 0).cast(pyarrow.int64())


def _offsets(lengths: Array) -> Array:
    ends = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), compute.cumulative_sum(lengths)])
    if ends[len(ends) - 1].as_py() > _LONGEST:
        raise _Refused("its lists hold more elements than one batch can")
    return ends.cast(pyarrow.int32())


def _owner(offsets: Array, cell: int) -> int:
    """The list that an element belongs to."""
    ends = offsets.to_pylist()
    return next(number for number, end in enumerate(ends[1:]) if cell < end)


def _conform_items(child: Array, levels: Sequence[Level], cast: bool, owner: Callable[[int], int]) -> Array:
    """The elements of lists, which are never null; ``owner`` says which row an element belongs to."""
    try:
        conformed = _conform(child, levels, cast)
        if conformed.null_count:
            raise _Refused("an element of a list has no value", _first_null(conformed))
    except _Refused as refused:
        if refused.cell is not None:
            refused.cell = owner(refused.cell)
        raise
    return conformed


def _conform_fixed_list(array: Array, levels: Sequence[Level], cast: bool) -> Array:
    given, size = array.type, levels[0].length
    if _is(given, "fixed_size_list"):
        if given.list_size != size:
            raise _Different()
    elif _is(given, "null") and cast:
        return _expanded(array, pyarrow.nulls(0, arrow_type(levels[1:])), levels)
    elif not _is_list(given):
        raise _Different(cast=_is(given, "null"))
    elif not cast:
        raise _Different(cast=True)
    else:
        wrong = compute.not_equal(compute.list_value_length(array), size)
        row = compute.index(wrong, True).as_py()
        if row >= 0:
            raise _Refused(f"a list where {size} elements belong has another number of them", row)
    # What lies under a null means nothing and is left out here.
    present = array.is_valid() if array.null_count else None

    def owner(cell: int) -> int:
        if present is None:
            return cell // size
        rows = [row for row, there in enumerate(present.to_pylist()) if there]
        return rows[cell // size]

    return _expanded(array, _conform_items(array.flatten(), levels[1:], cast, owner), levels)


def _expanded(array: Array, items: Array, levels: Sequence[Level]) -> Array:
    """A fixed list array whose nulls have something under them again."""
    size = levels[0].length
    validity = None
    if array.null_count:
        present = array.is_valid()
        validity = _validity(present)
        if not len(items):
            items = pyarrow.array([blank(levels[1:])], type=arrow_type(levels[1:]))
        places: list[int] = []
        next_place = 0
        for there in present.to_pylist():
            places += range(next_place, next_place + size) if there else [0] * size
            next_place += size if there else 0
        items = items.take(pyarrow.array(places, type=pyarrow.int64()))
    return pyarrow.Array.from_buffers(arrow_type(levels), len(array), [validity], array.null_count, children=[items])


# ---- scalars


def _conform_scalar(array: Array, kind: Type, wanted: DataType, cast: bool) -> Array:
    given = array.type
    if given == wanted:
        return array
    if kind == Type.DATETIME and _is(given, "timestamp") and given.unit == "ns" and given.tz in UTC_ZONES:
        return array.view(wanted)
    if _is(given, *{Type.STRING: ("large_string", "string_view"), Type.BYTES: ("large_binary", "binary_view")}.get(kind, ())):
        return _respelled(array, wanted)
    if not _convertible(given, kind):
        raise _Different()
    if not cast:
        raise _Different(cast=True)
    return _converted(array, wanted)


def _respelled(array: Array, wanted: DataType) -> Array:
    try:
        return array.cast(wanted)
    except pyarrow.ArrowInvalid:
        raise _Refused("it holds more bytes than one batch can (2 GiB)") from None


def _convertible(given: DataType, kind: Type) -> bool:
    """Whether there is a conversion whose losses can be told."""
    if _is(given, "null"):
        return True
    if kind == Type.DATETIME:
        return _is(given, "timestamp")
    if kind == Type.BYTES:
        return _is(given, "fixed_size_binary")
    if kind in (Type.STRING, Type.BOOL):
        return False
    return _is(given, "integer", "floating")


def _converted(array: Array, wanted: DataType) -> Array:
    """The array in another type, with every value the same. Raises _Refused that names the first row where it is not."""
    try:
        made = array.cast(wanted)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        raise _Refused(f"its value cannot become {wanted} without a loss", _first_failing(array, wanted)) from None
    if not _is(array.type, "null"):
        same = compute.equal(_bits(made.cast(array.type, safe=False)), _bits(array))
        row = compute.index(same, False).as_py()
        if row >= 0:
            raise _Refused(f"its value cannot become {wanted} without a loss", row)
    return made


def _bits(array: Array) -> Array:
    """Floats as their bits, so that zeros and NaNs are told apart."""
    widths = {16: pyarrow.uint16(), 32: pyarrow.uint32(), 64: pyarrow.uint64()}
    return array.view(widths[array.type.bit_width]) if _is(array.type, "floating") else array


def _first_failing(array: Array, wanted: DataType) -> int | None:
    """The first row that cannot be cast, by halving."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            array.slice(good, middle - good).cast(wanted)
            good = middle
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
            bad = middle
    return good


# ---- for a library that takes no Arrow


def fill(builder: BatchBuilder, fields: Sequence[Field], batch: pyarrow.RecordBatch) -> None:
    """Puts a batch that conforms into a builder, column by column."""
    for index, (field, array) in enumerate(zip(fields, batch.columns)):
        if array.null_count:
            present = array.is_valid().to_pylist()
            builder.states(index, bytes(CellState.VALUE if there else CellState.NULL for there in present))
        _fill_level(builder, index, field.levels, 0, array)


def _fill_level(builder: BatchBuilder, index: int, levels: Sequence[Level], level: int, array: Array) -> None:
    kind = Type(levels[level].type)
    if kind == Type.LIST:
        ends = array.offsets.to_pylist() if len(array) else [0]
        builder.offsets(index, level, numbers("Q", [end - ends[0] for end in ends]))
        _fill_level(builder, index, levels, level + 1, array.values.slice(ends[0], ends[-1] - ends[0]))
    elif kind == Type.FIXED_LIST:
        size = levels[level].length
        _fill_level(builder, index, levels, level + 1, array.values.slice(array.offset * size, len(array) * size))
    elif kind in (Type.STRING, Type.BYTES):
        ends = _ends(array)
        data = array.buffers()[2]
        joined = b"" if data is None else memoryview(data)[ends[0] : ends[-1]]
        builder.varlen(index, level, numbers("Q", [end - ends[0] for end in ends]), joined)
    elif kind == Type.BOOL:
        flags = compute.fill_null(array, False).to_pylist()
        builder.fixed(index, level, bytes(flags))
    else:
        width = FORMATS[kind][1]
        data = array.buffers()[1]
        start = array.offset * width
        builder.fixed(index, level, b"" if data is None else memoryview(data).cast("B")[start : start + len(array) * width])


def _ends(array: Array) -> list[int]:
    if not len(array):
        return [0]
    buffer = array.buffers()[1]
    offsets = pyarrow.Array.from_buffers(pyarrow.int32(), len(array) + 1, [None, buffer], offset=array.offset)
    ends: list[int] = offsets.to_pylist()
    return ends
