"""The fields that a host expects of an endpoint."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nervix_ffi import Field, Fields, InvalidArgumentError, Level, Schema, Type
from nervix_ffi.fields import fields_of

pytestmark = pytest.mark.rule("B-12")

TEXT = (
    "id U32, tags VEC<STRING> OPTIONAL, grid ARRAY<I16, 2, 3>, spans VEC<ARRAY<DATETIME, 2>> OPTIONAL, at DATETIME,"
    " secret STRING SENSITIVE, raw BYTES OPTIONAL SENSITIVE, flag BOOL, small F32, large F64"
)

SCALARS = [kind for kind in Type if kind not in (Type.LIST, Type.FIXED_LIST)]
LEVELS = st.recursive(
    st.sampled_from(SCALARS).map(lambda kind: (Level(kind),)),
    lambda inner: st.one_of(
        inner.map(lambda levels: (Level(Type.LIST), *levels)),
        st.tuples(st.integers(1, 9), inner).map(lambda pair: (Level(Type.FIXED_LIST, pair[0]), *pair[1])),
    ),
    max_leaves=5,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)


@st.composite
def any_fields(draw: st.DrawFn) -> Fields:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    made = []
    for name in names:
        levels = draw(LEVELS)
        made.append(Field(name, levels[0].type, draw(st.booleans()), draw(st.booleans()), levels))
    return Fields(made)


def test_a_text_says_what_a_statement_says() -> None:
    fields = Fields.parse(f"({TEXT})")
    assert [str(field) for field in fields] == [part.replace(" >", ">") for part in _parts(TEXT)]
    assert fields[2].levels == (Level(Type.FIXED_LIST, 2), Level(Type.FIXED_LIST, 3), Level(Type.I16))
    assert (fields[6].nullable, fields[6].sensitive) == (True, True)
    assert fields[1:3] == Fields([fields[1], fields[2]])
    assert repr(fields) == f"Fields({TEXT})"


def _parts(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


@given(any_fields())
def test_what_is_spelled_is_what_was_read(fields: Fields) -> None:
    assert Fields.parse(", ".join(str(field) for field in fields)) == fields
    assert Fields.of({field.name: str(field).split(" ", 1)[1].lower() for field in fields}) == fields
    assert fields_of(list(fields)) == fields_of(Schema(tuple(fields))) == fields_of(fields) == fields
    assert hash(Fields(fields)) == hash(fields)


@given(any_fields())
def test_an_arrow_schema_says_all_but_what_is_sensitive(fields: Fields) -> None:
    from nervix_ffi._pyarrow import arrow_schema

    schema = arrow_schema(fields)
    sensitive = [field.name for field in fields if field.sensitive]
    assert Fields.from_arrow(schema, sensitive=sensitive) == fields
    assert not any(field.sensitive for field in fields_of(schema))


def test_other_spellings_of_an_arrow_type_are_the_same_field() -> None:
    loose = pa.schema(
        [
            pa.field("a", pa.large_list(pa.field("element", pa.large_string(), nullable=True)), metadata={"x": "y"}),
            pa.field("b", pa.list_view(pa.string_view()), nullable=False),
            pa.field("c", pa.binary_view()),
            pa.field("d", pa.timestamp("ns", "UTC")),
            pa.field("e", pa.timestamp("ns", "Etc/UTC")),
            pa.field("f", pa.timestamp("ns", "Z")),
        ],
        metadata={"x": "y"},
    )
    expected = (
        "a VEC<STRING> OPTIONAL, b VEC<STRING>, c BYTES OPTIONAL, d DATETIME OPTIONAL, e DATETIME OPTIONAL, f DATETIME OPTIONAL"
    )
    assert Fields.from_arrow(loose) == Fields.parse(expected)


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns"),
        pa.timestamp("ns", "Europe/Berlin"),
        pa.float16(),
        pa.date32(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.decimal128(5),
        pa.struct([("x", pa.int32())]),
        pa.list_(pa.duration("ns")),
        pa.null(),
        pa.binary(4),
    ],
    ids=str,
)
def test_an_arrow_type_that_no_field_has_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="field odd"):
        Fields.from_arrow(pa.schema([pa.field("odd", kind)]))


def test_a_sensitive_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="secert"):
        Fields.from_arrow(pa.schema([pa.field("secret", pa.string())]), sensitive=["secert"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id", "a name and a type"),
        ("", "a name and a type"),
        ("id U31", "no type"),
        ("id U32,", "a name and a type"),
        ("id VEC<U8, 3>", "only an ARRAY"),
        ("id ARRAY<U8>", "no length"),
        ("id ARRAY<U8, 0>", "no length of an array"),
        ("id ARRAY<U8, 2147483648>", "no length of an array"),
        ("id ARRAY<U8, x>", "no length of an array"),
        ("id VEC<>", "no type"),
        ("id U8, id U8", "two fields called id"),
    ],
)
def test_a_text_that_is_no_fields_says_where(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Fields.parse(text)


def test_what_stands_for_no_fields_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not int"):
        fields_of([1])  # type: ignore[list-item]


def test_a_schema_is_pickled_as_a_description() -> None:
    schema = Schema(tuple(Fields.parse(TEXT)))
    assert pickle.loads(pickle.dumps(schema)) == schema
