"""Transactions: appended one by one, carried out together, each operation exactly once, whatever happens on the way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Disposition, Origin, TransactionState
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, GRAPH, PATIENCE, Running, connect, counts, next_event, publish, read_ids, row_ids, sent, wait

SCHEMA = "CREATE SCHEMA made (id U32);"
RELAY = "CREATE RELAY made_rows SCHEMA made UNBRANCHED;"

#: What the scripted transaction appends, one command each.
STEPS = [SCHEMA, RELAY, "CREATE RELAY more_rows SCHEMA made UNBRANCHED; ALTER SCHEMA reading ADD extra STRING OPTIONAL;"]


def exists(node: LoopbackNode, what: str) -> bool:
    """Whether the graph has a model, asked past every session."""
    try:
        node.control("execute", domain=DOMAIN, statement=f"SHOW CREATE {what};")
    except nervix_ffi.testing.LoopbackError:
        return False
    return True


def transactions(node: LoopbackNode) -> list[dict[str, Any]]:
    """The node's transactions."""
    return node.transactions()


def forbidden(node: LoopbackNode) -> dict[str, int]:
    """What sessions asked for that the transaction they held forbade."""
    found: dict[str, int] = counts(node)["forbidden_in_transaction"]
    return found


def applied(node: LoopbackNode) -> dict[str, int]:
    """How many statements of each command's reference a commit carried out."""
    found: dict[str, int] = counts(node)["applied"]
    return found


def run_script(session: nervix_ffi.Session) -> list[nervix_ffi.Outcome]:
    """The scripted transaction from BEGIN to COMMIT; its appends' outcomes."""
    with session.transaction(timeout=PATIENCE) as tx:
        outcomes = [tx.execute(step, timeout=PATIENCE) for step in STEPS]
        assert tx.status is not None
        assert tx.status.accepted == 4
    assert tx.status.state == TransactionState.COMMITTED
    return outcomes


def check_script(node: LoopbackNode, outcomes: list[nervix_ffi.Outcome]) -> None:
    """Every operation took effect exactly once, and nothing was asked for that the transaction forbids."""
    assert [outcome.admission.operation for outcome in outcomes if outcome.admission is not None] == [1, 2, 4]
    assert [applied(node)[outcome.reference or ""] for outcome in outcomes] == [1, 1, 2]
    assert sum(applied(node).values()) == 4
    assert forbidden(node) == {}
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
    assert exists(node, "RELAY made_rows")
    assert exists(node, "RELAY more_rows")


