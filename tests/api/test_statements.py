"""What subscribe sends."""

from __future__ import annotations

from typing import Any

import pytest

from nervix_ffi import InvalidArgumentError
from nervix_ffi.subscription import subscribe_statement

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
