"""A diagnostic points at what it is about."""

from __future__ import annotations

import pytest

from nervix_ffi import Diagnostic, Disposition, Outcome


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


@pytest.mark.parametrize("filling", ["x", "世", "é", "\t"])
@pytest.mark.parametrize("size", [1_000, 2_000_000])
def test_of_a_long_line_only_what_is_around_the_mark_is_drawn(filling: str, size: int) -> None:
    many = filling * size
    query = f"CREATE RELAY {many} wrong {many};"
    start = query.encode().index(b"wrong")
    line, mark = Diagnostic("why", (start, start + 5)).draw(query, message=False).splitlines()
    assert line.startswith("1 | …")
    assert line.endswith("…")
    assert " wrong " in line
    assert len(line) < 200
    assert mark.endswith(" ^^^^^")
    assert len(mark) < 200
    whole = Diagnostic("why", (13, 13 + len(many.encode()))).draw(query, message=False).splitlines()
    assert all(len(part) < 200 for part in whole), "the part in question is long itself"
    assert whole[0].startswith("1 | CREATE RELAY ")
    assert "^" in whole[1]


def test_what_was_said_already_is_not_said_again() -> None:
    remarks = (Diagnostic("expected a name", (12, 13)), Diagnostic("expected a name"), Diagnostic("and more", (0, 6)))
    outcome = Outcome(Disposition.FAILED, "expected a name", None, remarks)
    assert outcome.describe("CREATE RELAY;").splitlines() == [
        "the command ended FAILED: expected a name",
        "1 | CREATE RELAY;",
        "  |             ^",
        "and more",
        "1 | CREATE RELAY;",
        "  | ^^^^^^",
    ]
