"""Arrow data of any library becomes a batch exactly, or is refused with the first difference named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nervix_ffi import Fields, InvalidArgumentError, Type
from nervix_ffi._convert import conform
from nervix_ffi._pyarrow import arrow_schema, arrow_type
from nervix_ffi.schema import Level

from .test_fields import any_fields

pytestmark = pytest.mark.rule("P-3", "B-13")

VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.U8: st.integers(0, 2**8 - 1),
    Type.I8: st.integers(-(2**7), 2**7 - 1),
    Type.U16: st.integers(0, 2**16 - 1),
    Type.I16: st.integers(-(2**15), 2**15 - 1),
    Type.U32: st.integers(0, 2**32 - 1),
    Type.I32: st.integers(-(2**31), 2**31 - 1),
    Type.U64: st.integers(0, 2**64 - 1),
    Type.I64: st.integers(-(2**63), 2**63 - 1),
    Type.F32: st.floats(width=32, allow_nan=False),
    Type.F64: st.floats(allow_nan=False),
    Type.BOOL: st.booleans(),
    Type.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    Type.BYTES: st.binary(max_size=5),
    Type.DATETIME: st.integers(-(2**63), 2**63 - 1),
}


def value_of(levels: tuple[Level, ...]) -> st.SearchStrategy[Any]:
    """A Python value of a field's type."""
    outer = levels[0]
    if outer.type == Type.LIST:
        return st.lists(value_of(levels[1:]), max_size=3)
    if outer.type == Type.FIXED_LIST:
        return st.lists(value_of(levels[1:]), min_size=outer.length, max_size=outer.length)
    return VALUES[Type(outer.type)]


@st.composite
def fields_and_rows(draw: st.DrawFn) -> tuple[Fields, list[dict[str, Any]]]:
    fields = draw(any_fields())
    rows = st.fixed_dictionaries(
        {field.name: st.none() | value_of(field.levels) if field.nullable else value_of(field.levels) for field in fields}
    )
    return fields, draw(st.lists(rows, max_size=6))


def batch_of(fields: Fields, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = arrow_schema(fields)
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names], schema=schema
    )


def loosened(kind: pa.DataType) -> pa.DataType:
    """Another spelling of the same type."""
    if pa.types.is_list(kind):
        return pa.large_list(pa.field("element", loosened(kind.value_type), metadata={"k": "v"}))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("x", loosened(kind.value_type)), kind.list_size)
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    return pa.timestamp("ns", "Etc/UTC") if pa.types.is_timestamp(kind) else kind


def same(conformed: pa.RecordBatch, batch: pa.RecordBatch) -> None:
    conformed.validate(full=True)
    assert conformed.schema.equals(batch.schema, check_metadata=True)
    assert conformed.equals(batch)


@settings(deadline=None)
@given(fields_and_rows(), st.integers(0, 3))
def test_a_batch_of_the_right_form_is_taken_as_it_is(made: tuple[Fields, list[dict[str, Any]]], skipped: int) -> None:
    fields, rows = made
    batch = batch_of(fields, rows)
    for data in (batch, pa.table(batch), pa.Table.from_batches([batch.slice(0, 2), batch.slice(2)])):
        same(conform(data, fields, False), batch)
    same(conform(batch.slice(skipped), fields, False), batch.slice(skipped))


@settings(deadline=None)
@given(fields_and_rows(), st.integers(0, 3))
def test_spellings_that_change_no_value_are_made_without_asking(made: tuple[Fields, list[dict[str, Any]]], skipped: int) -> None:
    fields, rows = made
    batch = batch_of(fields, rows)
    schema = pa.schema([pa.field(f.name, loosened(f.type), metadata={"k": "v"}) for f in batch.schema], metadata={"k": "v"})
    columns = [pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names]
    loose = pa.RecordBatch.from_arrays(columns, schema=schema)
    same(conform(loose, fields, False), batch)
    same(conform(loose.slice(skipped), fields, False), batch.slice(skipped))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string()], ids=str)
def test_a_view_and_a_large_text_are_texts(kind: pa.DataType) -> None:
    given_ = pa.table({"n": pa.array(["a", None, "a text that is long enough for a view"], kind)})
    assert conform(given_, Fields.parse("n STRING OPTIONAL"), False)["n"].to_pylist() == given_["n"].to_pylist()


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "+00:00", "Z"])
def test_one_zone_has_four_names(zone: str) -> None:
    made = conform(pa.table({"n": pa.array([1], pa.timestamp("ns", zone))}), Fields.parse("n DATETIME"), False)
    assert made.schema.field("n").type == pa.timestamp("ns", "+00:00")
    assert made["n"].view("int64").to_pylist() == [1]


