"""The Arrow C data interface: reading list columns and schemas from it, and handing batches on in capsules.

Owns the structures while Python has them. pyarrow is imported only where it is asked for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nervix_ffi._library import ffi, lib
from nervix_ffi._native import NULL, check
from nervix_ffi.enums import Part, Type
from nervix_ffi.errors import InvalidArgumentError, TypeMismatchError
from nervix_ffi.schema import Field, Level

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData
    from nervix_ffi.fields import ArrowSchemaExporter
    from nervix_ffi.values import Value

__all__ = [
    "UTC_ZONES",
    "array_of_capsule",
    "capsules",
    "described_fields",
    "exported",
    "list_columns",
    "schema_of_capsule",
]

#: The fixed-width formats of Arrow: the letter of the struct module, and the bytes of a value.
_FIXED = {
    b"c": ("b", 1),
    b"C": ("B", 1),
    b"s": ("h", 2),
    b"S": ("H", 2),
    b"i": ("i", 4),
    b"I": ("I", 4),
    b"l": ("q", 8),
    b"L": ("Q", 8),
    b"f": ("f", 4),
    b"g": ("d", 8),
}


@contextmanager
def exported(event: CData, part: Part) -> Iterator[tuple[CData, CData]]:
    """Schema and array of a part of an event, released when the block ends unless someone took what they hold."""
    schema, array = lib.nervix_arrow_schema_new(), lib.nervix_arrow_array_new()
    try:
        check(lib.nxx_event_arrow(event, part, schema, array))
        yield schema, array
    finally:
        lib.nervix_arrow_array_free(array)
        lib.nervix_arrow_schema_free(schema)


# One name each for as long as the process lives: a capsule does not copy its name.
_SCHEMA_NAME = ctypes.c_char_p(b"arrow_schema")
_ARRAY_NAME = ctypes.c_char_p(b"arrow_array")
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _address(pointer: CData) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def capsules(export: Callable[[CData, CData], CData]) -> tuple[object, object]:
    """What ``export`` writes into a schema and an array, as PyCapsules that release what nobody consumed."""
    schema, array = lib.nervix_arrow_schema_new(), lib.nervix_arrow_array_new()
    try:
        check(export(schema, array))
        schema_capsule: object = _new_capsule(_address(schema), _SCHEMA_NAME, _address(lib.nervix_arrow_schema_destructor()))
        schema = NULL
        array_capsule: object = _new_capsule(_address(array), _ARRAY_NAME, _address(lib.nervix_arrow_array_destructor()))
        array = NULL
    finally:
        lib.nervix_arrow_array_free(array)
        lib.nervix_arrow_schema_free(schema)
    return schema_capsule, array_capsule


def list_columns(event: CData, part: Part, columns: list[int]) -> list[list[Value]]:
    """The values of some columns of a part of an event, None where there is none."""
    with exported(event, part) as (schema, array):
        offset, length = int(array.offset), int(array.length)
        return [_values(schema.children[column], array.children[column], offset, length) for column in columns]


def _buffer(array: CData, index: int, start: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(b"")
    return memoryview(ffi.buffer(ffi.cast("const uint8_t *", array.buffers[index]) + start, size))


def _bits(array: CData, index: int, start: int, length: int) -> list[bool]:
    first = start // 8
    data = _buffer(array, index, first, (start + length + 7) // 8 - first)
    shift = start % 8
    return [bool(data[(shift + row) // 8] >> ((shift + row) % 8) & 1) for row in range(length)]


def _values(schema: CData, array: CData, start: int, length: int) -> list[Value]:
    """``length`` values from ``start``, counted in the array's own rows."""
    layout: bytes = ffi.string(schema.format)
    start += int(array.offset)
    values: list[Value]
    if layout.startswith(b"tsn:") or layout in _FIXED:
        letter, width = ("q", 8) if layout.startswith(b"tsn:") else _FIXED[layout]
        values = list(struct.unpack(f"={length}{letter}", _buffer(array, 1, start * width, length * width)))
    elif layout == b"b":
        values = list(_bits(array, 1, start, length))
    elif layout in (b"u", b"z"):
        offsets = _offsets(array, start, length)
        base = offsets[0]
        data = bytes(_buffer(array, 2, base, offsets[-1] - base))
        cells = [data[offsets[row] - base : offsets[row + 1] - base] for row in range(length)]
        values = [cell.decode("utf-8") for cell in cells] if layout == b"u" else list(cells)
    elif layout == b"+l":
        offsets = _offsets(array, start, length)
        base = offsets[0]
        items = _values(schema.children[0], array.children[0], base, offsets[-1] - base)
        values = [items[offsets[row] - base : offsets[row + 1] - base] for row in range(length)]
    elif layout.startswith(b"+w:"):
        size = int(layout[3:])
        items = _values(schema.children[0], array.children[0], start * size, length * size)
        values = [items[row * size : (row + 1) * size] for row in range(length)]
    else:
        raise TypeMismatchError(f"the library described a column as {layout!r}, which this version cannot read")
    if int(array.null_count) != 0 and array.buffers[0] != NULL:
        for row, present in enumerate(_bits(array, 0, start, length)):
            if not present:
                values[row] = None
    return values


