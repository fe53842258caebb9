"""What the session runs after a block that could not end its transaction: never a part of that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Origin
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, connect, counts, sent
from .test_transactions import RELAY, SCHEMA, applied, exists, forbidden, transactions

#: What comes after the block.
LATER = "CREATE SCHEMA later (id U32);"


def leave_unreverted(node: LoopbackNode, session: nervix_ffi.Session, domain: str | None = None) -> nervix_ffi.Transaction:
    """A block that raised while no node could be reached. The node is reachable again once ``accept`` says so."""
    with pytest.raises(ZeroDivisionError), session.transaction(domain, timeout=0.3) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("accept", mode="refuse")
        node.control("cut", how="abort")
        _ = 1 / 0
    assert not tx.finished
    return tx


@pytest.mark.rule("X-3", "N-2", "N-4")
def test_what_follows_a_block_that_could_not_revert_is_no_part_of_it(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    tx = leave_unreverted(node, session)
    calls: list[Callable[[], object]] = [
        lambda: session.execute(LATER, timeout=0.2),
        lambda: session.prepare(LATER).run(timeout=0.2),
        lambda: session.subscribe("readings", timeout=0.2),
        lambda: session.attach_clock(timeout=0.2),
        lambda: session.open_producer("gate", "id U32", timeout=0.2),
        lambda: session.open_consumer("outlet", "id U32", timeout=0.2),
    ]
    for call in calls:
        with pytest.raises(nervix_ffi.DeadlineError, match="nothing was sent") as caught:
            call()
        assert isinstance(caught.value.__cause__, nervix_ffi.Error)
    node.control("accept", mode="accept")
    outcome = session.execute(LATER, timeout=PATIENCE)
    assert (outcome.admission, outcome.transaction) == (None, None)
    assert exists(node, "SCHEMA later")
    assert tx.finished
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert not exists(node, "SCHEMA made")
    assert forbidden(node) == {}


@pytest.mark.rule("X-1", "L-1")
def test_what_follows_such_a_block_is_of_the_domain_selected_before(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("execute", statement="CREATE UNPACED DOMAIN annex;")
    leave_unreverted(node, session, "annex")
    node.control("accept", mode="accept")
    assert session.execute(LATER, timeout=PATIENCE).completed
    assert session.domain == DOMAIN
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("X-5", "E-3", "N-4")
@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("again", ["command", "execution", "commit"])
def test_what_follows_a_commit_of_unknown_outcome_is_no_part_of_it(node: LoopbackNode, arrived: bool, again: str) -> None:
    lost: dict[str, Any] = (
        {"direction": "out", "kind": "CommandOutcome"} if arrived else {"direction": "in", "kind": "CommandRequest"}
    )
    with connect(node, retry_timeout=2.0) as session:
        with pytest.raises(nervix_ffi.UncertainError) as caught, session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
            append = tx.execute(SCHEMA, timeout=PATIENCE)
            node.control("cut", when="before", how="abort", **lost)
            node.control("accept", mode="refuse")
            tx.commit(timeout=PATIENCE)
        node.control("accept", mode="accept")
        if again == "execution":
            assert caught.value.execution is not None
            outcome = caught.value.execution.run(timeout=PATIENCE)
            assert (outcome.completed, outcome.origin) == (True, Origin.RECOVERED if arrived else Origin.EXECUTED)
        elif again == "commit":
            assert tx.commit(timeout=PATIENCE).reference == caught.value.reference
        later = session.execute(LATER, timeout=PATIENCE)
        assert (later.admission, later.transaction) == (None, None)
        assert tx.finished
    # It was asked about, neither reverted nor made a second time.
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
    assert counts(node)["executed"][caught.value.reference] == 1
    assert applied(node) == {append.reference: 1}
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("X-3", "E-3", "D-4")
def test_what_follows_a_begin_of_unknown_outcome_is_no_part_of_it(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("cut", when="before", how="abort", direction="out", kind="CommandOutcome")
    node.control("accept", mode="refuse")
    with pytest.raises(nervix_ffi.DeadlineError), session.transaction(timeout=0.2):
        pytest.fail("it began")
    with pytest.raises(nervix_ffi.DeadlineError, match="nothing was sent"):
        session.execute(LATER, timeout=0.2)
    node.control("accept", mode="accept")
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(RELAY.replace("SCHEMA made", "SCHEMA reading"), timeout=PATIENCE)
    assert [it["state"] for it in transactions(node)] == ["REVERTED", "COMMITTED"]
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("X-3")
def test_eight_threads_wait_for_the_end_that_one_of_them_brings_about(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    leave_unreverted(node, session)
    reverts = sent(node, "CommandRequest")
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(session.execute, f"CREATE SCHEMA later{i} (id U32);", timeout=PATIENCE) for i in range(8)]
        node.control("accept", mode="accept")
        assert [call.result().transaction for call in calls] == [None] * 8
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert all(exists(node, f"SCHEMA later{i}") for i in range(8))
    assert sent(node, "CommandRequest") == reverts + 9


@pytest.mark.rule("X-5", "N-2")
@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_commit_that_was_never_sent_leaves_the_block_to_revert(
    node: LoopbackNode, session: nervix_ffi.Session, how: str
) -> None:
    cancel = nervix_ffi.Cancel()
    with pytest.raises((nervix_ffi.DeadlineError, nervix_ffi.CancelledError)), session.transaction(cancel=cancel) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        if how == "timeout":
            tx.commit(timeout=0)
        cancel.trigger()
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("E-4", "X-5")
def test_a_commit_whose_record_expired_is_not_made_again(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=2.0) as session:
        tx = session.transaction(timeout=PATIENCE)
        tx.begin(timeout=PATIENCE)
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            tx.commit(timeout=PATIENCE)
        node.control("accept", mode="accept")
        node.control("expire", reference=caught.value.reference)
        with pytest.raises(nervix_ffi.ReferenceExpired) as again:
            tx.commit(timeout=PATIENCE)
        assert again.value.reference == caught.value.reference
        commands = sent(node, "CommandRequest")
        with pytest.raises(nervix_ffi.InvalidArgumentError, match="finished"):
            tx.commit(timeout=PATIENCE)
        assert sent(node, "CommandRequest") == commands
    assert applied(node) == {append.reference: 1}