def column(fields: str, array: Any, *, cast: bool = False) -> pa.Array:
    return conform(pa.table({"n": array}), Fields.parse(fields), cast)["n"]


def refused(fields: str, array: Any, *words: str, cast: bool = False) -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        column(fields, array, cast=cast)
    for word in ("column n", *words):
        assert word in str(failure.value), str(failure.value)


#: What changes a value or its meaning, and loses nothing: field, array, what comes out.
LOSSLESS = [
    ("n U8", pa.array([0, 255], pa.int64()), [0, 255]),
    ("n I64", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
    ("n F64", pa.array([2**53], pa.int64()), [float(2**53)]),
    ("n I32", pa.array([1.0, -3.0]), [1, -3]),
    ("n F32", pa.array([0.5, float("inf")]), [0.5, float("inf")]),
    ("n F64", pa.array([1.5], pa.float16()), [1.5]),
    ("n STRING", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ("n U8 OPTIONAL", pc.run_end_encode(pa.array([1, 1, None], pa.uint8())), [1, 1, None]),
    ("n I64 OPTIONAL", pa.nulls(2), [None, None]),
    ("n VEC<I64> OPTIONAL", pa.nulls(2), [None, None]),
    ("n ARRAY<I64, 2> OPTIONAL", pa.nulls(2), [None, None]),
    ("n BYTES", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("n ARRAY<U8, 2> OPTIONAL", pa.array([[1, 2], None, [3, 4]]), [[1, 2], None, [3, 4]]),
    ("n VEC<U8>", pa.array([[1, 2]], pa.list_(pa.uint8(), 2)), [[1, 2]]),
    ("n VEC<U8> OPTIONAL", pa.array([[1], None, []]), [[1], None, []]),
]


@pytest.mark.parametrize(("fields", "array", "values"), LOSSLESS, ids=lambda value: str(getattr(value, "type", "")) or None)
def test_what_changes_a_value_is_made_when_asked_for(fields: str, array: pa.Array, values: list[Any]) -> None:
    refused(fields, array, "cast=True")
    made = column(fields, array, cast=True)
    made.validate(full=True)
    assert made.type == arrow_type(Fields.parse(fields)[0].levels)
    assert made.to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "nanoseconds"),
    [
        (pa.timestamp("s", "UTC"), 10**9),
        (pa.timestamp("us", "Europe/Berlin"), 10**3),
        (pa.timestamp("ns", "America/New_York"), 1),
        (pa.timestamp("ns"), 1),
        (pa.timestamp("ms"), 10**6),
    ],
    ids=str,
)
def test_units_and_zones_of_timestamps_are_converted_when_asked_for(kind: pa.DataType, nanoseconds: int) -> None:
    array = pa.array([0, 7, -7], kind)
    refused("n DATETIME", array, "cast=True")
    assert column("n DATETIME", array, cast=True).view("int64").to_pylist() == [0, 7 * nanoseconds, -7 * nanoseconds]


#: What would lose something: field, array, the first row that does.
LOSSY = [
    ("n U8", pa.array([0, 256]), 1),
    ("n U8", pa.array([0, 1, -1]), 2),
    ("n I64", pa.array([1, 2**63], pa.uint64()), 1),
    ("n U64", pa.array([-1], pa.int64()), 0),
    ("n F32", pa.array([0.5, 0.1]), 1),
    ("n F32", pa.array([1e300]), 0),
    ("n F32", pa.array([2**24 + 1]), 0),
    ("n F64", pa.array([1, 2**63 - 1]), 1),
    ("n I64", pa.array([1.0, 1.5]), 1),
    ("n I64", pa.array([1.0, -0.0]), 1),
    ("n I64", pa.array([float("nan")]), 0),
    ("n DATETIME", pa.array([1, 2**62], pa.timestamp("s", "UTC")), 1),
    ("n ARRAY<U8, 2>", pa.array([[1, 2], [3]]), 1),
    ("n ARRAY<U8, 2> OPTIONAL", pa.array([[1, 2], None, [3, 256]]), 2),
    ("n VEC<U8>", pa.array([[], [1], [2, 256]]), 2),
]


@pytest.mark.parametrize(("fields", "array", "row"), LOSSY, ids=lambda value: str(getattr(value, "type", "")) or None)
def test_what_would_lose_something_is_refused_even_then_and_names_the_row(fields: str, array: pa.Array, row: int) -> None:
    refused(fields, array, f"row {row}", cast=True)


def test_a_nan_keeps_its_bits_or_is_refused() -> None:
    bits = pa.array([0x7FF8000000000001, 0x7FF0000000000000], pa.uint64()).view("float64")
    refused("n F32", bits, "row 0", cast=True)
    assert column("n F64", bits).view("uint64").to_pylist() == [0x7FF8000000000001, 0x7FF0000000000000]


@pytest.mark.parametrize(
    ("fields", "array"),
    [
        ("n U8", pa.array(["1"])),
        ("n STRING", pa.array([1])),
        ("n STRING", pa.array([b"x"])),
        ("n BYTES", pa.array(["x"])),
        ("n BOOL", pa.array([1])),
        ("n U8", pa.array([True])),
        ("n DATETIME", pa.array([1])),
        ("n DATETIME", pa.array([1], pa.date32())),
        ("n I64", pa.array([1], pa.timestamp("ns", "UTC"))),
        ("n I64", pa.array([[1]])),
        ("n VEC<I64>", pa.array([1])),
        ("n ARRAY<I64, 2>", pa.array([[1]], pa.list_(pa.int64(), 1))),
        ("n STRING", pa.array([{"x": 1}])),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_another_type_is_refused_and_both_are_named(fields: str, array: pa.Array) -> None:
    wanted = str(arrow_type(Fields.parse(fields)[0].levels))
    for cast in (False, True):
        refused(fields, array, wanted, str(array.type), "cannot be converted", cast=cast)


def test_a_null_in_a_required_field_names_column_and_first_row() -> None:
    refused("n U8", pa.array([1, None, None], pa.uint8()), "row 1", "required")
    refused("n VEC<U8>", pa.array([[1], None], pa.list_(pa.uint8())), "row 1", "required")
    refused("n ARRAY<U8, 1>", pa.array([[1], None], pa.list_(pa.uint8(), 1)), "row 1", "required")


@pytest.mark.parametrize(
    ("fields", "array", "row"),
    [
        ("n VEC<U8> OPTIONAL", pa.array([[1], None, [], [2, None]], pa.list_(pa.uint8())), 3),
        ("n ARRAY<U8, 2> OPTIONAL", pa.array([[1, 2], None, [2, None]], pa.list_(pa.uint8(), 2)), 2),
        ("n VEC<VEC<U8>> OPTIONAL", pa.array([[[1]], None, [[2], [None]]], pa.list_(pa.list_(pa.uint8()))), 2),
        ("n VEC<ARRAY<U8, 1>>", pa.array([[[1], [2]], [[3], None]], pa.list_(pa.list_(pa.uint8(), 1))), 1),
    ],
)
def test_a_null_inside_of_a_list_names_the_row(fields: str, array: pa.Array, row: int) -> None:
    refused(fields, array, f"row {row}", "element")


def test_what_lies_under_a_null_means_nothing() -> None:
    validity = pa.array([True, False]).buffers()[1]
    child = pa.array([1, 2, None, 300])
    fixed = pa.Array.from_buffers(pa.list_(pa.int64(), 2), 2, [validity], 1, children=[child])
    assert column("n ARRAY<U8, 2> OPTIONAL", fixed, cast=True).to_pylist() == [[1, 2], None]
    offsets = pa.array([0, 2, 4], pa.int32()).buffers()[1]
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [validity, offsets], 1, children=[child])
    made = column("n VEC<U8> OPTIONAL", lists, cast=True)
    made.validate(full=True)
    assert made.to_pylist() == [[1, 2], None]


def test_names_and_order_are_the_schema_s() -> None:
    fields = Fields.parse("a U8, b U8")
    one = pa.array([1], pa.uint8())
    for names, words in ((["b", "a"], "order"), (["a"], "nothing"), (["a", "c"], "a column c"), (["a", "b", "c"], "no field")):
        with pytest.raises(InvalidArgumentError, match=words):
            conform(pa.table(dict.fromkeys(names, one)), fields, True)


def test_misaligned_buffers_are_copied() -> None:
    raw = pa.py_buffer(b"x" + bytes(range(1, 17)))
    array = pa.Array.from_buffers(pa.uint64(), 2, [None, raw.slice(1)])
    assert array.buffers()[1].address % 8
    made = column("n U64", array)
    assert made.buffers()[1].address % 8 == 0
    assert made.equals(pa.array([0x0807060504030201, 0x100F0E0D0C0B0A09], pa.uint64()))


def test_a_frame_of_pandas_is_taken() -> None:
    frame = pd.DataFrame(
        {"id": [1, 2], "name": ["x", None], "at": pd.to_datetime([0, 1], unit="ns", utc=True).astype("datetime64[ns, UTC]")}
    )
    made = conform(frame, Fields.parse("id I64, name STRING OPTIONAL, at DATETIME"), False)
    assert made.to_pydict()["name"] == ["x", None]
    assert made["at"].view("int64").to_pylist() == [0, 1]


def test_arrow_data_that_is_no_batch_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no batch of columns"):
        conform(pa.array([1]), Fields.parse("n I64"), False)


class Stream:
    """A stream of another library, which is gone once it was asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table: pa.Table | None = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        assert self._table is not None, "it was asked for twice"
        table, self._table = self._table, None
        return table.to_reader().__arrow_c_stream__(requested_schema)


class Described(Stream):
    """One that can be looked at before that."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table)
        self._schema = table.schema

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()


@pytest.mark.parametrize("make", [pa.Table.to_reader, Described], ids=["pyarrow", "another library"])
def test_a_stream_whose_fields_do_not_fit_is_not_read(make: Callable[[pa.Table], Any]) -> None:
    fields = Fields.parse("n I64, names VEC<STRING> OPTIONAL")
    schema = pa.schema([pa.field("n", pa.int32()), pa.field("names", pa.list_(pa.string()))])
    stream = make(pa.table({"n": [1, 2], "names": [["a"], None]}, schema=schema))
    with pytest.raises(InvalidArgumentError, match="pass cast=True"):
        conform(stream, fields, False)
    with pytest.raises(InvalidArgumentError, match="column 0 should be m"):
        conform(stream, Fields.parse("m I64"), True)
    assert conform(stream, fields, True).to_pylist() == [{"n": 1, "names": ["a"]}, {"n": 2, "names": None}]


@pytest.mark.parametrize(
    "array",
    [
        pa.RunEndEncodedArray.from_arrays([2], [7]),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([7])]),
    ],
    ids=["run ends", "a union"],
)
def test_a_stream_of_any_type_is_refused_by_its_column(array: pa.Array) -> None:
    with pytest.raises(InvalidArgumentError, match="column n: I64"):
        conform(pa.table({"n": array}).to_reader(), Fields.parse("n I64"), False)


