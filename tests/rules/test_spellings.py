"""A statement means the same however it is written: what is sent for it, and what the session keeps account of."""

from __future__ import annotations

import gc

import pytest

import nervix_ffi
from nervix_ffi import Disposition
from nervix_ffi._statement import recognise
from nervix_ffi.enums import StatementKind
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, Running, sent
from .test_transactions import SCHEMA, applied, exists, transactions
from .test_transactions_and_others import annex, domain_of
from .test_unfinished_transactions import LATER

__all__ = ["annex"]

Session = nervix_ffi.Session

WAYS = [
    "{}",
    "{};",
    "{};;",
    ";{};",
    "{} ; ;",
    "\n\t{}\x0b;",
    "{} // c\n;",
    "{};// c",
    "// x; y\n{}; // z\n",
    "// COMMIT;\n{}\n// REVERT;",
]


def spelled(way: str, statement: str, inner: str = " ") -> str:
    """A statement written in one of the ways, with something else between its words."""
    return way.format(inner.join(statement.split()))


every_way = pytest.mark.parametrize("way", WAYS)
between = pytest.mark.parametrize("inner", [" ", "\n", " // b; c\n "])


@pytest.mark.rule("L-1", "L-2")
@every_way
@between
def test_what_a_text_asks_for_is_known_however_it_is_written(way: str, inner: str) -> None:
    for statement, kind, name in (
        ("BEGIN", StatementKind.BEGIN, ""),
        ("commit", StatementKind.COMMIT, ""),
        ("Revert", StatementKind.REVERT, ""),
        ("USE a-b.c", StatementKind.USE, "a-b.c"),
        ("create subscription s TO r", StatementKind.SUBSCRIBE, ""),
        ("DELETE SUBSCRIPTION s", StatementKind.UNSUBSCRIBE, "s"),
        ("ATTACH DOMAIN CLOCK", StatementKind.ATTACH_CLOCK, ""),
        ("DETACH DOMAIN CLOCK", StatementKind.DETACH_CLOCK, ""),
        ("SHOW SCHEMAS", StatementKind.OTHER, ""),
        ("CREATE SCHEMA begin (commit STRING)", StatementKind.OTHER, ""),
        ("CREATE SCHEMA x (a STRING DEFAULT 'BEGIN;COMMIT')", StatementKind.OTHER, ""),
        ("USE a b", StatementKind.OTHER, ""),
    ):
        found = recognise(spelled(way, statement, inner))
        assert found == (kind, kind == StatementKind.BEGIN, name), statement


@pytest.mark.rule("L-2", "E-7")
@pytest.mark.parametrize(
    ("query", "kind", "begins"),
    [
        ("CREATE SCHEMA a (b U8); COMMIT;", StatementKind.COMMIT, False),
        ("CREATE SCHEMA a (b U8); REVERT;", StatementKind.REVERT, False),
        ("BEGIN; CREATE SCHEMA a (b U8);", StatementKind.BEGIN, True),
        ("BEGIN; CREATE SCHEMA a (b U8); COMMIT;", StatementKind.COMMIT, True),
        ("CREATE SCHEMA a (b U8); CREATE SCHEMA c (b U8);", StatementKind.OTHER, False),
        ("USE a; COMMIT;", StatementKind.OTHER, False),
        ("", StatementKind.OTHER, False),
        (";;", StatementKind.OTHER, False),
    ],
)
def test_several_statements_are_what_ends_or_begins_a_transaction_among_them(
    query: str, kind: StatementKind, begins: bool
) -> None:
    assert recognise(query) == (kind, begins, "")


@pytest.mark.rule("L-1")
@every_way
@between
def test_a_selected_domain_is_that_of_whatever_comes_next(
    node: LoopbackNode, session: Session, annex: str, way: str, inner: str
) -> None:
    assert session.execute(spelled(way, f"USE {annex}", inner), timeout=PATIENCE).completed
    assert session.domain == annex
    assert session.execute(LATER, timeout=PATIENCE).completed
    assert domain_of(node, "SCHEMA later") == [annex]
    session.use(f"{DOMAIN};")
    assert session.domain == DOMAIN


@pytest.mark.rule("S-6")
@every_way
@between
def test_a_subscription_deleted_by_a_statement_ends_its_readers(session: Session, way: str, inner: str) -> None:
    subscription = session.subscribe("readings", name="s")
    reading = Running(lambda: list(subscription))
    assert session.execute(spelled(way, "DELETE SUBSCRIPTION s", inner), timeout=PATIENCE).completed
    assert reading.result() == []
    assert subscription.delete() is None