def _offsets(array: CData, start: int, length: int) -> tuple[int, ...]:
    if length == 0:
        return (0,)  # An empty array may come without offsets.
    offsets: tuple[int, ...] = struct.unpack(f"={length + 1}i", _buffer(array, 1, start * 4, (length + 1) * 4))
    return offsets


_SCALARS = {
    "b": Type.BOOL,
    "c": Type.I8,
    "C": Type.U8,
    "s": Type.I16,
    "S": Type.U16,
    "i": Type.I32,
    "I": Type.U32,
    "l": Type.I64,
    "L": Type.U64,
    "f": Type.F32,
    "g": Type.F64,
    "u": Type.STRING,
    "U": Type.STRING,
    "vu": Type.STRING,
    "z": Type.BYTES,
    "Z": Type.BYTES,
    "vz": Type.BYTES,
}
_LISTS = ("+l", "+L", "+vl", "+vL")

#: Spellings of the one zone that a DATETIME has.
UTC_ZONES = ("+00:00", "UTC", "Etc/UTC", "Z")

_NULLABLE = 2

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def schema_of_capsule(capsule: object) -> CData:
    """The structure inside of a schema capsule, which still owns it."""
    return ffi.cast("struct ArrowSchema *", _capsule_pointer(capsule, b"arrow_schema"))


def array_of_capsule(capsule: object) -> CData:
    """The structure inside of an array capsule, which still owns it."""
    return ffi.cast("struct ArrowArray *", _capsule_pointer(capsule, b"arrow_array"))


def described_fields(exporter: ArrowSchemaExporter, sensitive: Collection[str]) -> list[Field]:
    """The fields that an Arrow schema describes. Raises InvalidArgumentError for what no field can be."""
    capsule = exporter.__arrow_c_schema__()
    schema = schema_of_capsule(capsule)
    if ffi.string(schema.format) != b"+s":
        raise InvalidArgumentError("an endpoint's fields are a schema, that is a struct type, not a single type")
    fields = []
    for index in range(int(schema.n_children)):
        child = schema.children[index]
        name = ffi.string(child.name).decode("utf-8") if child.name != NULL else ""
        levels = tuple(_described_levels(child, name))
        fields.append(Field(name, levels[0].type, bool(int(child.flags) & _NULLABLE), name in sensitive, levels))
    return fields


def _described_levels(schema: CData, name: str) -> Iterator[Level]:
    spelled = ffi.string(schema.format).decode("utf-8", "replace")
    if schema.dictionary != NULL:
        raise InvalidArgumentError(f"field {name} is dictionary-encoded; describe it by the type of its values")
    if spelled in _LISTS:
        yield Level(Type.LIST)
        yield from _described_levels(schema.children[0], name)
    elif spelled.startswith("+w:"):
        yield Level(Type.FIXED_LIST, int(spelled[3:]))
        yield from _described_levels(schema.children[0], name)
    elif spelled.startswith("ts"):
        if spelled[:4] != "tsn:" or spelled[4:] not in UTC_ZONES:
            raise InvalidArgumentError(
                f"field {name} is a timestamp that no DATETIME is (Arrow format {spelled!r}); use nanoseconds and the zone UTC"
            )
        yield Level(Type.DATETIME)
    elif spelled in _SCALARS:
        yield Level(_SCALARS[spelled])
    else:
        raise InvalidArgumentError(f"field {name} is of an Arrow type that no field has (Arrow format {spelled!r})")