@pytest.mark.parametrize("make", [pa.Table.to_reader, Stream, Described], ids=["pyarrow", "another library", "with a schema"])
def test_a_stream_that_gives_nothing_is_refused_and_an_empty_table_is_none(make: Callable[[pa.Table], Any]) -> None:
    fields = Fields.parse("n I64")
    table = pa.table({"n": pa.array([1, 2], pa.int64())})
    stream = make(table)
    assert conform(stream, fields, False).num_rows == 2
    stream = stream if make is pa.Table.to_reader else make(table.slice(2))
    with pytest.raises(InvalidArgumentError, match=r"the stream gave no batch.*pass an empty table"):
        conform(stream, fields, False)
    assert conform(table.slice(2), fields, False).num_rows == 0
    assert conform(table.slice(2).to_pandas(), fields, False).num_rows == 0
    nothing = pa.RecordBatchReader.from_batches(table.schema, table.slice(2).to_batches() or [table.to_batches()[0][2:]])
    assert conform(pa.table(nothing), fields, False).num_rows == 0
    (batch,) = table.to_batches()
    for batches in ([batch[2:]], [batch[:0], batch[2:], batch[2:]], [batch[2:], batch, batch[2:]]):
        reader = pa.RecordBatchReader.from_batches(table.schema, batches)
        assert conform(reader, fields, False).num_rows == sum(map(len, batches)), "a batch without rows is one"


def test_no_message_shows_a_value() -> None:
    for cast, array in ((True, pa.array([987654321])), (True, pa.array(["hunter2"])), (False, pa.array(["hunter2"]))):
        with pytest.raises(InvalidArgumentError) as failure:
            column("n U8", array, cast=cast)
        assert "987654321" not in str(failure.value)
        assert "hunter2" not in str(failure.value)