@pytest.mark.rule("K-1", "B-11")
@every_way
@between
def test_a_clock_detached_by_a_statement_ends_its_readers(session: Session, way: str, inner: str) -> None:
    clock = session.attach_clock()
    reading = Running(lambda: list(clock))
    assert session.execute(spelled(way, "DETACH DOMAIN CLOCK", inner), timeout=PATIENCE).completed
    reading.result()
    assert session.domain_clock() is None
    with pytest.raises(nervix_ffi.ClosedError, match="followed no longer"):
        clock.next(timeout=PATIENCE)
    with session.attach_clock() as again:
        assert again.read() is not None


@pytest.mark.rule("E-3", "X-3", "X-5")
@every_way
@pytest.mark.parametrize("by", ["transaction", "session", "execution"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_commit_is_made_once_however_it_is_written_and_whoever_calls_it(
    node: LoopbackNode, session: Session, way: str, by: str, lost: bool
) -> None:
    commit = spelled(way, "COMMIT")
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        if lost:
            # It did not arrive, and the block ends as if nothing had been the matter.
            node.control("cut", how="abort", direction="in", when="before", kind="CommandRequest")
            node.control("accept", mode="refuse")
        timeout = 0.2 if lost else PATIENCE
        try:
            if by == "transaction":
                assert tx.execute(commit, timeout=timeout).completed
            elif by == "session":
                assert session.execute(commit, timeout=timeout).completed
            else:
                with session.prepare(commit) as execution:
                    assert execution.run(timeout=timeout).completed
            assert not lost
            assert tx.finished
        except nervix_ffi.DeadlineError as failure:
            assert lost
            reference = failure.reference
        node.control("accept", mode="accept")
    assert tx.finished
    assert applied(node) == {append.reference: 1}
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
    if lost:
        with session.prepare(commit, reference=reference, position=1, preview=tx.preview) as again:
            assert again.run(timeout=PATIENCE).origin == nervix_ffi.Origin.RECOVERED


@pytest.mark.rule("X-3", "X-7")
@every_way
@pytest.mark.parametrize("by", ["transaction", "session"])
def test_a_revert_reverts_however_it_is_written_and_whoever_calls_it(
    node: LoopbackNode, session: Session, way: str, by: str
) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        revert = spelled(way, "REVERT")
        caller = tx if by == "transaction" else session
        assert caller.execute(revert, timeout=PATIENCE).completed
        assert tx.finished
    assert not exists(node, "SCHEMA made")
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]


@pytest.mark.rule("X-4", "E-7")
@pytest.mark.parametrize("end", ["COMMIT;", "REVERT;"])
def test_statements_and_the_end_of_their_transaction_go_together(node: LoopbackNode, session: Session, end: str) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        outcome = tx.execute(f"{LATER} {end}", timeout=PATIENCE)
        assert outcome.completed
        assert outcome.statements is not None
        assert [one.disposition for one in outcome.statements] == [Disposition.COMPLETED] * 2
        assert tx.finished
    for name in ("made", "later"):
        assert exists(node, f"SCHEMA {name}") == (end == "COMMIT;")


@pytest.mark.rule("X-3")
@pytest.mark.parametrize("statement", ["CREATE SCHEMA begin (begin U32);", "SHOW TRANSACTIONS; // BEGIN"])
def test_a_word_that_looks_like_one_begins_no_transaction(session: Session, statement: str) -> None:
    session.execute(statement, timeout=PATIENCE)
    session.transaction().begin(timeout=PATIENCE)
    gc.collect()
    # What the host keeps account of itself goes in as it is; this it does not.
    with pytest.raises(nervix_ffi.RejectedError, match="nothing was sent"):
        session.execute(LATER, timeout=PATIENCE)


@pytest.mark.rule("L-2")
def test_no_statement_that_goes_alone_is_sent_with_others(node: LoopbackNode, session: Session) -> None:
    before = sent(node, "CommandRequest")
    outcome = session.execute("DELETE SUBSCRIPTION s; DROP RELAY readings;", timeout=PATIENCE, check=False)
    assert outcome.disposition == Disposition.FAILED
    assert outcome.decided_locally
    assert sent(node, "CommandRequest") == before
