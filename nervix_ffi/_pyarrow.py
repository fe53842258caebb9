"""Batches as pyarrow objects. The only module that imports pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nervix_ffi.enums import CellState, Type
from nervix_ffi.errors import UnsupportedError

try:
    import pyarrow
except ImportError as missing:
    raise ImportError("Arrow batches need pyarrow; install it with `pip install 'nervix-ffi[arrow]'`") from missing

if TYPE_CHECKING:
    from nervix_ffi.column import Column

__all__ = ["batch_of_capsules", "batch_of_columns", "with_key"]


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


def _array(column: Column) -> pyarrow.Array:
    kind = column.type
    if not isinstance(kind, Type) or kind not in _TYPES:
        raise UnsupportedError(
            f"column {column.field.name} is {column.field.spelling}, which needs a library with the arrow extension"
        )
    validity, missing = _validity(column)
    if kind == Type.BOOL:
        values = pyarrow.array(column.values.tolist(), type=pyarrow.bool_()).buffers()[1]
        return pyarrow.Array.from_buffers(_TYPES[kind], len(column), [validity, values], missing)
    if kind in (Type.STRING, Type.BYTES):
        offsets = pyarrow.array(column.offsets.tolist(), type=pyarrow.int32()).buffers()[1]
        buffers = [validity, offsets, pyarrow.py_buffer(column.data)]
        return pyarrow.Array.from_buffers(_TYPES[kind], len(column), buffers, missing)
    return pyarrow.Array.from_buffers(_TYPES[kind], len(column), [validity, pyarrow.py_buffer(column.values)], missing)


def batch_of_columns(columns: list[Column]) -> pyarrow.RecordBatch:
    """The same batch from columns, for a library without the extension. Raises UnsupportedError for lists."""
    arrays = [_array(column) for column in columns]
    fields = [
        pyarrow.field(
            column.field.name,
            array.type,
            nullable=column.field.nullable or column.field.sensitive,
            metadata={"nervix.redacted": "true"} if column.field.sensitive else None,
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
