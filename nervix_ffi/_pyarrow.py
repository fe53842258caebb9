"""Batches as pyarrow objects. With `_convert`, the only module that imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from nervix_ffi.batch import NestedColumn
from nervix_ffi.enums import CellState, Type
from nervix_ffi.errors import UnsupportedError

try:
    import pyarrow
    from pyarrow import compute
except ImportError as missing:
    raise ImportError("Arrow batches need pyarrow; install it with `pip install 'nervix-ffi[arrow]'`") from missing

if TYPE_CHECKING:
    from nervix_ffi.column import Column
    from nervix_ffi.schema import Field, Level

__all__ = ["arrow_schema", "arrow_type", "batch_of_capsules", "batch_of_columns", "compute", "pyarrow", "with_key"]


class _Exporter(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


_TYPES: dict[Type, pyarrow.DataType] = {
    Type.U8: pyarrow.uint8(),
    Type.I8: pyarrow.int8(),
    Type.U16: pyarrow.uint16(),
    Type.I16: pyarrow.int16(),
    Type.U32: pyarrow.uint32(),
    Type.I32: pyarrow.int32(),
    Type.U64: pyarrow.uint64(),
    Type.I64: pyarrow.int64(),
    Type.F32: pyarrow.float32(),
    Type.F64: pyarrow.float64(),
    Type.BOOL: pyarrow.bool_(),
    Type.STRING: pyarrow.string(),
    Type.BYTES: pyarrow.binary(),
    Type.DATETIME: pyarrow.timestamp("ns", tz="+00:00"),
}


def batch_of_capsules(rows: _Exporter) -> pyarrow.RecordBatch:
    """A batch that takes over the library's own buffers."""
    return pyarrow.record_batch(rows)


def _validity(column: Column) -> tuple[pyarrow.Buffer | None, int]:
    states = column.states.tobytes()
    missing = len(states) - states.count(bytes([CellState.VALUE]))
    if not missing:
        return None, 0
    mask = pyarrow.array([state == CellState.VALUE for state in states], type=pyarrow.bool_())
    return mask.buffers()[1], missing


def arrow_type(levels: Sequence[Level]) -> pyarrow.DataType:
    """The Arrow type of a field's levels. Raises UnsupportedError for a type that this version does not know."""
    outer = levels[0]
    if outer.type in (Type.LIST, Type.FIXED_LIST):
        element = pyarrow.field("item", arrow_type(levels[1:]), nullable=False)
        return pyarrow.list_(element) if outer.type == Type.LIST else pyarrow.list_(element, outer.length)
    if not isinstance(outer.type, Type):
        raise UnsupportedError(f"type {outer.type} is one that this version does not know")
    return _TYPES[outer.type]


def arrow_schema(fields: Iterable[Field]) -> pyarrow.Schema:
    """The schema that a batch of these fields has: nullable exactly where a field is OPTIONAL, without metadata."""
    return pyarrow.schema([pyarrow.field(field.name, arrow_type(field.levels), nullable=field.nullable) for field in fields])


def _innermost(column: Column, validity: pyarrow.Buffer | None, missing: int) -> pyarrow.Array:
    kind = column.field.levels[-1].type
    if not isinstance(kind, Type) or kind not in _TYPES:
        raise UnsupportedError(f"column {column.field.name} is {column.field.spelling}, a type that this version does not know")
    if kind == Type.BOOL:
        values = pyarrow.array(column.values.tolist(), type=pyarrow.bool_())
        return pyarrow.Array.from_buffers(_TYPES[kind], len(values), [validity, values.buffers()[1]], missing)
    if kind in (Type.STRING, Type.BYTES):
        offsets = pyarrow.array(column.offsets.tolist(), type=pyarrow.int32()).buffers()[1]
        buffers = [validity, offsets, pyarrow.py_buffer(column.data)]
        return pyarrow.Array.from_buffers(_TYPES[kind], len(column.offsets) - 1, buffers, missing)
    return pyarrow.Array.from_buffers(_TYPES[kind], len(column.values), [validity, pyarrow.py_buffer(column.values)], missing)


def _array(column: Column) -> pyarrow.Array:
    validity, missing = _validity(column)
    levels = column.field.levels
    if not isinstance(column, NestedColumn):
        if len(levels) > 1:
            raise UnsupportedError(
                f"column {column.field.name} is {column.field.spelling}, which needs a library with the arrow extension"
            )
        return _innermost(column, validity, missing)
    array = _innermost(column, None, 0)
    for level in range(len(levels) - 2, -1, -1):
        outer = (validity, missing) if level == 0 else (None, 0)
        if levels[level].type == Type.LIST:
            ends = column.level_offsets(level)
            offsets = pyarrow.array(ends.tolist(), type=pyarrow.int32()).buffers()[1]
            length, buffers = len(ends) - 1, [outer[0], offsets]
        else:
            length, buffers = len(array) // levels[level].length, [outer[0]]
        array = pyarrow.Array.from_buffers(arrow_type(levels[level:]), length, buffers, outer[1], children=[array])
    return array


def batch_of_columns(columns: list[Column], *, withheld: bool = True) -> pyarrow.RecordBatch:
    """The same batch from columns, for a library without the extension. ``withheld``: sensitive columns have no values.

    Raises UnsupportedError for the lists of an event.
    """
    arrays = [_array(column) for column in columns]
    fields = [
        pyarrow.field(
            column.field.name,
            array.type,
            nullable=column.field.nullable or (withheld and column.field.sensitive),
            metadata={"nervix.redacted": "true"} if withheld and column.field.sensitive else None,
        )
        for column, array in zip(columns, arrays)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=pyarrow.schema(fields))


def with_key(batch: pyarrow.RecordBatch, branch: str | None, key: str | None) -> pyarrow.RecordBatch:
    """The batch with its branch in the schema metadata."""
    if key is None:
        return batch
    metadata = dict(batch.schema.metadata or {})
    metadata.update({b"nervix.branch": (branch or "").encode("utf-8"), b"nervix.branch_key": key.encode("utf-8")})
    return batch.replace_schema_metadata(metadata)
