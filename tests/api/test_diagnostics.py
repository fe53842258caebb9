"""A diagnostic points at what it is about."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nervix_ffi import Diagnostic, Disposition, Outcome, StatementOutcome, SubmissionOutcome, SubmissionResult


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


def failed(message: str, *remarks: Diagnostic) -> StatementOutcome:
    return StatementOutcome(Disposition.FAILED, already_existed=False, message=message, diagnostics=remarks)


def test_of_many_diagnostics_the_first_are_drawn_and_the_others_counted() -> None:
    statements = tuple(failed("no", Diagnostic(f"remark {number}", (0, 6)), Diagnostic("of all")) for number in range(100))
    text = Outcome(Disposition.FAILED, "no", None, statements=statements).describe("CREATE RELAY;")
    lines = text.splitlines()
    assert lines[:5] == ["the command ended FAILED: no", "remark 0", "1 | CREATE RELAY;", "  | ^^^^^^", "of all"]
    assert text.count("of all") == 1
    assert "remark 18\n" in text
    assert "remark 19\n" not in text
    assert lines[-1] == "… and 81 more"


def test_an_outcome_of_a_hundred_thousand_diagnostics_is_told_at_once() -> None:
    query = "CREATE RELAY;" * 100
    statements = tuple(failed("no", Diagnostic("why", (start, start + 1 + start // 1000))) for start in range(100_000))
    outcome = Outcome(Disposition.FAILED, "no", None, statements=statements)
    before = time.process_time()
    text = outcome.describe(query)
    assert time.process_time() - before < 5, "each was compared with all others: that takes minutes"
    assert text.endswith("… and 99980 more")


TEXTS = st.text() | st.builds(lambda text: text * 10_000, st.text(min_size=1, max_size=3))
REMARKS = st.builds(Diagnostic, TEXTS, st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)))
STATEMENTS = st.lists(st.builds(lambda remarks: failed("no", *remarks), st.lists(REMARKS, max_size=4)), max_size=30).map(tuple)


@given(TEXTS, st.lists(REMARKS, max_size=30).map(tuple), st.none() | STATEMENTS, TEXTS)
def test_whatever_a_server_says_the_text_of_an_outcome_is_short_and_harmless(
    message: str, remarks: tuple[Diagnostic, ...], statements: tuple[StatementOutcome, ...] | None, query: str
) -> None:
    text = Outcome(Disposition.FAILED, message, None, remarks, statements=statements).describe(query)
    batch = SubmissionOutcome(SubmissionResult.PROCESSING_FAILED, message).describe()
    assert len(text) < 100_000
    assert len(batch) < 5_000
    assert all(line.isprintable() for line in [*text.split("\n"), *batch.split("\n")])
