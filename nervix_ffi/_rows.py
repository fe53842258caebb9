"""Rows as mappings, turned into the columns of a batch.

Values are taken as what they are: nothing is parsed, and no bool is a number. Owns the checks and what they say; a message never
shows a value, which may be sensitive.
"""

from __future__ import annotations

import numbers
import operator
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from nervix_ffi.column import FORMATS
from nervix_ffi.enums import CellState, Type
from nervix_ffi.errors import InvalidArgumentError
from nervix_ffi.schema import Field, Level
from nervix_ffi.values import REDACTED, from_datetime

if TYPE_CHECKING:
    from nervix_ffi.batch import BatchBuilder
    from nervix_ffi.values import Value

__all__ = ["blank", "fill"]

_INTEGERS = {
    Type.U8: range(2**8),
    Type.I8: range(-(2**7), 2**7),
    Type.U16: range(2**16),
    Type.I16: range(-(2**15), 2**15),
    Type.U32: range(2**32),
    Type.I32: range(-(2**31), 2**31),
    Type.U64: range(2**64),
    Type.I64: range(-(2**63), 2**63),
}


class _Bad(Exception):
    """A cell that its level does not hold."""

    def __init__(self, cell: int, reason: str) -> None:
        super().__init__(reason)
        self.cell = cell
        self.reason = reason


def fill(builder: BatchBuilder, fields: Sequence[Field], rows: Sequence[Mapping[str, Value]]) -> None:
    """Puts rows into a builder. Raises InvalidArgumentError that names the column and the first row that does not fit."""
    names = {field.name for field in fields}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"row {number} is a {type(row).__name__}; a row is a mapping by field name")
        if not row.keys() <= names:
            unknown = next(name for name in row if name not in names)
            raise InvalidArgumentError(f"row {number} has a value for {unknown!r}; the fields are {', '.join(sorted(names))}")
    for index, field in enumerate(fields):
        try:
            _column(builder, index, field, [row.get(field.name) for row in rows])
        except _Bad as bad:
            raise InvalidArgumentError(f"column {field.name} ({field.spelling}), row {bad.cell}: {bad.reason}") from None


def _column(builder: BatchBuilder, index: int, field: Field, cells: list[object]) -> None:
    missing = _first_missing(cells)
    if missing is not None:
        if not field.nullable:
            raise _Bad(missing, "a required field has no value")
        states = bytes(CellState.NULL if cell is None else CellState.VALUE for cell in cells)
        builder.states(index, states)
        nothing = blank(field.levels)
        cells = [nothing if cell is None else cell for cell in cells]
    _level(builder, index, field.levels, 0, cells)


def _first_missing(cells: list[object]) -> int | None:
    return next((number for number, cell in enumerate(cells) if cell is None), None)


def blank(levels: Sequence[Level]) -> object:
    """What stands in the place of a null; it means nothing."""
    outer = levels[0]
    if outer.type == Type.LIST:
        return []
    if outer.type == Type.FIXED_LIST:
        return [blank(levels[1:])] * outer.length
    return {Type.STRING: "", Type.BYTES: b"", Type.BOOL: False, Type.F32: 0.0, Type.F64: 0.0}.get(Type(outer.type), 0)


def _level(builder: BatchBuilder, index: int, levels: Sequence[Level], level: int, cells: list[object]) -> None:
    outer = levels[level]
    if outer.type not in (Type.LIST, Type.FIXED_LIST):
        _innermost(builder, index, level, Type(outer.type), cells)
        return
    ends = array("Q", [0])
    items: list[object] = []
    for number, cell in enumerate(cells):
        if not isinstance(cell, Sequence) or isinstance(cell, (str, bytes, bytearray, memoryview)):
            raise _Bad(number, f"{_kind(cell)} is no list")
        if outer.type == Type.FIXED_LIST and len(cell) != outer.length:
            raise _Bad(number, f"a list of {len(cell)} where {outer.length} belong")
        items.extend(cell)
        ends.append(len(items))
    if outer.type == Type.LIST:
        builder.offsets(index, level, ends)
    try:
        missing = _first_missing(items)
        if missing is not None:
            raise _Bad(missing, "an element of a list has no value")
        _level(builder, index, levels, level + 1, items)
    except _Bad as bad:
        raise _Bad(bisect_right(ends, bad.cell) - 1, bad.reason) from None


