"""One exception class an error kind."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable

import pytest

import nervix_ffi
from nervix_ffi import Disposition, ErrorKind, EventOverflowError, Outcome, Overflow
from nervix_ffi._native import _advised
from nervix_ffi.errors import ERROR_CLASSES, CommandFailed, Error, UncertainError

Run = Callable[[str], subprocess.CompletedProcess[str]]


def test_every_kind_has_a_class_of_its_own() -> None:
    assert set(ERROR_CLASSES) == set(ErrorKind)
    assert len(set(ERROR_CLASSES.values())) == len(ErrorKind)
    for kind, made in ERROR_CLASSES.items():
        assert made.kind == kind
        assert getattr(nervix_ffi, made.__name__) is made


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(ErrorKind.DEADLINE, TimeoutError), (ErrorKind.INVALID_ARGUMENT, ValueError), (ErrorKind.TYPE, TypeError)],
)
def test_a_kind_that_python_has_a_word_for_is_that_too(kind: ErrorKind, builtin: type[Exception]) -> None:
    assert issubclass(ERROR_CLASSES[kind], builtin)
    assert issubclass(ERROR_CLASSES[kind], Error)


def test_each_kind_is_raised_as_its_class(with_fake: Run) -> None:
    with_fake(
        """
        from nervix_ffi.errors import ERROR_CLASSES
        with connect("http://fake") as session:
            for kind in ErrorKind:
                try:
                    session.execute(f"error {kind.value}")
                except Error as failure:
                    assert type(failure) is ERROR_CLASSES[kind] and failure.kind is kind, failure
                    assert failure.reference == "reference-1" and failure.execution.query == f"error {kind.value}"
                    assert (failure.refusal is OpenRefusal.DOMAIN_STOPPED) == (kind is ErrorKind.REJECTED)
                else:
                    raise AssertionError(kind)
            try:
                session.execute("error 200")
            except Error as failure:
                assert type(failure) is Error and failure.kind == 200
        nothing_is_left()
        """
    )


@pytest.mark.rule("B-1", "N-2", "N-3")
def test_an_error_after_which_a_command_may_have_happened_says_so_and_offers_the_same_execution(with_fake: Run) -> None:
    with_fake(
        """
        with connect("http://fake") as session:
            for kind in (ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED):
                try:
                    session.execute(f"error {kind.value}")
                except Error as failure:
                    assert "reference-1 may have happened" in str(failure), failure
                    execution = failure.execution
            before = fake.fake_executed()
            try:
                execution.run()
            except CancelledError as again:
                assert again.execution is execution
            assert fake.fake_executed() == before + 1
        """
    )


def test_an_outcome_that_the_server_does_not_know_is_uncertain(with_fake: Run) -> None:
    with_fake(
        """
        with connect("http://fake") as session:
            try:
                session.execute("end 6")
            except UncertainError as failure:
                assert failure.reference == "reference-1" and failure.outcome.disposition is Disposition.OUTCOME_UNKNOWN
            try:
                session.execute("end 8")
            except ReferenceExpired as failure:
                assert failure.reference and failure.outcome.disposition is Disposition.EXECUTION_REFERENCE_EXPIRED
                assert isinstance(failure, UncertainError) and not isinstance(failure, CommandNotCompleted)
            assert session.execute("end 8", check=False).disposition is Disposition.EXECUTION_REFERENCE_EXPIRED
            assert session.execute("end 77", check=False).disposition == 77
        """
    )


def test_a_failed_command_shows_the_diagnostic_under_the_statement(with_fake: Run) -> None:
    with_fake(
        r"""
        with connect("http://fake") as session:
            try:
                session.execute("fail here")
            except CommandFailed as failure:
                assert str(failure) == (
                    "the command ended FAILED: a message\nunexpected word\n1 | fail here\n  |      ^^^^\nno place in particular"
                ), str(failure)
                assert [remark.span for remark in failure.diagnostics] == [(5, 9), None]
            outcome = session.execute("fail here", check=False)
            assert outcome.disposition is Disposition.FAILED and not outcome.completed
        """
    )


def test_errors_survive_pickling() -> None:
    failure = UncertainError("what happened")
    failure.reference = "reference-1"
    again = pickle.loads(pickle.dumps(failure))
    assert (type(again), str(again), again.reference) == (UncertainError, "what happened", "reference-1")
    failed = CommandFailed("x", Outcome(Disposition.FAILED, "no", "reference-1"))
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)


@pytest.mark.parametrize(
    "said",
    [
        "the command was not sent: the deadline passed",
        "the command was not sent; execute the same execution again to run it",
        "it may have happened; execute the same execution again to learn its outcome",
    ],
)
@pytest.mark.parametrize("kind", [ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED])
def test_advice_is_given_once_and_never_against_what_was_said(said: str, kind: ErrorKind) -> None:
    assert _advised(said, kind, "reference-1") == f"{said} (reference reference-1)"
    assert _advised(f"{said} as reference-1", kind, "reference-1") == f"{said} as reference-1"


def test_lost_events_say_how_to_keep_up() -> None:
    assert "BATCH SAMPLE RATE" in _advised("events could not be kept", ErrorKind.OVERFLOW, None)
    for kind in (EventOverflowError, Overflow):
        assert kind.__doc__ is not None
        assert "sample_rate" in kind.__doc__
