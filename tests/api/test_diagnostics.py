"""A diagnostic points at what it is about."""

from __future__ import annotations

import pytest

from nervix_ffi import Diagnostic


@pytest.mark.parametrize(
    ("query", "span", "drawn"),
    [
        ("CREATE RELAY;", (12, 13), "1 | CREATE RELAY;\n  |             ^"),
        ("CREATE RELAY;", (12, 12), "1 | CREATE RELAY;\n  |             ^"),
        ("CREATE RELAY", (12, 12), "1 | CREATE RELAY\n  |             ^"),
        ("A;\nB wrong;\nC;", (5, 10), "2 | B wrong;\n  |   ^^^^^"),
        ("é wrong", (3, 8), "1 | é wrong\n  |   ^^^^^"),
        ("世界 wrong", (7, 12), "1 | 世界 wrong\n  |      ^^^^^"),
        ("\twrong", (1, 6), "1 |     wrong\n  |     ^^^^^"),
        ("a\0b wrong", (4, 9), "1 | a\N{REPLACEMENT CHARACTER}b wrong\n  |     ^^^^^"),
        ("one\ntwo", (2, 6), "1 | one\n  |   ^"),
        ("short", (90, 99), "1 | short\n  |      ^"),
    ],
)
def test_the_mark_is_under_the_part_in_question(query: str, span: tuple[int, int], drawn: str) -> None:
    assert Diagnostic("why", span).draw(query) == f"why\n{drawn}"


def test_a_diagnostic_without_a_span_is_its_message() -> None:
    assert Diagnostic("why").draw("query") == "why"