@pytest.mark.rule("X-1", "X-2", "X-3", "SM-3")
def test_what_is_appended_is_carried_out_at_the_end_of_the_block(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.transaction() as tx:
        assert tx.status is not None
        assert (tx.status.state, tx.status.accepted, tx.domain) == (TransactionState.OPEN, 0, DOMAIN)
        assert tx.id == transactions(node)[0]["id"]
        assert tx.preview is None
        first = tx.execute(SCHEMA, timeout=PATIENCE)
        assert first.admission == tx.admission
        assert (tx.status.accepted, tx.status.applied) == (1, 0)
        assert not exists(node, "SCHEMA made")
        second = tx.execute(RELAY, timeout=PATIENCE)
        assert tx.admission is not None
        assert tx.admission.operation == tx.admission.preview.position == 2
        assert len(tx.admission.preview.basis) == 32
        assert [it["state"] for it in transactions(node)] == ["OPEN"]
    assert tx.finished
    assert (tx.status.state, tx.status.accepted, tx.status.applied) == (TransactionState.COMMITTED, 2, 2)
    assert exists(node, "RELAY made_rows")
    assert applied(node) == {first.reference: 1, second.reference: 1}
    # The session goes on outside of any transaction.
    assert session.execute("CREATE SCHEMA after (id U32);", timeout=PATIENCE).transaction is None


@pytest.mark.rule("N-2", "X-3")
def test_a_block_that_raises_reverts(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with pytest.raises(ZeroDivisionError), session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        _ = 1 / 0
    assert tx.finished
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert not exists(node, "SCHEMA made")
    assert session.execute(SCHEMA, timeout=PATIENCE).completed


@pytest.mark.rule("N-2", "E-3", "D-4")
def test_a_block_that_could_not_begin_in_time_leaves_no_transaction(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="CommandRequest", when="after", millis=300)
    with pytest.raises(nervix_ffi.DeadlineError), session.transaction(timeout=0.1):
        pytest.fail("it began")
    assert session.execute(SCHEMA, timeout=PATIENCE).completed
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert exists(node, "SCHEMA made")


@pytest.mark.parametrize("wrong", [5, b"DROP", None])
def test_what_is_no_statement_and_no_preview_is_a_type_error(session: nervix_ffi.Session, wrong: Any) -> None:
    with session.transaction() as tx:
        with pytest.raises(TypeError, match="query"):
            tx.execute(wrong)
        with pytest.raises(TypeError, match="expected_preview"):
            tx.commit(expected_preview="x")  # type: ignore[arg-type]
    assert tx.finished


@pytest.mark.rule("X-3")
def test_a_transaction_is_committed_and_reverted_by_hand_and_then_over(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.transaction() as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        outcome = tx.commit(timeout=PATIENCE)
        assert outcome.completed
        assert exists(node, "SCHEMA made")
        calls: list[Callable[[], object]] = [tx.commit, tx.revert, lambda: tx.execute(RELAY)]
        for call in calls:
            with pytest.raises(nervix_ffi.InvalidArgumentError, match="finished"):
                call()
    with session.transaction() as tx:
        tx.execute(RELAY, timeout=PATIENCE)
        tx.revert(timeout=PATIENCE)
    with session.transaction() as tx:
        tx.execute(RELAY, timeout=PATIENCE)
        tx.execute("COMMIT;", timeout=PATIENCE)
    assert [it["state"] for it in transactions(node)] == ["COMMITTED", "REVERTED", "COMMITTED"]
    late = session.transaction()
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="not begun"):
        late.execute(RELAY)


@pytest.mark.rule("X-1", "L-1", "L-3")
def test_a_transaction_of_another_domain_selects_it_until_it_is_over(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("execute", statement="CREATE UNPACED DOMAIN annex;")
    with session.transaction("annex") as tx:
        assert session.domain == "annex"
        tx.execute(SCHEMA, timeout=PATIENCE)
        with pytest.raises(nervix_ffi.CommandFailed, match="not sent while"):
            session.use(DOMAIN)
    assert session.domain == DOMAIN
    assert not exists(node, "SCHEMA made")
    assert "annex" in [it["domain"] for it in transactions(node)]
    assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
    with pytest.raises(nervix_ffi.CommandFailed, match="nowhere"), session.transaction("nowhere"):
        pytest.fail("it began")
    assert session.domain == DOMAIN


@pytest.mark.rule("X-1", "X-2", "L-3", "SM-3")
def test_a_transaction_inside_of_one_is_refused_and_leaves_it_as_it_was(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("execute", statement="CREATE UNPACED DOMAIN annex;")
    with session.prepare(RELAY) as early, session.transaction("annex") as tx:
        first = tx.execute(SCHEMA, timeout=PATIENCE)
        reached = sent(node, "CommandRequest")
        # The server's to refuse.
        with pytest.raises(nervix_ffi.CommandFailed, match="already") as caught, session.transaction("annex"):
            pytest.fail("it began")
        assert not caught.value.outcome.decided_locally
        assert sent(node, "CommandRequest") == reached + 1
        # Every request of a transaction names its domain, so what names another one is not sent.
        with pytest.raises(nervix_ffi.CommandFailed, match="annex"), session.transaction(DOMAIN):
            pytest.fail("it began")
        with pytest.raises(nervix_ffi.CommandFailed, match="annex"):
            early.run(timeout=PATIENCE)
        assert sent(node, "CommandRequest") == reached + 1
        second = tx.execute(RELAY, timeout=PATIENCE)
    for outcome in (first, second):
        assert applied(node)[outcome.reference] == 1
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
    assert forbidden(node) == {}


@pytest.mark.rule("X-2", "X-3", "E-7")
def test_a_refused_statement_leaves_the_transaction_as_it_was(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.transaction() as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        before = tx.preview
        with pytest.raises(nervix_ffi.CommandFailed, match="already exists") as caught:
            tx.execute(SCHEMA, timeout=PATIENCE)
        assert caught.value.diagnostics[0].span is not None
        assert not isinstance(caught.value, nervix_ffi.TransactionError)
        assert tx.preview == before
        failed = tx.execute(f"{RELAY} {SCHEMA} STOP;", check=False, timeout=PATIENCE)
        assert failed.disposition == Disposition.FAILED
        assert failed.statements is not None
        assert [it.disposition for it in failed.statements] == [Disposition.COMPLETED, Disposition.FAILED]
        # The position follows what the outcome reported, so that the next one goes where it belongs.
        assert tx.status is not None
        assert tx.status.accepted == 2
        tx.execute("CREATE RELAY third SCHEMA made UNBRANCHED;", timeout=PATIENCE)
    assert exists(node, "RELAY third")
    assert forbidden(node) == {}


@pytest.mark.rule("X-4")
def test_a_commit_is_of_the_preview_that_was_reviewed(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.transaction() as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        reviewed = tx.preview
        assert reviewed is not None
        tx.execute(RELAY, timeout=PATIENCE)
        for _ in range(2):
            # Refused for as long as that preview is meant: it is not refreshed from the refusal.
            with pytest.raises(nervix_ffi.PreviewStale) as caught:
                tx.commit(expected_preview=reviewed, timeout=PATIENCE)
        assert caught.value.outcome.disposition == Disposition.PREVIEW_STALE
        assert not tx.finished
        assert not exists(node, "SCHEMA made")
        assert tx.commit(expected_preview=tx.preview, timeout=PATIENCE).completed
    assert exists(node, "RELAY made_rows")


@pytest.mark.rule("N-2")
def test_a_commit_that_fails_says_which_operation_did(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with pytest.raises(nervix_ffi.TransactionFailed) as caught, session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        tx.execute("CREATE RELAY mine SCHEMA reading UNBRANCHED;", timeout=PATIENCE)
        node.control("execute", domain=DOMAIN, statement="CREATE RELAY mine SCHEMA reading UNBRANCHED;")
    status = caught.value.status
    assert status is not None
    assert (status.state, status.failing_operation) == (TransactionState.FAILED, 2)
    assert status.error is not None
    assert "mine" in status.error
    assert session.execute(SCHEMA, timeout=PATIENCE).completed


@pytest.mark.rule("X-8")
def test_a_transaction_that_expired_says_so(session: nervix_ffi.Session, node: LoopbackNode) -> None:
    with pytest.raises(nervix_ffi.TransactionExpired) as caught, session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("clock", frozen=True, advance="15m")
        tx.execute(RELAY, timeout=PATIENCE)
    assert caught.value.status is not None
    assert caught.value.status.state == TransactionState.EXPIRED
    assert tx.finished
    assert not exists(node, "SCHEMA made")
    assert session.execute(SCHEMA, timeout=PATIENCE).completed


@pytest.mark.rule("X-8", "L-3")
def test_what_a_block_runs_after_its_transaction_expired_does_not_happen_outside(
    session: nervix_ffi.Session, node: LoopbackNode
) -> None:
    with pytest.raises(nervix_ffi.TransactionExpired), session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("clock", frozen=True, advance="15m")
        assert not session.execute(RELAY, timeout=PATIENCE, check=False).completed
        commands = sent(node, "CommandRequest")
        for query in (SCHEMA, RELAY, "COMMIT;"):
            refused = session.execute(query, timeout=PATIENCE, check=False)
            assert refused.disposition == Disposition.FAILED
            assert refused.decided_locally
        assert sent(node, "CommandRequest") == commands
    assert not exists(node, "SCHEMA made")
    assert session.execute(SCHEMA, timeout=PATIENCE).completed


@pytest.mark.rule("X-8", "X-6", "D-5")
def test_a_transaction_that_expired_while_the_session_was_lost_says_so(session: nervix_ffi.Session, node: LoopbackNode) -> None:
    with pytest.raises(nervix_ffi.TransactionExpired), session.transaction() as tx:  # noqa: PT012
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("transaction", action="expire")
        node.control("cut", how="abort")
        with pytest.raises(nervix_ffi.TransactionExpired):
            tx.execute(RELAY, timeout=PATIENCE)
        # A block that swallows it does not end as if it had committed.
    assert not exists(node, "SCHEMA made")
    assert applied(node) == {}
    assert append.completed
    assert session.execute(SCHEMA, timeout=PATIENCE).completed
    assert forbidden(node) == {}


@pytest.mark.rule("X-6", "E-6", "SM-3")
def test_a_transaction_that_was_taken_over_is_not_taken_back(session: nervix_ffi.Session, node: LoopbackNode) -> None:
    with pytest.raises(nervix_ffi.TransactionTakenOver), session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("transaction", action="take_over")
        attaches = sent(node, "AttachTransactionRequest")
        for _ in range(2):
            with pytest.raises(nervix_ffi.TransactionTakenOver) as caught:
                tx.execute(RELAY, timeout=PATIENCE)
            assert caught.value.outcome.disposition == Disposition.TRANSACTION_TAKEN_OVER
    assert sent(node, "AttachTransactionRequest") == attaches
    one = transactions(node)[0]
    assert (one["state"], one["session"], one["accepted"]) == ("OPEN", 0, 1)
    # The session is free for a transaction of its own.
    assert session.execute(SCHEMA, timeout=PATIENCE).completed
    with session.transaction() as tx:
        tx.execute(RELAY, timeout=PATIENCE)
    assert exists(node, "RELAY made_rows")


@pytest.mark.rule("X-6", "D-5", "E-2")
@pytest.mark.parametrize("lose", ["detach", "abort", "reset", "goaway"])
def test_a_transaction_that_is_not_attached_is_attached_again(node: LoopbackNode, session: nervix_ffi.Session, lose: str) -> None:
    with session.transaction() as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        if lose == "detach":
            node.control("transaction", action="detach")
        else:
            node.control("cut", how=lose)
        outcome = tx.execute(RELAY, timeout=PATIENCE)
        assert outcome.origin == Origin.EXECUTED
        assert tx.admission is not None
        assert tx.admission.operation == 2
    assert sent(node, "AttachTransactionRequest") == 1
    assert exists(node, "RELAY made_rows")
    assert forbidden(node) == {}


@pytest.mark.rule("X-7")
@pytest.mark.parametrize("how", ["close", "collect", "exit"])
def test_no_way_of_leaving_a_session_reverts_what_it_holds(node: LoopbackNode, how: str) -> None:
    if how == "exit":
        code = f"""
            import nervix_ffi
            session = nervix_ffi.connect({node.uri!r}, domain="lab", timeout=30)
            tx = session.transaction()
            tx.begin().completed or exit(3)
            tx.execute({SCHEMA!r})
            """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0
    else:
        session = connect(node)
        tx = session.transaction()
        tx.begin(timeout=PATIENCE)
        tx.execute(SCHEMA, timeout=PATIENCE)
        if how == "close":
            session.close()
        del session, tx
    ended = wait(node, sessions={"exactly": 0})["sessions"]["ended"]
    assert ended["end_stream"] == 0
    assert [(it["state"], it["accepted"]) for it in transactions(node)] == [("OPEN", 1)]


@pytest.mark.rule("L-3", "P-1", "EC-1")
def test_nothing_is_asked_for_that_a_transaction_forbids(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    session.attach_clock(timeout=PATIENCE)
    readings = session.subscribe("readings", name="seen", timeout=PATIENCE)
    before = counts(node)["frames"]["in"]
    with session.transaction(timeout=PATIENCE) as tx:
        for statement in (
            "CREATE SUBSCRIPTION other TO readings;",
            "DELETE SUBSCRIPTION seen;",
            "ATTACH DOMAIN CLOCK;",
            "DETACH DOMAIN CLOCK;",
            "USE annex;",
        ):
            with pytest.raises(nervix_ffi.CommandFailed, match="not sent while"):
                session.execute(statement, timeout=PATIENCE)
        for call in (session.open_producer, session.open_consumer):
            with pytest.raises(nervix_ffi.OpenRefused) as caught:
                call("anything", "id U32", timeout=PATIENCE)
            assert caught.value.refusal == nervix_ffi.OpenRefusal.IN_TRANSACTION
        # Reads and events go on.
        publish(node, 1, 2)
        assert read_ids(readings, 2) == [1, 2]
        assert "readings" in session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).message
        tx.execute(SCHEMA, timeout=PATIENCE)
    after = counts(node)["frames"]["in"]
    assert {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind, 0)} == {
        "CommandRequest": 4
    }
    assert forbidden(node) == {}
    readings.close()


@pytest.mark.rule("D-5", "L-3", "S-7", "K-5")
def test_a_new_session_has_clocks_and_subscriptions_back_before_the_transaction(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    clock = session.attach_clock(timeout=PATIENCE)
    readings = session.subscribe("readings", timeout=PATIENCE)
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", how="abort")
        tx.execute(RELAY, timeout=PATIENCE)
    assert isinstance(next_event(readings), nervix_ffi.Interrupted)
    publish(node, 7)
    assert row_ids(next_event(readings)) == [7]
    assert forbidden(node) == {}
    assert clock.domain == DOMAIN
    assert exists(node, "RELAY made_rows")


@pytest.mark.rule("D-5", "L-3", "S-7")
def test_a_subscription_that_is_refused_again_waits_for_the_end_of_the_transaction(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    readings = session.subscribe("readings", timeout=PATIENCE)
    with session.transaction(timeout=PATIENCE) as tx:
        node.control("refuse_subscribe", count=1)
        node.control("cut", how="abort")
        tx.execute(SCHEMA, timeout=PATIENCE)
        assert isinstance(next_event(readings), nervix_ffi.Interrupted)
        assert isinstance(next_event(readings), nervix_ffi.RestorationFailed)
        tx.execute(RELAY, timeout=PATIENCE)
        assert sent(node, "SubscribeRequest") == 2
    wait(node, subscriptions={"exactly": 1})
    publish(node, 7)
    assert row_ids(next_event(readings)) == [7]
    assert forbidden(node) == {}


@pytest.mark.rule("X-5", "E-3", "D-4", "N-4")
def test_an_uncertain_commit_reverts_nothing_and_is_recovered(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        with pytest.raises(nervix_ffi.UncertainError) as caught, session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
            tx.execute(SCHEMA, timeout=PATIENCE)
            node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
            node.control("accept", mode="refuse")
            tx.commit(timeout=PATIENCE)
        assert caught.value.reference is not None
        assert caught.value.reference in str(caught.value)
        assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
        node.control("accept", mode="accept")
        assert caught.value.execution is not None
        outcome = caught.value.execution.run(timeout=PATIENCE)
        assert (outcome.completed, outcome.origin) == (True, Origin.RECOVERED)
        assert outcome.transaction is not None
        assert outcome.transaction.state == TransactionState.COMMITTED
    assert exists(node, "SCHEMA made")
    assert list(applied(node).values()) == [1]


@pytest.mark.rule("X-5", "E-3")
@pytest.mark.parametrize("again", ["block", "commit", "execution"])
def test_an_uncertain_commit_that_is_caught_is_asked_about_and_not_made_again(node: LoopbackNode, again: str) -> None:
    with connect(node, retry_timeout=1.0) as session:
        with session.transaction(timeout=PATIENCE) as tx:
            append = tx.execute(SCHEMA, timeout=PATIENCE)
            node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
            node.control("accept", mode="refuse")
            with pytest.raises(nervix_ffi.UncertainError) as caught:
                tx.commit(timeout=PATIENCE)
            with pytest.raises(nervix_ffi.InvalidArgumentError, match="may have happened"):
                tx.revert()
            node.control("accept", mode="accept")
            if again == "commit":
                assert tx.commit(timeout=PATIENCE).reference == caught.value.reference
            elif again == "execution":
                assert caught.value.execution is not None
                caught.value.execution.run(timeout=PATIENCE)
            assert tx.finished == (again != "block")
        assert tx.finished
        assert counts(node)["executed"][caught.value.reference] == 1
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-2", "X-3", "C-10")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_block_that_gave_up_on_an_append_reverts(node: LoopbackNode, session: nervix_ffi.Session, when: str) -> None:
    with pytest.raises(nervix_ffi.DeadlineError), session.transaction() as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("delay", when=when, millis=600)
        tx.execute(RELAY, timeout=0.2)
    assert tx.finished
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert session.execute(SCHEMA, timeout=PATIENCE).completed


@pytest.mark.rule("X-3", "X-4", "E-3")
def test_a_reviewed_commit_does_not_take_in_an_append_that_nobody_asked_about(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        with pytest.raises(nervix_ffi.PreviewStale), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
            tx.execute(SCHEMA, timeout=PATIENCE)
            node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
            node.control("accept", mode="refuse")
            with pytest.raises(nervix_ffi.UncertainError):
                tx.execute(RELAY, timeout=PATIENCE)
            node.control("accept", mode="accept")
            tx.commit(expected_preview=tx.preview, timeout=PATIENCE)
        assert [it["state"] for it in transactions(node)] == ["REVERTED"]
        assert not exists(node, "SCHEMA made")
    assert forbidden(node) == {}


@pytest.mark.rule("X-3", "X-6")
def test_what_the_session_runs_by_itself_is_part_of_the_transaction(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with pytest.raises(nervix_ffi.TransactionTakenOver), session.transaction() as tx:  # noqa: PT012
        outcome = session.execute(SCHEMA, timeout=PATIENCE)
        assert tx.admission == outcome.admission
        node.control("transaction", action="take_over")
        calls: list[Callable[[], object]] = [
            lambda: session.execute(RELAY, timeout=PATIENCE),
            lambda: tx.execute(RELAY, timeout=PATIENCE),
            lambda: tx.commit(timeout=PATIENCE),
            lambda: tx.revert(timeout=PATIENCE),
        ]
        for call in calls:
            with pytest.raises(nervix_ffi.TransactionTakenOver):
                call()
        second = session.transaction()
        second.begin(timeout=PATIENCE)
        second.execute(SCHEMA, timeout=PATIENCE)
    # Leaving the first block takes nothing from the transaction that the session holds by now.
    assert [it["state"] for it in transactions(node)] == ["OPEN", "OPEN"]
    second.commit(timeout=PATIENCE)
    assert exists(node, "SCHEMA made")


@pytest.mark.rule("X-5", "E-6")
@pytest.mark.parametrize("execute", [True, False])
def test_a_commit_that_is_under_way_is_waited_for(node: LoopbackNode, session: nervix_ffi.Session, execute: bool) -> None:
    with session.transaction() as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("disposition", disposition="OutcomeUnknown", cause="StillApplying", execute=execute, count=2)
        outcome = tx.commit(timeout=PATIENCE)
    assert outcome.completed
    assert outcome.origin == (Origin.RECOVERED if execute else Origin.EXECUTED)
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-3", "X-2", "E-3", "N-4")
def test_an_uncertain_append_is_recovered_at_its_position(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        with session.transaction(timeout=PATIENCE) as tx:
            tx.execute(SCHEMA, timeout=PATIENCE)
            node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
            node.control("accept", mode="refuse")
            with pytest.raises(nervix_ffi.UncertainError) as caught:
                tx.execute(RELAY, timeout=PATIENCE)
            assert tx.status is not None
            assert tx.status.accepted == 1
            node.control("accept", mode="accept")
            assert caught.value.execution is not None
            outcome = caught.value.execution.run(timeout=PATIENCE)
            assert outcome.origin == Origin.RECOVERED
            assert outcome.admission is not None
            assert outcome.admission.operation == 2
            tx.execute("CREATE RELAY third SCHEMA made UNBRANCHED;", timeout=PATIENCE)
        assert sum(applied(node).values()) == 3
    assert forbidden(node) == {}


@pytest.mark.rule("E-3", "X-6")
def test_a_command_of_another_session_is_recovered_under_its_reference(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.transaction() as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        tx.commit(timeout=PATIENCE)
    with connect(node) as other:
        recovered = other.prepare(SCHEMA, reference=append.reference, position=0).run(timeout=PATIENCE)
        assert recovered.origin == Origin.RECOVERED
        assert recovered.admission == append.admission
        moved = other.prepare(SCHEMA, reference=append.reference, position=1)
        with pytest.raises(nervix_ffi.CommandNotCompleted) as caught:
            moved.run(timeout=PATIENCE)
        assert caught.value.outcome.disposition == Disposition.EXECUTION_REFERENCE_CONFLICT
        with pytest.raises(nervix_ffi.InvalidArgumentError, match="UUIDv7"):
            other.prepare(SCHEMA, reference="mine")
        preview = nervix_ffi.TransactionPreview("t", 1, bytes(32))
        with pytest.raises(nervix_ffi.InvalidArgumentError, match="COMMIT"):
            other.prepare(SCHEMA, preview=preview)
        with pytest.raises(nervix_ffi.InvalidArgumentError, match="32 bytes"):
            other.prepare("COMMIT;", preview=nervix_ffi.TransactionPreview("t", 1, b"short"))
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-6", "D-1", "D-5", "E-2")
def test_the_leader_moves_between_any_two_commands_of_a_transaction(cluster: LoopbackNode) -> None:
    order = list(cluster.nodes)
    with connect(cluster, cluster.leader) as session, session.transaction(timeout=PATIENCE) as tx:
        for turn in range(5):
            cluster.control("leader", leader=order[(turn + 1) % 3])
            outcome = tx.execute(f"CREATE SCHEMA turn{turn} (id U32);", timeout=PATIENCE)
            assert outcome.admission is not None
            assert outcome.admission.operation == turn + 1
        cluster.control("leader", leader=order[0])
    assert sorted(applied(cluster).values()) == [1] * 5
    assert forbidden(cluster) == {}
    assert counts(cluster)["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("X-1", "D-1")
def test_a_transaction_begun_with_a_follower_is_one_of_the_leader(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.followers[0]) as session:
        check_script(cluster, run_script(session))


@pytest.mark.rule("X-6", "D-5", "D-6")
@pytest.mark.parametrize(("direction", "when"), [("in", "before"), ("in", "after"), ("out", "before"), ("out", "after")])
def test_a_cut_around_an_attach_costs_nothing(node: LoopbackNode, session: nervix_ffi.Session, direction: str, when: str) -> None:
    kind = "AttachTransactionRequest" if direction == "in" else "AttachOutcome"
    node.control("cut", direction="out", kind="CommandOutcome", when="before", nth=3, how="abort")
    node.control("cut", direction=direction, kind=kind, when=when, how="reset")
    check_script(node, run_script(session))


@pytest.mark.rule("X-3", "E-3", "D-4")
@pytest.mark.parametrize("nth", range(1, len(STEPS) + 3))
def test_a_lost_reply_of_a_transaction_costs_nothing(node: LoopbackNode, nth: int) -> None:
    node.control("drop_reply", nth=nth)
    with connect(node, request_timeout=0.4) as session:
        check_script(node, run_script(session))


@pytest.mark.rule("X-6", "D-1", "D-2", "D-5")
@pytest.mark.parametrize("nth", range(1, len(STEPS) + 3))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_leader_that_moves_under_any_command_of_a_transaction_costs_nothing(
    cluster: LoopbackNode, nth: int, when: str, cut: bool
) -> None:
    cluster.control("delay", nth=nth, when=when)
    with connect(cluster, cluster.leader) as session:
        call = Running(lambda: run_script(session))
        wait(cluster, held=1)
        cluster.control("leader", leader=list(cluster.nodes)[1])
        if cut:
            cluster.control("cut", how="abort")
        cluster.control("release")
        check_script(cluster, call.result())


def disturb(node: LoopbackNode, dice: random.Random) -> None:
    """Arm or do one thing that goes wrong, for the next frames of a transaction."""
    requests = dice.choice(["CommandRequest", "AttachTransactionRequest"])
    replies = dice.choice(["CommandOutcome", "AttachOutcome", "LeadershipObserved", "SubscribeOutcome"])
    direction = dice.choice(["in", "out"])
    kind = requests if direction == "in" else replies
    faults: list[tuple[str, dict[str, Any]]] = [
        ("cut", {"how": dice.choice(["close", "abort", "reset", "goaway"])}),
        (
            "cut",
            {
                "how": dice.choice(["close", "abort", "reset", "goaway", "status"]),
                "direction": direction,
                "when": dice.choice(["before", "after"]),
                "kind": kind,
                "nth": dice.randint(1, 3),
            },
        ),
        ("corrupt", {"what": dice.choice(["identifier", "truncated", "union_tag", "required"]), "kind": replies}),
        ("parts", {"bytes": dice.randint(1, 40), "notices": True, "count": 3}),
        (
            "reject",
            {"kind": requests, "reason": dice.choice(["TooManyRequestsInFlight", "ServerBusy"]), "count": dice.randint(1, 2)},
        ),
        ("refuse_subscribe", {"count": 1}),
        ("disposition", {"disposition": "OutcomeUnknown", "execute": dice.random() < 0.5}),
        ("disposition", {"disposition": "LeaderRedirect"}),
        ("delay", {"kind": requests, "millis": dice.randint(1, 20), "when": dice.choice(["before", "after"])}),
        ("end", {"reason": dice.choice(["ServerShuttingDown", "ProtocolViolated"])}),
        ("leader", {"leader": dice.choice(list(node.nodes))}),
        ("transaction", {"action": "detach"}),
    ]
    action, body = dice.choice(faults)
    if action == "transaction" and not any(it["state"] == "OPEN" and it["session"] for it in transactions(node)):
        return
    node.control(action, **body)


@pytest.mark.rule("X-2", "X-3", "X-5", "X-6", "D-1", "D-5", "L-3", "E-2", "E-3")
@pytest.mark.parametrize("seed", range(int(os.environ.get("NERVIX_TRANSACTION_SEEDS", "6"))))
def test_faults_at_random_leave_every_transaction_whole(cluster: LoopbackNode, seed: int) -> None:
    dice = random.Random(seed)
    expected: dict[str, int] = {}
    with connect(cluster, cluster.leader) as session:
        session.attach_clock(timeout=PATIENCE)
        session.subscribe("readings", timeout=PATIENCE)
        for round_ in range(8):
            kept = dice.random() < 0.8
            with suppress(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:
                for step in range(dice.randint(1, 4)):
                    if dice.random() < 0.7:
                        disturb(cluster, dice)
                    names = [f"s{round_}_{step}_{number}" for number in range(dice.randint(1, 3))]
                    query = " ".join(f"CREATE SCHEMA {name} (id U32);" for name in names)
                    outcome = tx.execute(query, timeout=PATIENCE)
                    assert outcome.reference is not None
                    if kept:
                        expected[outcome.reference] = len(names)
                if dice.random() < 0.5:
                    disturb(cluster, dice)
                if not kept:
                    _ = 1 / 0
            cluster.control("clear")
            assert tx.status is not None
            # A revert that was cut off is recovered like any other command.
            assert tx.status.state == (TransactionState.COMMITTED if kept else TransactionState.REVERTED)
    assert applied(cluster) == expected
    assert forbidden(cluster) == {}
    assert not any(it["state"] == "OPEN" for it in transactions(cluster))
    assert counts(cluster)["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("X-4", "X-1")
def test_a_library_without_the_extension_has_transactions_and_no_previews(
    plain_library: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = f"""
        import nervix_ffi
        from nervix_ffi.testing import LoopbackNode
        with LoopbackNode(load={GRAPH!r}) as node, nervix_ffi.connect(node.uri, domain="lab", timeout=30) as session:
            with session.transaction() as tx:
                outcome = tx.execute({SCHEMA!r})
                assert (outcome.transaction, outcome.admission, tx.id, tx.status, tx.preview) == (None,) * 5
                before = node.counts()["frames"]["in"]
                try:
                    tx.commit(expected_preview=nervix_ffi.TransactionPreview("t", 1, bytes(32)))
                except nervix_ffi.UnsupportedError as failure:
                    assert "transactions extension" in str(failure)
                else:
                    raise AssertionError("it was committed")
                assert node.counts()["frames"]["in"] == before
            assert tx.finished
            assert list(node.counts()["applied"].values()) == [1]
            try:
                with session.transaction() as tx:
                    node.control("transaction", action="take_over")
                    tx.execute("CREATE RELAY made_rows SCHEMA made UNBRANCHED;")
            except nervix_ffi.TransactionTakenOver:
                pass
            session.execute("CREATE RELAY made_rows SCHEMA made UNBRANCHED;")
            try:
                session.prepare("STOP;", reference="01234567-89ab-7fff-bfff-ffffffffffff")
            except nervix_ffi.UnsupportedError:
                print("done")
        """
    done = run_python(textwrap.dedent(script), NERVIX_CLIENT_LIBRARY=str(plain_library))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.rule("E-3", "E-6", "X-1", "SM-3")
def test_a_begin_of_unknown_outcome_is_asked_about_until_it_is_known(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("disposition", disposition="OutcomeUnknown", execute=True, count=2)
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
    assert [(it["state"], it["accepted"]) for it in transactions(node)] == [("COMMITTED", 1)]
