"""The fields that a host expects of an endpoint, from a text, from type names, or from an Arrow schema.

Owns their spelling. Must not know endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, overload, runtime_checkable

from nervix_ffi._library import lib
from nervix_ffi._native import check, encode
from nervix_ffi._told import inline
from nervix_ffi.enums import Type
from nervix_ffi.errors import InvalidArgumentError
from nervix_ffi.schema import Field, Level, Schema

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["ArrowSchemaExporter", "Fields", "FieldsLike", "fields_of", "native_fields"]


@runtime_checkable
class ArrowSchemaExporter(Protocol):
    """An Arrow schema of any library that has the PyCapsule protocol."""

    def __arrow_c_schema__(self) -> object:
        """The schema as a capsule."""


class Fields(Sequence[Field]):
    """The fields of an endpoint, in order, as they are expected (B-12).

    ``Fields.parse("id U32, tags VEC<STRING> OPTIONAL, secret STRING SENSITIVE")`` reads them as a CREATE SCHEMA statement spells
    them; ``Fields.of({"id": "U32", "note": "STRING OPTIONAL"})`` takes the names apart; ``Fields.from_arrow(schema,
    sensitive=["secret"])`` takes an Arrow schema, which cannot say what is sensitive.
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self._fields = tuple(fields)
        seen: set[str] = set()
        for field in self._fields:
            if field.name in seen:
                raise InvalidArgumentError(f"there are two fields called {field.name}")
            seen.add(field.name)

    @overload
    def __getitem__(self, index: int) -> Field: ...

    @overload
    def __getitem__(self, index: slice) -> Fields: ...

    def __getitem__(self, index: int | slice) -> Field | Fields:
        return Fields(self._fields[index]) if isinstance(index, slice) else self._fields[index]

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __repr__(self) -> str:
        return f"Fields({inline(', '.join(str(field) for field in self._fields))})"

    @classmethod
    def parse(cls, text: str) -> Fields:
        """From a text: names and types, separated by commas. Raises InvalidArgumentError."""
        return cls(_parse_field(part) for part in _split(text.strip().removeprefix("(").removesuffix(")")))

    @classmethod
    def of(cls, types: Mapping[str, str]) -> Fields:
        """From types by name, each spelled with OPTIONAL and SENSITIVE where it is. Raises InvalidArgumentError."""
        return cls(_field(name, text) for name, text in types.items())

    @classmethod
    def from_arrow(cls, schema: ArrowSchemaExporter, *, sensitive: Collection[str] = ()) -> Fields:
        """From an Arrow schema of any library; ``sensitive`` names the fields that are.

        A field is OPTIONAL where it is nullable there. Large and view strings, binaries and lists count as their plain forms; every
        timestamp must be in nanoseconds and UTC. Raises InvalidArgumentError for a type that no field has.
        """
        from nervix_ffi import _arrow

        fields = _arrow.described_fields(schema, sensitive)
        unknown = [name for name in sensitive if name not in {field.name for field in fields}]
        if unknown:
            raise InvalidArgumentError(f"there is no field {unknown[0]} that could be sensitive")
        return cls(fields)


#: What stands for fields: Fields, a Schema that was read, types by name, a text, an Arrow schema without sensitive fields.
FieldsLike: TypeAlias = "Fields | Schema | Iterable[Field] | Mapping[str, str] | str | ArrowSchemaExporter"


def fields_of(source: FieldsLike) -> Fields:
    """The fields that ``source`` stands for. Raises InvalidArgumentError or TypeError."""
    if isinstance(source, Fields):
        return source
    if isinstance(source, Schema):
        return Fields(source.fields)
    if isinstance(source, str):
        return Fields.parse(source)
    if isinstance(source, Mapping):
        return Fields.of(source)
    if isinstance(source, ArrowSchemaExporter):
        return Fields.from_arrow(source)
    if not isinstance(source, Iterable):
        raise TypeError(f"fields are Field objects, types by name, a text, or an Arrow schema; not {type(source).__name__}")
    fields = tuple(source)
    for field in fields:
        if not isinstance(field, Field):
            raise TypeError(f"fields are Field objects, types by name, a text, or an Arrow schema; not {type(field).__name__}")
    return Fields(fields)


@contextmanager
def native_fields(fields: Fields) -> Iterator[CData]:
    """The fields as the library takes them, freed when the block ends. Raises InvalidArgumentError."""
    made = lib.nx_fields_new()
    try:
        for field in fields:
            name = encode(field.name, "a field's name")
            outer, *inner = field.levels
            check(lib.nx_fields_add(made, name, len(name), outer.type, outer.length, field.nullable, field.sensitive))
            for level in inner:
                check(lib.nx_fields_element(made, level.type, level.length))
        yield made
    finally:
        lib.nx_fields_free(made)


_SCALARS = {kind.name: kind for kind in Type if kind not in (Type.LIST, Type.FIXED_LIST)}
_FLAGS = re.compile(r"\s+(OPTIONAL|SENSITIVE)\s*$", re.IGNORECASE)
_LIST = re.compile(r"(VEC|ARRAY)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_LONGEST = 2**31 - 1


def _split(text: str) -> list[str]:
    """The parts of a text between commas that lie in no brackets."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "<>":
            depth += 1 if character == "<" else -1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _parse_field(text: str) -> Field:
    words = text.split(None, 1)
    if len(words) != 2:
        raise InvalidArgumentError(f"{text.strip()!r} is no field; write a name and a type, for example `id U32`")
    return _field(words[0], words[1])


def _field(name: str, text: str) -> Field:
    spelled, flags = text, set()
    while match := _FLAGS.search(spelled):
        flags.add(match[1].upper())
        spelled = spelled[: match.start()]
    levels = tuple(_levels(spelled, name))
    return Field(name, levels[0].type, "OPTIONAL" in flags, "SENSITIVE" in flags, levels)


def _levels(text: str, name: str) -> Iterator[Level]:
    spelled = text.strip()
    while match := _LIST.fullmatch(spelled):
        element, *lengths = _split(match[2])
        if match[1].upper() == "VEC":
            if lengths:
                raise InvalidArgumentError(f"field {name}: {spelled} has lengths, which only an ARRAY has")
            yield Level(Type.LIST)
        else:
            if not lengths:
                raise InvalidArgumentError(f"field {name}: {spelled} has no length; write for example ARRAY<U8, 16>")
            for length in lengths:
                if not length.strip().isdecimal() or not 1 <= int(length) <= _LONGEST:
                    raise InvalidArgumentError(f"field {name}: {length.strip()!r} is no length of an array (1 to {_LONGEST})")
                yield Level(Type.FIXED_LIST, int(length))
        spelled = element.strip()
    kind = _SCALARS.get(spelled.upper())
    if kind is None:
        raise InvalidArgumentError(
            f"field {name}: {spelled!r} is no type; types are {', '.join(_SCALARS)}, VEC<...> and ARRAY<...>"
        )
    yield Level(kind)