def _innermost(builder: BatchBuilder, index: int, level: int, kind: Type, cells: list[object]) -> None:
    if kind in (Type.STRING, Type.BYTES):
        data = _each(cells, _text if kind == Type.STRING else _bytes)
        ends = array("Q", [0])
        total = 0
        for value in data:
            total += len(value)
            ends.append(total)
        builder.varlen(index, level, ends, b"".join(data))
        return
    letter = FORMATS[kind][0]
    exact: type = {Type.BOOL: bool, Type.F32: float, Type.F64: float}.get(kind, int)
    if set(map(type, cells)) <= {exact}:
        try:
            builder.fixed(index, level, struct.pack(f"={len(cells)}{letter}", *cells))
            return
        except (struct.error, OverflowError):
            pass  # Some value does not fit; which one is found below.
    converted = _each(cells, _CONVERSIONS.get(kind) or _integer(kind))
    builder.fixed(index, level, struct.pack(f"={len(cells)}{letter}", *converted))


Taken: TypeAlias = "bytes | int | float | bool"


def _each(cells: list[object], convert: Callable[[object], Taken]) -> list[bytes]:
    taken = []
    for number, cell in enumerate(cells):
        try:
            taken.append(convert(cell))
        except ValueError as failure:
            raise _Bad(number, str(failure)) from None
    return taken  # type: ignore[return-value]


def _kind(cell: object) -> str:
    return "a withheld value (REDACTED)" if cell is REDACTED else f"a value of type {type(cell).__name__}"


def _text(cell: object) -> bytes:
    if not isinstance(cell, str):
        raise ValueError(f"{_kind(cell)} is no text (str)")
    try:
        return cell.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text with a lone surrogate has no UTF-8") from None


def _bytes(cell: object) -> bytes:
    if not isinstance(cell, (bytes, bytearray, memoryview)):
        raise ValueError(f"{_kind(cell)} is no bytes")
    return bytes(cell)


def _bool(cell: object) -> bool:
    if not isinstance(cell, bool):
        raise ValueError(f"{_kind(cell)} is no bool")
    return cell


def _index(cell: object) -> int:
    if isinstance(cell, bool):
        raise ValueError("a bool is no integer")
    try:
        return operator.index(cell)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{_kind(cell)} is no integer") from None


def _integer(kind: Type) -> Callable[[object], int]:
    def convert(cell: object) -> int:
        value = _index(cell)
        if value not in _INTEGERS[kind]:
            raise ValueError(f"an integer out of the range of {kind.name}")
        return value

    return convert


def _datetime(cell: object) -> int:
    if isinstance(cell, datetime):
        # A pandas.Timestamp is a datetime with three more digits.
        cell = from_datetime(cell) + int(getattr(cell, "nanosecond", 0))
    value = _index(cell)
    if value not in _INTEGERS[Type.I64]:
        raise ValueError("an instant that 64 bits of nanoseconds do not hold")
    return value


def _float(cell: object) -> float:
    if isinstance(cell, bool):
        raise ValueError("a bool is no float")
    if isinstance(cell, numbers.Integral):
        return _exact(operator.index(cell), float)
    if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Rational):
        return float(cell)
    raise ValueError(f"{_kind(cell)} is no float")


def _exact(whole: int, convert: Callable[[int], float]) -> float:
    try:
        value = convert(whole)
    except OverflowError:
        value = 0.5
    if value != whole:
        raise ValueError("an integer that the float has no number for; pass a float to have it rounded")
    return value


def _single(cell: object) -> float:
    value = _float(cell)
    try:
        packed: float = struct.unpack("=f", struct.pack("=f", value))[0]
    except OverflowError:
        raise ValueError("a float out of the range of F32") from None
    if isinstance(cell, numbers.Integral):
        _exact(operator.index(cell), lambda _: packed)
    return value


_CONVERSIONS: dict[Type, Callable[[object], Taken]] = {
    Type.BOOL: _bool,
    Type.F32: _single,
    Type.F64: _float,
    Type.DATETIME: _datetime,
}
