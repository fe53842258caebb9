"""Schemas: the fields of a relay, and those of its branch key."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nervix_ffi._handle import Handle
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import check, read_bytes
from nervix_ffi.enums import Part, Type, read
from nervix_ffi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Field", "Level", "Schema", "own_schema", "read_schema"]


@dataclass(frozen=True)
class Level:
    """One level of a field's type. ``length`` is the element count of a FIXED_LIST and 0 otherwise."""

    type: Type | int
    length: int = 0


@dataclass(frozen=True)
class Field:
    """A field.

    ``type`` is its outermost type and ``levels`` all of them, outermost first: one for a scalar, one more for each list around
    it. A ``nullable`` field may have no value in a row; the values of a ``sensitive`` one are withheld.
    """

    name: str
    type: Type | int
    nullable: bool
    sensitive: bool
    levels: tuple[Level, ...]

    @property
    def is_list(self) -> bool:
        """Whether its values are lists."""
        return len(self.levels) > 1

    @property
    def spelling(self) -> str:
        """The type as a statement spells it, for example ``VEC<ARRAY<DATETIME, 2>>``."""
        return _spell(self.levels)

    def __str__(self) -> str:
        return f"{self.name} {self.spelling}{' OPTIONAL' if self.nullable else ''}{' SENSITIVE' if self.sensitive else ''}"


def _spell(levels: tuple[Level, ...]) -> str:
    outer = levels[0]
    if outer.type == Type.LIST:
        return f"VEC<{_spell(levels[1:])}>"
    if outer.type == Type.FIXED_LIST:
        # Fixed lists directly in fixed lists are one array with several dimensions.
        count = next((index for index, level in enumerate(levels) if level.type != Type.FIXED_LIST), len(levels))
        lengths = ", ".join(str(level.length) for level in levels[:count])
        return f"ARRAY<{_spell(levels[count:])}, {lengths}>"
    return outer.type.name if isinstance(outer.type, Type) else f"TYPE {outer.type}"


@dataclass(frozen=True)
class Schema:
    """The fields of a relay in order; the name of its branch and the fields of the branch key when it is branched."""

    fields: tuple[Field, ...]
    key_fields: tuple[Field, ...] = ()
    branch: str | None = None
    #: The library's own schema, which batches are built from; only a schema of an endpoint or a batch has it.
    _native: Handle | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_native": None}  # A copy and a pickle are the description alone.

    def part(self, part: Part) -> tuple[Field, ...]:
        """The fields of the rows, or of the branch key."""
        return self.key_fields if part == Part.BRANCH_KEY else self.fields

    def field(self, name: str) -> Field:
        """The field of the rows called ``name``. Raises KeyError."""
        for found in self.fields:
            if found.name == name:
                return found
        raise KeyError(name)

    def index(self, column: int | str, part: Part = Part.ROWS) -> int:
        """The position of a column that is given by position or by name. Raises InvalidArgumentError when there is none."""
        fields = self.part(part)
        if isinstance(column, str):
            for index, found in enumerate(fields):
                if found.name == column:
                    return index
            names = ", ".join(found.name for found in fields) or "none"
            raise InvalidArgumentError(f"there is no column {column!r}; the columns are {names}")
        if isinstance(column, bool) or not hasattr(column, "__index__"):
            raise TypeError(f"column is a position (int) or a name (str), not {type(column).__name__}")
        column = operator.index(column)
        if not 0 <= column < len(fields):
            raise InvalidArgumentError(f"there is no column {column}; columns count from 0 to {len(fields) - 1}")
        return column

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields of the rows."""
        return tuple(field.name for field in self.fields)


def _read_field(schema: CData, part: Part, index: int) -> Field:
    name, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    kind, nullable, sensitive = ffi.new("nx_type *"), ffi.new("bool *"), ffi.new("bool *")
    check(lib.nx_schema_field(schema, part, index, name, length, kind, nullable, sensitive))
    count, fixed, level_kind = ffi.new("size_t *"), ffi.new("uint32_t *"), ffi.new("nx_type *")
    check(lib.nx_schema_field_levels(schema, part, index, count))
    depth: int = count[0]
    levels = []
    for level in range(depth):
        check(lib.nx_schema_field_level(schema, part, index, level, level_kind, fixed))
        levels.append(Level(read(Type, int(level_kind[0])), int(fixed[0])))
    return Field(
        name=read_bytes(name, length).decode("utf-8", "replace"),
        type=read(Type, int(kind[0])),
        nullable=bool(nullable[0]),
        sensitive=bool(sensitive[0]),
        levels=tuple(levels),
    )


def read_schema(schema: CData) -> Schema:
    """A copy of a schema of the library; the caller still owns that one."""
    count = ffi.new("size_t *")
    parts = []
    for part in (Part.ROWS, Part.BRANCH_KEY):
        check(lib.nx_schema_field_count(schema, part, count))
        size: int = count[0]
        parts.append(tuple(_read_field(schema, part, index) for index in range(size)))
    pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    branch = None
    if lib.nx_schema_branch(schema, pointer, length):
        branch = read_bytes(pointer, length).decode("utf-8", "replace")
    return Schema(parts[0], parts[1], branch)


def own_schema(schema: CData) -> Schema:
    """A copy of a schema of the library that keeps that one, which it owns from here on."""
    return replace(read_schema(schema), _native=Handle("schema", schema))
