"""Schemas and rows made at random, and the two readings that a test compares them with.

A value here is canonical: an int for integers and DATETIME (nanoseconds), the bits as an int for floats, and str, bytes, bool, list
or None for the rest. This module knows the language's spellings and Arrow's types; it must not know the package.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

INTEGERS = {name: (bits, name[0] == "I") for name, bits in (
    ("U8", 8), ("I8", 8), ("U16", 16), ("I16", 16), ("U32", 32), ("I32", 32), ("U64", 64), ("I64", 64)
)}  # fmt: skip
SCALARS = [*INTEGERS, "F32", "F64", "BOOL", "STRING", "BYTES", "DATETIME"]

ARROW = {
    **{name: getattr(pa, ("int" if signed else "uint") + str(bits))() for name, (bits, signed) in INTEGERS.items()},
    "F32": pa.float32(),
    "F64": pa.float64(),
    "BOOL": pa.bool_(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATETIME": pa.timestamp("ns", tz="+00:00"),
}


class Kind(NamedTuple):
    """A type: a scalar's name; or VEC or ARRAY with an element, and a length for ARRAY."""

    name: str
    element: Kind | None = None
    length: int = 0

    def nspl(self) -> str:
        """The type as the language spells it."""
        if self.element is None:
            return self.name
        return f"VEC<{self.element.nspl()}>" if self.name == "VEC" else f"ARRAY<{self.element.nspl()}, {self.length}>"

    def arrow(self) -> pa.DataType:
        """The Arrow type that a column of it must have."""
        if self.element is None:
            return ARROW[self.name]
        child = pa.field("item", self.element.arrow(), nullable=False)
        return pa.list_(child) if self.name == "VEC" else pa.list_(child, self.length)


class Field(NamedTuple):
    name: str
    kind: Kind
    nullable: bool
    sensitive: bool

    def nspl(self) -> str:
        return f"{self.name} {self.kind.nspl()}{' OPTIONAL' if self.nullable else ''}{' SENSITIVE' if self.sensitive else ''}"


class Case(NamedTuple):
    """A schema, the names of its key fields (none when unbranched), and rows. The first field is `id`, the row's index."""

    fields: list[Field]
    key: list[str]
    rows: list[dict[str, Any]]


kinds = st.recursive(
    st.sampled_from(SCALARS).map(Kind),
    lambda inner: st.one_of(
        inner.map(lambda kind: Kind("VEC", kind)), st.tuples(inner, st.integers(1, 3)).map(lambda p: Kind("ARRAY", p[0], p[1]))
    ),
    max_leaves=4,
)


def extremes(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from(sorted({low, low + 1, min(0, high), high - 1, high})), st.integers(low, high))


SINGLE_BITS = [0x0, 0x80000000, 0x1, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7FA00001, 0xFFFFFFFF]
DOUBLE_BITS = [0x0, 1 << 63, 1, 0x7FEF << 48, 0x7FF0 << 48, 0xFFF0 << 48, (0x7FF8 << 48) | 0x123, (0x7FF4 << 48) | 1]


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Canonical values of a type."""
    if kind.element is not None:
        low, high = (0, 4) if kind.name == "VEC" else (kind.length, kind.length)
        return st.lists(values(kind.element), min_size=low, max_size=high)
    if kind.name in INTEGERS:
        bits, signed = INTEGERS[kind.name]
        return extremes(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else extremes(0, (1 << bits) - 1)
    if kind.name == "F32":
        return st.one_of(st.sampled_from(SINGLE_BITS), st.integers(0, (1 << 32) - 1))
    if kind.name == "F64":
        return st.one_of(st.sampled_from(DOUBLE_BITS), st.integers(0, (1 << 64) - 1))
    if kind.name == "BOOL":
        return st.booleans()
    if kind.name == "STRING":
        return st.one_of(st.sampled_from(["", "\0", "a\0b", "héllo 世界 🚀"]), st.text(max_size=12))
    if kind.name == "BYTES":
        return st.one_of(st.sampled_from([b"", b"\0", b"\xff\xfe\x80"]), st.binary(max_size=12))
    assert kind.name == "DATETIME"
    return extremes(-(1 << 63), (1 << 63) - 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A whole case: up to six fields besides `id`, perhaps a key of one or two scalar ones, and one to eight rows."""
    fields = [Field("id", Kind("U32"), False, False)]
    for index in range(draw(st.integers(0, 6))):
        fields.append(Field(f"f{index}", draw(kinds), draw(st.booleans()), draw(st.sampled_from([False, False, False, True]))))
    scalars = [field.name for field in fields[1:] if field.kind.element is None]
    key = draw(st.lists(st.sampled_from(scalars), max_size=2, unique=True)) if scalars else []
    rows = []
    for index in range(draw(st.integers(1, 8))):
        row: dict[str, Any] = {"id": index}
        for field in fields[1:]:
            value = values(field.kind)
            row[field.name] = draw(st.one_of(st.none(), value) if field.nullable else value)
        rows.append(row)
    return Case(fields, key, rows)


def to_json(kind: Kind, value: Any) -> Any:
    """A value as the node's control endpoint takes it in a JSON row."""
    if value is None:
        return None
    if kind.element is not None:
        return [to_json(kind.element, element) for element in value]
    if kind.name in ("F32", "F64"):
        return {"bits": f"{value:08x}" if kind.name == "F32" else f"{value:016x}"}
    if kind.name == "BYTES":
        return {"hex": value.hex()}
    return value


def from_python(kind: Kind, value: Any) -> Any:
    """A value that the package handed out, made canonical. A NaN loses its payload here, so it becomes the string "nan"."""
    if value is None:
        return None
    if kind.element is not None:
        assert isinstance(value, list)
        return [from_python(kind.element, element) for element in value]
    if kind.name in ("F32", "F64"):
        assert isinstance(value, float)
        if math.isnan(value):
            return "nan"
        code = (">f", ">d")[kind.name == "F64"]
        return int.from_bytes(struct.pack(code, value), "big")
    wanted = {"BOOL": bool, "STRING": str, "BYTES": bytes}.get(kind.name, int)
    assert type(value) is wanted, f"{kind.name} came as {type(value).__name__}"
    return value


def without_payload(kind: Kind, value: Any) -> Any:
    """A canonical value as `from_python` can tell it: every NaN is "nan"."""
    if value is None:
        return None
    if kind.element is not None:
        return [without_payload(kind.element, element) for element in value]
    if kind.name == "F32" and value & 0x7FFFFFFF > 0x7F800000:
        return "nan"
    if kind.name == "F64" and value & ((1 << 63) - 1) > 0x7FF0 << 48:
        return "nan"
    return value


def from_arrow(kind: Kind, array: pa.Array) -> list[Any]:
    """The canonical values of an Arrow array, floats by their bits."""
    if kind.element is not None:
        inner = from_arrow(kind.element, array.values)
        if kind.name == "VEC":
            spans = [(array.offsets[i].as_py(), array.offsets[i + 1].as_py()) for i in range(len(array))]
        else:
            start = array.offset
            spans = [((start + i) * kind.length, (start + i + 1) * kind.length) for i in range(len(array))]
        return [inner[a:b] if array[i].is_valid else None for i, (a, b) in enumerate(spans)]
    if kind.name in ("F32", "F64"):
        array = array.view(pa.uint32() if kind.name == "F32" else pa.uint64())
    elif kind.name == "DATETIME":
        array = array.view(pa.int64())
    return list(array.to_pylist())
