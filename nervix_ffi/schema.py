"""Schemas: the fields of a relay, and those of its branch key."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from nervix_ffi._handle import Handle
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import check, read_bytes
from nervix_ffi.enums import Part, Type, read
from nervix_ffi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Field", "Level", "Schema", "own_schema", "read_branch", "read_schema"]


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


class _Places:
    """Out-parameters for reading fields."""

    __slots__ = ("count", "fixed", "kind", "length", "level", "name", "nullable", "sensitive")

    def __init__(self) -> None:
        self.name, self.length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        self.kind, self.nullable, self.sensitive = ffi.new("nx_type *"), ffi.new("bool *"), ffi.new("bool *")
        self.count, self.fixed, self.level = ffi.new("size_t *"), ffi.new("uint32_t *"), ffi.new("nx_type *")


@lru_cache(4096)
def _scalar(name: bytes, kind: int, nullable: bool, sensitive: bool) -> Field:
    """The field of a scalar type. Equal fields are one object: they never change, and are described again with every event."""
    made = read(Type, kind)
    return Field(name.decode("utf-8", "replace"), made, nullable, sensitive, (Level(made),))


def _read_field(schema: CData, part: Part, index: int, at: _Places) -> Field:
    check(lib.nx_schema_field(schema, part, index, at.name, at.length, at.kind, at.nullable, at.sensitive))
    name, kind, nullable, sensitive = read_bytes(at.name, at.length), int(at.kind[0]), bool(at.nullable[0]), bool(at.sensitive[0])
    if kind in _SCALARS:
        return _scalar(name, kind, nullable, sensitive)
    check(lib.nx_schema_field_levels(schema, part, index, at.count))
    depth: int = at.count[0]
    levels = []
    for level in range(depth):
        check(lib.nx_schema_field_level(schema, part, index, level, at.level, at.fixed))
        levels.append(Level(read(Type, int(at.level[0])), int(at.fixed[0])))
    return Field(name.decode("utf-8", "replace"), read(Type, kind), nullable, sensitive, tuple(levels))


_SCALARS = frozenset(int(kind) for kind in Type) - {Type.LIST, Type.FIXED_LIST}


def read_branch(schema: CData) -> str | None:
    """The name of the branch of a schema of the library; the caller still owns that one."""
    pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    if lib.nx_schema_branch(schema, pointer, length):
        return read_bytes(pointer, length).decode("utf-8", "replace")
    return None


def read_schema(schema: CData) -> Schema:
    """A copy of a schema of the library; the caller still owns that one."""
    at = _Places()
    parts = []
    for part in (Part.ROWS, Part.BRANCH_KEY):
        check(lib.nx_schema_field_count(schema, part, at.count))
        size: int = at.count[0]
        parts.append(tuple(_read_field(schema, part, index, at) for index in range(size)))
    return Schema(parts[0], parts[1], read_branch(schema))


def own_schema(schema: CData) -> Schema:
    """A copy of a schema of the library that keeps that one, which it owns from here on."""
    return replace(read_schema(schema), _native=Handle("schema", schema))
