"""What subscribe sends."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from nervix_ffi import InvalidArgumentError
from nervix_ffi.subscription import statement_of, subscribe_statement

ABSENT: dict[str, Any] = {"where": None, "name": None, "delivery": None, "sample_rate": None}


def test_a_relay_and_options_become_one_statement() -> None:
    made = subscribe_statement("r", where="delay > 15", name="s", delivery="BLOCKING", sample_rate=0.5)
    assert made == "CREATE SUBSCRIPTION s TO r BLOCKING BATCH SAMPLE RATE 0.5 WHERE delay > 15;"


def test_a_name_is_made_up_when_none_is_given() -> None:
    first, second = subscribe_statement("r", **ABSENT), subscribe_statement("r", **ABSENT)
    assert first != second
    assert first.startswith("CREATE SUBSCRIPTION s_")


def test_a_whole_statement_goes_as_it_is() -> None:
    statement = "\n create  subscription s TO r;"
    assert subscribe_statement(statement, **ABSENT) == statement


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("CREATE SUBSCRIPTION s TO r;", {"where": "a"}),
        ("r; DROP RELAY r", {}),
        ("", {}),
        ("r", {"name": "two words"}),
        ("r", {"delivery": "SOMETIMES"}),
        ("r", {"sample_rate": 0}),
        ("r", {"sample_rate": 1.5}),
        ("r", {"sample_rate": float("nan")}),
    ],
)
def test_what_would_make_another_statement_is_refused(source: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        subscribe_statement(source, **{**ABSENT, **options})


@pytest.mark.parametrize(
    ("rate", "written"),
    [
        (1, "1.0"),
        (1.0, "1.0"),
        (0.25, "0.25"),
        (0.123456789, "0.123456789"),
        (1e-7, "0.0000001"),
        (0.1 + 0.2, "0.30000000000000004"),
        (Decimal("0.10"), "0.10"),
    ],
)
def test_a_sample_rate_is_written_as_it_is(rate: Any, written: str) -> None:
    made = subscribe_statement("r", **{**ABSENT, "name": "s", "sample_rate": rate})
    assert made == f"CREATE SUBSCRIPTION s TO r BATCH SAMPLE RATE {written};"
    assert float(written) == float(rate)


@pytest.mark.parametrize("comment", ["// one\n", " \n//\n// CREATE SUBSCRIPTION\n\t", "//\r\n"])
def test_a_whole_statement_may_begin_with_comments(comment: str) -> None:
    statement = f"{comment}create subscription s TO r;"
    assert subscribe_statement(statement, **ABSENT) == statement


@pytest.mark.parametrize(
    ("query", "bare"),
    [
        ("USE d;", "USE d;"),
        ("// why\n USE d; // so\n", "USE d;"),
        ("USE d; USE e;", "USE d; USE e;"),
        ("// all of it", ""),
        (" " * 100_000 + "x; " + " " * 100_000 + "y", "x; " + " " * 100_000 + "y"),
    ],
)
def test_a_statement_is_known_without_the_comments_around_it(query: str, bare: str) -> None:
    assert statement_of(query) == bare


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (None, {}, "source is the name of a relay"),
        (b"r", {}, "source is the name of a relay"),
        ("r", {"where": 1}, "where is text"),
        ("r", {"name": b"s"}, "name is text"),
        ("r", {"delivery": 5}, "delivery is text"),
        ("r", {"sample_rate": "0.5"}, "sample_rate is a number"),
        ("r", {"sample_rate": True}, "sample_rate is a number"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(source: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        subscribe_statement(source, **{**ABSENT, **options})
