"""The yardstick for reading rows: the interface's column accessors called with ctypes, as a host without extensions would.

Owns a minimal binding of five functions. Knows the scalar types only.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import pyarrow as pa

import nervix_ffi
from nervix_ffi import Field, Part, Rows, Type
from nervix_ffi._library import ffi

WIDTHS = {
    Type.U8: 1, Type.I8: 1, Type.BOOL: 1, Type.U16: 2, Type.I16: 2, Type.U32: 4, Type.I32: 4, Type.F32: 4,
    Type.U64: 8, Type.I64: 8, Type.F64: 8, Type.DATETIME: 8,
}  # fmt: skip

ARROW = {
    Type.U8: pa.uint8(), Type.I8: pa.int8(), Type.U16: pa.uint16(), Type.I16: pa.int16(), Type.U32: pa.uint32(),
    Type.I32: pa.int32(), Type.U64: pa.uint64(), Type.I64: pa.int64(), Type.F32: pa.float32(), Type.F64: pa.float64(),
    Type.DATETIME: pa.timestamp("ns", tz="+00:00"),
}  # fmt: skip


class Read(NamedTuple):
    """The buffers of one column."""

    states: Any
    values: Any
    offsets: Any


class Columns:
    """Reads events column by column."""

    def __init__(self) -> None:
        library = ctypes.CDLL(nervix_ffi.library().path)
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int32
        for name, arguments in {
            "nx_event_column_states": [pointer, number, size, pointer, size],
            "nx_event_column_fixed": [pointer, number, size, pointer, size],
            "nx_event_column_varlen": [pointer, number, size, pointer, size, pointer, size, ctypes.POINTER(size)],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, pointer
        self._library = library

    def read(self, event: Rows) -> list[Read]:
        """Every column of the rows as states, values and offsets."""
        library, rows = self._library, len(event)
        found = []
        with event._handle as handle:
            pointer = int(ffi.cast("uintptr_t", handle))
            for index, field in enumerate(event.schema.fields):
                states = (ctypes.c_uint8 * rows)()
                assert not library.nx_event_column_states(pointer, Part.ROWS, index, states, rows)
                width = WIDTHS.get(Type(field.type))
                if width is not None:
                    values: Any = (ctypes.c_uint8 * (rows * width))()
                    assert not library.nx_event_column_fixed(pointer, Part.ROWS, index, values, rows * width)
                    found.append(Read(states, values, None))
                    continue
                length = ctypes.c_size_t()
                assert not library.nx_event_column_varlen(pointer, Part.ROWS, index, None, 0, None, 0, ctypes.byref(length))
                offsets = (ctypes.c_uint64 * (rows + 1))()
                data = (ctypes.c_uint8 * length.value)()
                assert not library.nx_event_column_varlen(
                    pointer, Part.ROWS, index, offsets, rows + 1, data, length.value, ctypes.byref(length)
                )
                found.append(Read(states, data, offsets))
        return found

    def to_arrow(self, event: Rows) -> pa.RecordBatch:
        """The same columns as an Arrow batch."""
        arrays, fields = [], []
        for field, column in zip(event.schema.fields, self.read(event)):
            array = made(field, column, len(event))
            arrays.append(array)
            fields.append(pa.field(field.name, array.type, field.nullable or field.sensitive))
        return pa.record_batch(arrays, schema=pa.schema(fields))


def made(field: Field, column: Read, rows: int) -> pa.Array:
    """One column as Arrow."""
    import numpy as np

    valid = np.frombuffer(column.states, np.uint8) == 1
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if field.type == Type.BOOL:
        bits = np.packbits(np.frombuffer(column.values, np.uint8).astype(bool), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), rows, [mask, pa.py_buffer(bits)])
    if column.offsets is None:
        return pa.Array.from_buffers(ARROW[Type(field.type)], rows, [mask, pa.py_buffer(column.values)])
    offsets = np.frombuffer(column.offsets, np.uint64).astype(np.int32)
    kind = pa.string() if field.type == Type.STRING else pa.binary()
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(offsets), pa.py_buffer(column.values)])
