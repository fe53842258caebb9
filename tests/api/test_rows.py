"""Rows of Python values become the columns of a batch, or are refused with the column and the row named."""

from __future__ import annotations

import struct
from collections import OrderedDict, UserList
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from nervix_ffi import REDACTED, CellState, Fields, InvalidArgumentError, Type
from nervix_ffi._rows import fill
from nervix_ffi.batch import BatchBuilder
from nervix_ffi.column import FORMATS
from nervix_ffi.schema import Field

from .test_convert import fields_and_rows

pytestmark = pytest.mark.rule("B-13")


class Recorder:
    """What a builder is given, column by column, level by level."""

    def __init__(self) -> None:
        self.states_of: dict[int, bytes] = {}
        self.offsets_of: dict[tuple[int, int], list[int]] = {}
        self.fixed_of: dict[int, bytes] = {}
        self.varlen_of: dict[int, tuple[list[int], bytes]] = {}

    def states(self, column: int, states: bytes) -> None:
        self.states_of[column] = states

    def offsets(self, column: int, level: int, offsets: Any) -> None:
        self.offsets_of[column, level] = list(offsets)

    def fixed(self, column: int, level: int, values: bytes) -> None:
        self.fixed_of[column] = values

    def varlen(self, column: int, level: int, offsets: Any, data: bytes) -> None:
        self.varlen_of[column] = (list(offsets), data)

    def read(self, column: int, field: Field, rows: int) -> list[Any]:
        """The values of a column, read back from what was given."""
        kind = Type(field.levels[-1].type)
        cells: list[Any]
        if column in self.varlen_of:
            ends, data = self.varlen_of[column]
            cells = [data[start:end] for start, end in zip(ends, ends[1:])]
            cells = [cell.decode("utf-8") for cell in cells] if kind == Type.STRING else cells
        else:
            data = self.fixed_of[column]
            letter, width = FORMATS[kind]
            cells = list(struct.unpack(f"={len(data) // width}{letter}", data))
        for level in range(len(field.levels) - 2, -1, -1):
            length = field.levels[level].length
            ends = self.offsets_of.get((column, level)) or list(range(0, len(cells) + 1, length or 1))
            cells = [cells[start:end] for start, end in zip(ends, ends[1:])]
        states = self.states_of.get(column, bytes([CellState.VALUE]) * rows)
        assert len(states) == len(cells) == rows
        return [cell if state == CellState.VALUE else None for cell, state in zip(cells, states)]


def filled(fields: Fields, rows: list[Any]) -> list[list[Any]]:
    """Every column, through a builder and back."""
    recorder = Recorder()
    fill(cast(BatchBuilder, recorder), fields, rows)
    return [recorder.read(index, field, len(rows)) for index, field in enumerate(fields)]


@settings(deadline=None)
@given(fields_and_rows())
def test_every_value_arrives_as_it_is(made: tuple[Fields, list[dict[str, Any]]]) -> None:
    fields, rows = made
    assert filled(fields, rows) == [[row[field.name] for row in rows] for field in fields]


def column(fields: str, *values: Any) -> list[Any]:
    return filled(Fields.parse(fields), [{"n": value} for value in values])[0]


def test_a_name_that_is_missing_is_a_null() -> None:
    assert filled(Fields.parse("a U8 OPTIONAL, b U8"), [{"b": 1}, {"a": 2, "b": 3}]) == [[None, 2], [1, 3]]


def test_any_mapping_is_a_row_and_any_sequence_a_list() -> None:
    rows = [OrderedDict(n=(1, 2)), MappingProxyType({"n": UserList([3])})]
    assert filled(Fields.parse("n VEC<U8>"), rows) == [[[1, 2], [3]]]


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert column("n U8", np.uint64(3), True.__index__()) == [3, 1]
    assert column("n F64", np.float32(0.5), np.float64(0.1), 2) == [0.5, 0.1, 2.0]


def test_a_float_is_rounded_to_the_nearest_f32() -> None:
    assert column("n F32", 0.1) == [struct.unpack("f", struct.pack("f", 0.1))[0]]
    assert column("n F32", float("inf"), -0.0, 3) == [float("inf"), -0.0, 3.0]


def test_instants_are_nanoseconds_or_datetimes_with_a_zone() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    assert column("n DATETIME", 5, noon, pd.Timestamp(7, unit="ns", tz="UTC")) == [5, 1_893_495_600_000_000_000, 7]


def test_bytes_are_bytes() -> None:
    assert column("n BYTES", b"a", bytearray(b"b"), memoryview(b"c")) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("fields", "values", "row", "words"),
    [
        ("n U8", [1, 256], 1, "range of U8"),
        ("n U8", [-1], 0, "range of U8"),
        ("n I64", [2**63], 0, "range of I64"),
        ("n U8", [True], 0, "bool is no integer"),
        ("n U8", [1.0], 0, "float is no integer"),
        ("n U8", ["1"], 0, "str is no integer"),
        ("n BOOL", [1], 0, "no bool"),
        ("n STRING", [b"x"], 0, "no text"),
        ("n STRING", ["ok", "\ud800"], 1, "surrogate"),
        ("n BYTES", ["x"], 0, "no bytes"),
        ("n F64", ["1.0"], 0, "no float"),
        ("n F64", [True], 0, "bool is no float"),
        ("n F64", [2**53 + 1], 0, "rounded"),
        ("n F32", [2**24 + 1], 0, "rounded"),
        ("n F32", [1e300], 0, "range of F32"),
        ("n F64", [10**400], 0, "rounded"),
        ("n DATETIME", [2**63], 0, "64 bits"),
        ("n DATETIME", [1.5], 0, "no integer"),
        ("n DATETIME", [datetime(2030, 1, 1)], 0, "no zone"),
        ("n U8", [1, None], 1, "required"),
        ("n U8", [REDACTED], 0, "withheld"),
        ("n STRING", [REDACTED], 0, "withheld"),
        ("n VEC<U8>", [[1], "ab"], 1, "no list"),
        ("n VEC<U8>", [[1], {1: 2}], 1, "no list"),
        ("n VEC<U8>", [[], [], [1, 256]], 2, "range of U8"),
        ("n VEC<U8>", [[1], [], [None]], 2, "element"),
        ("n ARRAY<U8, 2>", [[1, 2], [3]], 1, "a list of 1 where 2 belong"),
        ("n VEC<ARRAY<U8, 2>>", [[[1, 2]], [], [[1, 2], [3, 4], [5]]], 2, "a list of 1 where 2 belong"),
        ("n VEC<VEC<STRING>>", [[["a"]], [["b"], [1]]], 1, "no text"),
    ],
)
def test_a_value_that_a_field_does_not_hold_names_column_and_row(fields: str, values: list[Any], row: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        column(fields, *values)
    assert f"column n ({Fields.parse(fields)[0].spelling}), row {row}: " in str(failure.value)
    assert words in str(failure.value)


def test_a_row_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="row 1 is a list"):
        filled(Fields.parse("n U8"), [{"n": 1}, [1]])
    with pytest.raises(InvalidArgumentError, match="row 1 has a value for 'm'; the fields are n"):
        filled(Fields.parse("n U8"), [{"n": 1}, {"n": 1, "m": 2}])


def test_no_message_shows_a_value() -> None:
    for fields, value in (("n U8", 987654321), ("n U8", "hunter2"), ("n STRING", 987654321), ("n VEC<U8>", "hunter2")):
        with pytest.raises(InvalidArgumentError) as failure:
            column(fields, value)
        assert "987654321" not in str(failure.value)
        assert "hunter2" not in str(failure.value)
