"""One column of a batch, read in one piece (B-6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import NULL, check
from nervix_ffi._told import named
from nervix_ffi.enums import CellState, Part, Type
from nervix_ffi.errors import TypeMismatchError, UnsupportedError
from nervix_ffi.schema import Field
from nervix_ffi.values import REDACTED, Value

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["FORMATS", "Column", "Values", "dicts", "read_column"]

#: The values of a column of fixed width, one item a cell.
Values: TypeAlias = "memoryview[int] | memoryview[float] | memoryview[bool]"

Letter: TypeAlias = Literal["B", "b", "H", "h", "I", "i", "Q", "q", "f", "d", "?"]

#: The memoryview format of each type of fixed width, and the width in bytes.
FORMATS: dict[Type, tuple[Letter, int]] = {
    Type.U8: ("B", 1),
    Type.I8: ("b", 1),
    Type.U16: ("H", 2),
    Type.I16: ("h", 2),
    Type.U32: ("I", 4),
    Type.I32: ("i", 4),
    Type.U64: ("Q", 8),
    Type.I64: ("q", 8),
    Type.F32: ("f", 4),
    Type.F64: ("d", 8),
    Type.BOOL: ("?", 1),
    Type.DATETIME: ("q", 8),
}

_VALUE = bytes([CellState.VALUE])


class Column:
    """A copy of one column of the rows of an event, or of its branch key.

    ``field`` describes it. ``states`` has one CellState a cell, as unsigned bytes. A column of fixed width has ``values``: one
    item a cell, in the type's own width (``memoryview`` of format B b H h I i Q q f d ?; DATETIME is q, nanoseconds), zero where
    there is no value. A STRING or BYTES column has ``data``, all values joined, and ``offsets``: cells + 1 positions in it.
    A list column has neither. ``to_list()`` makes Python values of any. The buffers are read-only and outlive the event.
    """

    def __init__(
        self,
        field: Field,
        states: memoryview,
        *,
        values: Values | None = None,
        offsets: memoryview | None = None,
        data: memoryview | None = None,
        lists: list[Value] | None = None,
    ) -> None:
        self.field = field
        self.states = states
        self._values = values
        self._offsets = offsets
        self._data = data
        self._lists = lists

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"<Column {named(str(self.field))}, {len(self)} cells>"

    @property
    def type(self) -> Type | int:
        """The outermost type of the field."""
        return self.field.type

    @property
    def values(self) -> Values:
        """The values of a column of fixed width. Raises TypeMismatchError for any other."""
        if self._values is None:
            raise TypeMismatchError(
                f"column {self.field.name} is {self.field.spelling}, which has no fixed width; {self._instead()}"
            )
        return self._values

    @property
    def offsets(self) -> memoryview:
        """Positions in ``data``, format Q. Raises TypeMismatchError unless the column is STRING or BYTES."""
        if self._offsets is None:
            raise TypeMismatchError(f"column {self.field.name} is {self.field.spelling}, which has no offsets; {self._instead()}")
        return self._offsets

    @property
    def data(self) -> memoryview:
        """The joined values of a STRING (UTF-8) or BYTES column. Raises TypeMismatchError for any other."""
        if self._data is None:
            raise TypeMismatchError(f"column {self.field.name} is {self.field.spelling}, which has no data; {self._instead()}")
        return self._data

    def _instead(self) -> str:
        if self._values is not None:
            return "read values or to_list()"
        return "read offsets and data, or to_list()" if self._data is not None else "read to_list()"

    def __getitem__(self, index: int) -> Value:
        """The cell at ``index`` as a Python value. Raises IndexError."""
        state: int = self.states[index]
        if state != CellState.VALUE:
            return REDACTED if state == CellState.REDACTED else None
        if self._lists is not None:
            return self._lists[index]
        if self._values is not None:
            value: int | float | bool = self._values[index]
            return value
        row = index if index >= 0 else index + len(self)
        cell = bytes(self.data[self.offsets[row] : self.offsets[row + 1]])
        return cell.decode("utf-8") if self.field.levels[-1].type == Type.STRING else cell

    def to_list(self) -> list[Value]:
        """Every cell as a Python value."""
        values: list[Value]
        if self._lists is not None:
            values = list(self._lists)
        elif self._values is not None:
            values = list(self._values)
        else:
            values = self._joined()
        states = self.states.tobytes()
        if states.count(_VALUE) != len(states):
            for index, state in enumerate(states):
                if state != CellState.VALUE:
                    values[index] = REDACTED if state == CellState.REDACTED else None
        return values

    def _joined(self) -> list[Value]:
        ends: list[int] = self.offsets.tolist()
        data = self.data.tobytes()
        if self.field.levels[-1].type != Type.STRING:
            return [data[start:end] for start, end in zip(ends, ends[1:])]
        text = data.decode("utf-8")
        if len(text) == len(data):  # All ASCII: offsets in bytes are offsets in characters.
            return [text[start:end] for start, end in zip(ends, ends[1:])]
        return [data[start:end].decode("utf-8") for start, end in zip(ends, ends[1:])]


def dicts(columns: Sequence[Column], count: int) -> list[dict[str, Value]]:
    """The ``count`` rows of some columns as dicts. Raises TypeMismatchError where two columns have one name."""
    names = [column.field.name for column in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TypeMismatchError(
            f"two columns are called {twice}, and a row as a dict has one value of a name; read column() by position, or Arrow"
        )
    if not names:
        return [{} for _ in range(count)]
    return [dict(zip(names, row)) for row in zip(*(column.to_list() for column in columns))]


def _states(event: CData, part: Part, index: int, cells: int) -> memoryview:
    states = bytearray(cells)
    check(lib.nx_event_column_states(event, part, index, ffi.from_buffer("uint8_t[]", states), cells))
    return memoryview(states).toreadonly()


def read_column(event: CData, part: Part, index: int, field: Field, cells: int, lists: list[Value] | None = None) -> Column:
    """Copies a column out of an event. ``lists`` are the values of a list column, where they were read already.

    Raises UnsupportedError for a list column with a library that has no ``arrow`` extension.
    """
    states = _states(event, part, index, cells)
    if field.is_list:
        if lists is None:
            lists = read_lists(event, part, [index], field.name)[0]
        return Column(field, states, lists=lists)
    if isinstance(field.type, Type) and field.type in FORMATS:
        letter, width = FORMATS[field.type]
        values = bytearray(cells * width)
        check(lib.nx_event_column_fixed(event, part, index, ffi.from_buffer("uint8_t[]", values), cells * width))
        return Column(field, states, values=memoryview(values).toreadonly().cast(letter))
    if field.type not in (Type.STRING, Type.BYTES):
        raise UnsupportedError(f"column {field.name} is of {field.spelling}, a type that this version cannot read")
    size = ffi.new("size_t *")
    check(lib.nx_event_column_varlen(event, part, index, NULL, 0, NULL, 0, size))
    length: int = size[0]
    data, offsets = bytearray(length), bytearray((cells + 1) * 8)
    check(
        lib.nx_event_column_varlen(
            event,
            part,
            index,
            ffi.cast("uint64_t *", ffi.from_buffer("uint8_t[]", offsets)),
            cells + 1,
            ffi.from_buffer("uint8_t[]", data),
            length,
            size,
        )
    )
    return Column(
        field,
        states,
        offsets=memoryview(offsets).toreadonly().cast("Q"),
        data=memoryview(data).toreadonly(),
    )


def read_lists(event: CData, part: Part, columns: list[int], name: str) -> list[list[Value]]:
    """The values of list columns. Raises UnsupportedError without the ``arrow`` extension."""
    if not extension("arrow"):
        raise UnsupportedError(
            f"column {name} holds lists, which only a library with the arrow extension (nxx_event_arrow) can read; "
            "nervix_ffi.library() says which library is loaded, and without NERVIX_CLIENT_LIBRARY it is the package's own"
        )
    from nervix_ffi import _arrow

    return _arrow.list_columns(event, part, columns)
