"""What a transaction is to whatever else happens on its session: other threads, other blocks, other domains, signals."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Disposition
from nervix_ffi.testing import LoopbackError, LoopbackNode

from ..support import DOMAIN, PATIENCE, Running, connect, counts, executed, sent, wait
from .test_transactions import SCHEMA, applied, exists, forbidden, transactions
from .test_unfinished_transactions import LATER, leave_unreverted

Session = nervix_ffi.Session


def domain_of(node: LoopbackNode, model: str) -> list[str]:
    """The domains that have a model."""

    def has(domain: str) -> bool:
        try:
            node.control("execute", domain=domain, statement=f"SHOW CREATE {model};")
        except LoopbackError:
            return False
        return True

    return [domain for domain in (DOMAIN, "annex") if has(domain)]


def cut_and_noticed(node: LoopbackNode, session: Session) -> None:
    """No node is in reach, and nothing is written any more to a connection whose end was not noticed yet."""
    node.control("accept", mode="refuse")
    node.control("cut", how="abort")
    with pytest.raises(nervix_ffi.Error):
        session.execute("SHOW CLUSTER STATUS;", timeout=0.3)


@pytest.fixture
def annex(node: LoopbackNode) -> str:
    """Another domain."""
    node.control("execute", statement="CREATE UNPACED DOMAIN annex;")
    return "annex"


# ---- blocks that come after one that could not end


@pytest.mark.rule("X-3", "X-5", "N-4")
@pytest.mark.parametrize("left", ["open", "committing"])
def test_a_block_that_cannot_begin_makes_the_session_forget_none(node: LoopbackNode, left: str) -> None:
    with connect(node, retry_timeout=2.0) as session:
        if left == "open":
            first = leave_unreverted(node, session)
        else:
            with pytest.raises(nervix_ffi.UncertainError), session.transaction(timeout=PATIENCE) as first:  # noqa: PT012
                first.execute(SCHEMA, timeout=PATIENCE)
                node.control("cut", when="before", how="abort", direction="out", kind="CommandOutcome")
                node.control("accept", mode="refuse")
                first.commit(timeout=PATIENCE)
        for _ in range(3):
            second = session.transaction(timeout=0.1)
            with pytest.raises(nervix_ffi.DeadlineError, match="nothing was sent"), second:
                pytest.fail("it began")
        node.control("accept", mode="accept")
        later = session.execute(LATER, timeout=PATIENCE)
        assert (later.admission, later.transaction) == (None, None)
        assert first.finished
    assert [it["state"] for it in transactions(node)] == ["REVERTED" if left == "open" else "COMMITTED"]
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("E-2", "E-3")
def test_the_revert_of_a_block_that_could_not_end_has_one_reference(node: LoopbackNode) -> None:
    with connect(node) as session:
        node.control("drop_reply", kind="CommandRequest", nth=3)
        with pytest.raises(ZeroDivisionError), session.transaction(timeout=0.1) as tx:  # noqa: PT012
            tx.execute(SCHEMA, timeout=PATIENCE)
            _ = 1 / 0
        for _ in range(3):
            with pytest.raises(nervix_ffi.DeadlineError, match="nothing was sent"):
                session.execute(LATER, timeout=0.1)
        node.control("cut", how="abort")
        assert session.execute(LATER, timeout=PATIENCE).transaction is None
        assert tx.finished
    references = [
        entry["reference"]
        for entry in node.journal()["entries"]
        if entry.get("kind") == "CommandRequest" and entry["direction"] == "in"
    ]
    assert len(set(references)) == 4, "a BEGIN, an append, a REVERT and what came later"
    assert len(references) > 4, "the REVERT was asked about"
    assert all(executed(node, reference) == 1 for reference in references)


@pytest.mark.rule("X-3", "N-4")
@pytest.mark.parametrize("answer", ["RequestFailed", "ExecutionReferenceExpired"])
def test_a_revert_that_was_answered_otherwise_lets_nothing_become_part_of_what_is_still_open(
    node: LoopbackNode, session: Session, answer: str
) -> None:
    with pytest.raises(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("disposition", disposition=answer, execute=False, count=1)
        _ = 1 / 0
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert exists(node, "SCHEMA later")
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert applied(node) == {}


@pytest.mark.rule("X-6", "X-8")
@pytest.mark.parametrize("end", ["expire", "take_over"])
def test_a_block_whose_transaction_ended_by_itself_leaves_nothing_in_the_way(
    node: LoopbackNode, session: Session, end: str
) -> None:
    leave_unreverted(node, session)
    node.control("transaction", action=end)
    node.control("accept", mode="accept")
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("X-3", "E-3", "D-6")
@pytest.mark.parametrize("lost", ["BEGIN", "COMMIT"])
def test_what_became_of_one_transaction_is_asked_once_another_that_is_held_is_over(node: LoopbackNode, lost: str) -> None:
    with connect(node) as session:
        node.control("drop_reply", kind="CommandRequest", nth=1 if lost == "BEGIN" else 3)
        first = session.transaction(timeout=0.5)
        with pytest.raises(nervix_ffi.DeadlineError), first:
            first.execute(SCHEMA, timeout=PATIENCE)

        def block() -> None:
            with session.transaction(timeout=PATIENCE) as second:
                second.execute("CREATE SCHEMA second (id U32);", timeout=PATIENCE)

        # It waits behind the first, which the loss of the session answers.
        second = Running(block)
        wait(node, sessions={"exactly": 1})
        node.control("cut", how="abort")
        try:
            second.result()
        except nervix_ffi.Error:
            block()
        session.execute(LATER, timeout=PATIENCE)
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    assert exists(node, "SCHEMA second")
    assert exists(node, "SCHEMA later")
    assert exists(node, "SCHEMA made") == (lost == "COMMIT")
    assert "OPEN" not in [it["state"] for it in transactions(node)]


@pytest.mark.rule("X-1", "E-3")
def test_a_block_that_could_not_begin_begins_no_more(node: LoopbackNode, session: Session) -> None:
    node.control("cut", when="before", how="abort", direction="out", kind="CommandOutcome")
    node.control("accept", mode="refuse")
    tx = session.transaction(timeout=0.2)
    with pytest.raises(nervix_ffi.DeadlineError), tx:
        pytest.fail("it began")
    node.control("accept", mode="accept")
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="begins once"), tx:
        pytest.fail("it began")
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="begins once"):
        tx.begin(timeout=PATIENCE)
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]


@pytest.mark.rule("X-3", "E-3")
@pytest.mark.parametrize("lost", [False, True])
def test_a_block_that_was_to_be_reverted_is_not_committed_at_its_end(node: LoopbackNode, session: Session, lost: bool) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        if lost:
            node.control("drop_reply", kind="CommandRequest")
        with pytest.raises(nervix_ffi.DeadlineError):
            tx.revert(timeout=0.2 if lost else 0)
        if lost:
            with pytest.raises(nervix_ffi.InvalidArgumentError, match="the revert may have happened"):
                tx.commit(timeout=PATIENCE)
            node.control("cut", how="abort")
    session.execute(LATER, timeout=PATIENCE)
    assert tx.finished
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("D-4", "X-5", "N-2")
def test_a_commit_that_the_library_never_sent_is_not_made_later(node: LoopbackNode, session: Session) -> None:
    with pytest.raises(nervix_ffi.DeadlineError, match="was not sent"), session.transaction(timeout=0.3) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        cut_and_noticed(node, session)
    node.control("accept", mode="accept")
    session.execute(LATER, timeout=PATIENCE)
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert applied(node) == {}


@pytest.mark.rule("N-2", "X-1")
@pytest.mark.parametrize("how", ["time", "cancel", "outage"])
def test_blocks_that_never_began_leave_nothing_to_do(node: LoopbackNode, session: Session, how: str) -> None:
    cancel = nervix_ffi.Cancel()
    if how == "cancel":
        cancel.trigger()
    elif how == "outage":
        cut_and_noticed(node, session)
    for _ in range(20):
        block = session.transaction(timeout=0 if how == "time" else 0.02, cancel=cancel)
        with pytest.raises((nervix_ffi.DeadlineError, nervix_ffi.CancelledError)), block:
            pytest.fail("it began")
    node.control("accept", mode="accept")
    before = sent(node, "CommandRequest")
    session.execute(LATER, timeout=PATIENCE)
    assert sent(node, "CommandRequest") == before + 1
    assert transactions(node) == []


# ---- what was called for it


@pytest.mark.rule("X-2", "D-1", "N-2")
@pytest.mark.parametrize("how", ["timeout", "cancel", "outage", "behind another"])
def test_what_was_called_for_a_transaction_never_happens_outside_of_it(node: LoopbackNode, session: Session, how: str) -> None:
    cancel = nervix_ffi.Cancel()
    other: Running[nervix_ffi.Outcome] | None = None
    with (  # noqa: PT012
        pytest.raises((nervix_ffi.DeadlineError, nervix_ffi.CancelledError)) as caught,
        session.transaction(timeout=PATIENCE) as tx,
    ):
        if how == "outage":
            node.control("accept", mode="refuse")
            node.control("cut", how="abort")
        elif how == "cancel":
            cancel.trigger()
        elif how == "behind another":
            node.control("delay", kind="CommandRequest", when="before", count=1)
            other = Running(lambda: session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE))
            wait(node, held=1)
        try:
            tx.execute(SCHEMA, timeout=0 if how == "timeout" else 0.2, cancel=cancel)
        finally:
            node.control("accept", mode="accept")
            node.control("release")
    if other is not None:
        other.result()
    execution = caught.value.execution
    assert execution is not None
    for _ in range(2):
        with pytest.raises(nervix_ffi.CommandFailed) as refused:
            execution.run(timeout=PATIENCE)
        if how != "outage":
            # It may have been written to the connection that is gone; then the server refuses it.
            assert refused.value.outcome.decided_locally
            assert "nothing was sent" in refused.value.outcome.message
            assert executed(node, execution.reference) == 0
    # Nor in a transaction that comes later.
    with session.transaction(timeout=PATIENCE):
        assert execution.run(timeout=PATIENCE, check=False).disposition == Disposition.FAILED
    assert not exists(node, "SCHEMA made")
    assert [it["state"] for it in transactions(node)] == ["REVERTED", "COMMITTED"]


@pytest.mark.rule("E-3", "X-3", "X-5")
@pytest.mark.parametrize("commit", ["COMMIT;", "commit", "// done\nCOMMIT;", "COMMIT; // done\n", " COMMIT ;\n"])
@pytest.mark.parametrize("how", ["plain", "lost", "by the session"])
def test_a_commit_is_known_however_it_is_written(node: LoopbackNode, session: Session, commit: str, how: str) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        if how == "lost":
            node.control("cut", when="before", how="abort", direction="out", kind="CommandOutcome")
            node.control("accept", mode="refuse")
            with pytest.raises(nervix_ffi.DeadlineError) as caught:
                tx.execute(commit, timeout=0.2)
            node.control("accept", mode="accept")
            assert tx.commit(timeout=PATIENCE).reference == caught.value.reference
        elif how == "by the session":
            assert session.execute(commit, timeout=PATIENCE).completed
        else:
            assert tx.execute(commit, timeout=PATIENCE).completed
        assert tx.finished
    assert applied(node) == {append.reference: 1}
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]


@pytest.mark.rule("E-3", "X-1")
@pytest.mark.parametrize("how", ["begin", "execution"])
def test_a_begin_whose_answer_was_lost_is_asked_about(node: LoopbackNode, session: Session, how: str) -> None:
    tx = session.transaction()
    node.control("cut", when="before", how="abort", direction="out", kind="CommandOutcome")
    node.control("accept", mode="refuse")
    with pytest.raises(nervix_ffi.DeadlineError) as caught:
        tx.begin(timeout=0.2)
    node.control("accept", mode="accept")
    if how == "begin":
        assert tx.begin(timeout=PATIENCE).reference == caught.value.reference
    else:
        assert caught.value.execution is not None
        caught.value.execution.run(timeout=PATIENCE)
    assert tx.id == transactions(node)[0]["id"]
    append = tx.execute(SCHEMA, timeout=PATIENCE)
    tx.commit(timeout=PATIENCE)
    assert applied(node) == {append.reference: 1}
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]
    assert executed(node, caught.value.reference) == 1


@pytest.mark.rule("E-3", "X-1", "D-4")
@pytest.mark.parametrize("how", ["begin", "execution"])
def test_a_begin_that_was_never_sent_may_be_run_again(node: LoopbackNode, session: Session, annex: str, how: str) -> None:
    tx = session.transaction(annex)
    with pytest.raises(nervix_ffi.DeadlineError) as caught:
        tx.begin(timeout=0)
    assert session.domain == DOMAIN
    if how == "begin":
        assert tx.begin(timeout=PATIENCE).reference == caught.value.reference
    else:
        assert caught.value.execution is not None
        caught.value.execution.run(timeout=PATIENCE)
    assert session.domain == annex
    append = tx.execute(SCHEMA, timeout=PATIENCE)
    tx.commit(timeout=PATIENCE)
    assert applied(node) == {append.reference: 1}
    assert session.domain == DOMAIN


@pytest.mark.rule("X-1")
def test_a_begin_that_was_refused_may_be_tried_again(node: LoopbackNode, session: Session) -> None:
    tx = session.transaction("annex")
    with pytest.raises(nervix_ffi.CommandFailed):
        tx.begin(timeout=PATIENCE)
    assert session.domain == DOMAIN
    node.control("execute", statement="CREATE UNPACED DOMAIN annex;")
    tx.begin(timeout=PATIENCE)
    assert session.domain == "annex"
    tx.revert(timeout=PATIENCE)
    assert session.domain == DOMAIN


# ---- the domain


@pytest.mark.rule("L-1", "X-1")
def test_what_is_prepared_after_a_block_that_could_not_revert_is_of_the_domain_selected_before(
    node: LoopbackNode, session: Session, annex: str
) -> None:
    leave_unreverted(node, session, annex)
    assert session.domain == DOMAIN
    execution = session.prepare(LATER)
    node.control("accept", mode="accept")
    assert execution.run(timeout=PATIENCE).admission is None
    assert domain_of(node, "SCHEMA later") == [DOMAIN]
    assert execution.domain == DOMAIN


@pytest.mark.rule("L-1", "T-8")
def test_a_block_ends_in_its_domain_whoever_else_uses_the_session(node: LoopbackNode, session: Session, annex: str) -> None:
    with session.transaction(annex, timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("delay", kind="CommandRequest", when="before", count=1, nth=2)
        slow: Running[nervix_ffi.Outcome] | None = None
        try:
            tx.commit(timeout=PATIENCE)
            slow = Running(lambda: session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE))
            wait(node, held=1)
            # No answer is needed for it.
            assert session.domain == DOMAIN
            later = session.prepare(LATER)
        finally:
            node.control("release")
    assert slow is not None
    slow.result()
    assert later.run(timeout=PATIENCE).completed
    assert domain_of(node, "SCHEMA later") == [DOMAIN]
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("L-1", "X-1")
def test_a_begin_that_waits_for_the_commit_of_another_domain_changes_no_selection(
    node: LoopbackNode, session: Session, annex: str
) -> None:
    def other() -> bool:
        with session.transaction(DOMAIN, timeout=PATIENCE) as second:
            second.execute(SCHEMA, timeout=PATIENCE)
        return second.finished and second.admission is not None

    with session.transaction(annex, timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("delay", kind="CommandRequest", when="before", count=1)
        commit = Running(lambda: tx.commit(timeout=PATIENCE))
        wait(node, held=1)
        begin = Running(other)
        node.control("release")
        commit.result()
        assert begin.result()
    assert tx.finished
    assert session.domain == DOMAIN
    session.execute(LATER, timeout=PATIENCE)
    assert domain_of(node, "SCHEMA later") == [DOMAIN]
    assert [(it["domain"], it["state"]) for it in transactions(node)] == [("annex", "COMMITTED"), (DOMAIN, "COMMITTED")]


@pytest.mark.rule("L-1", "X-2")
def test_what_another_thread_runs_while_a_commit_is_under_way_lands_in_no_domain_that_was_not_meant(
    node: LoopbackNode, session: Session, annex: str
) -> None:
    with session.transaction(annex, timeout=PATIENCE) as tx:
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("delay", kind="CommandRequest", when="before", count=1)
        commit = Running(lambda: tx.commit(timeout=PATIENCE))
        wait(node, held=1)
        late = session.prepare(LATER)
        run = Running(lambda: late.run(timeout=PATIENCE, check=False))
        node.control("release")
        commit.result()
        outcome = run.result()
    assert (outcome.disposition, outcome.decided_locally) == (Disposition.FAILED, True)
    assert domain_of(node, "SCHEMA later") == []


@pytest.mark.rule("L-1", "X-1", "X-7")
@pytest.mark.parametrize("end", ["COMMIT;", "REVERT;", "// that\n REVERT;;"])
def test_a_transaction_that_nobody_keeps_is_still_that_of_the_session(
    node: LoopbackNode, session: Session, annex: str, end: str
) -> None:
    tx = session.transaction(annex)
    tx.begin(timeout=PATIENCE)
    tx.execute(SCHEMA, timeout=PATIENCE)
    del tx
    assert session.domain == annex
    # Nothing becomes part of what nobody stands for, and then is not there.
    with pytest.raises(nervix_ffi.RejectedError, match="nothing was sent, as the session holds transaction"):
        session.execute(LATER, timeout=PATIENCE)
    with pytest.raises(nervix_ffi.RejectedError, match="nothing was sent, as the session holds transaction"):
        session.transaction(annex).begin(timeout=PATIENCE)
    session.execute(end, timeout=PATIENCE)
    assert session.domain == DOMAIN
    session.execute(LATER, timeout=PATIENCE)
    assert domain_of(node, "SCHEMA made") == ([annex] if end == "COMMIT;" else [])
    assert domain_of(node, "SCHEMA later") == [DOMAIN]


@pytest.mark.rule("X-3", "X-8")
def test_the_end_of_a_transaction_that_nobody_keeps_and_that_expired_frees_the_session(
    node: LoopbackNode, session: Session, annex: str
) -> None:
    session.transaction(annex).begin(timeout=PATIENCE)
    node.control("transaction", action="expire")
    node.control("cut", how="abort")
    with pytest.raises(nervix_ffi.CommandFailed):
        session.execute("REVERT;", timeout=PATIENCE)
    assert session.domain == DOMAIN
    session.execute(LATER, timeout=PATIENCE)
    assert domain_of(node, "SCHEMA later") == [DOMAIN]


@pytest.mark.rule("N-2", "X-1")
def test_a_begin_without_time_sends_nothing_then_or_later(node: LoopbackNode, session: Session, annex: str) -> None:
    with pytest.raises(nervix_ffi.DeadlineError), session.transaction(annex, timeout=0):
        pytest.fail("it began")
    assert session.domain == DOMAIN
    session.execute(LATER, timeout=PATIENCE)
    assert transactions(node) == []
    assert domain_of(node, "SCHEMA later") == [DOMAIN]


@pytest.mark.rule("L-1", "X-1")
def test_what_is_prepared_while_a_transaction_begins_is_of_the_domain_that_it_says(
    node: LoopbackNode, session: Session, annex: str
) -> None:
    other: list[nervix_ffi.Execution] = []
    learn = nervix_ffi.Transaction._learn

    def learn_late(self: nervix_ffi.Transaction, *told: Any) -> None:
        # Another thread's, after the library began it and before anybody here was told.
        other.append(session.prepare(f"CREATE SCHEMA later{len(other)} (id U32);"))
        learn(self, *told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nervix_ffi.Transaction, "_learn", learn_late)
        with session.transaction(annex, timeout=PATIENCE) as tx:
            tx.execute(SCHEMA, timeout=PATIENCE)
    domains = [execution.domain for execution in other]
    assert domains[0] == DOMAIN
    for number, execution in enumerate(other):
        outcome = execution.run(timeout=PATIENCE, check=False)
        landed = domain_of(node, f"SCHEMA later{number}")
        assert landed == ([execution.domain] if outcome.completed else [])
        assert outcome.completed or outcome.decided_locally


@pytest.mark.rule("L-1")
def test_a_use_that_is_run_again_selects_nothing_again(session: Session, annex: str) -> None:
    use = session.prepare(f"USE {annex};")
    use.run(timeout=PATIENCE)
    session.use(DOMAIN, timeout=PATIENCE)
    assert use.run(timeout=PATIENCE).completed
    assert session.domain == DOMAIN
    assert session.prepare(LATER).domain == DOMAIN


@pytest.mark.rule("X-2", "X-3")
@pytest.mark.parametrize("next_one", ["command", "block"])
def test_a_transaction_that_nobody_here_knows_of_is_reverted_before_anything_else(
    node: LoopbackNode, session: Session, next_one: str
) -> None:
    # As after a signal in the wrong moment, or an answer that was none: the library holds what no object stands for.
    session.transaction().begin(timeout=PATIENCE)
    session._held.current = None
    if next_one == "command":
        assert session.execute(LATER, timeout=PATIENCE).transaction is None
    else:
        with session.transaction(timeout=PATIENCE) as tx:
            tx.execute(LATER, timeout=PATIENCE)
    assert exists(node, "SCHEMA later")
    assert transactions(node)[0]["state"] == "REVERTED"
    assert forbidden(node) == {}


@pytest.mark.rule("X-1", "X-3")
def test_a_block_begins_although_a_begin_that_nobody_waits_for_is_answered_late(node: LoopbackNode, session: Session) -> None:
    node.control("delay", kind="CommandRequest", when="after", count=1)
    with pytest.raises(nervix_ffi.DeadlineError):
        session.transaction().begin(timeout=0.2)
    node.control("clear")
    gc.collect()
    for name in ("made", "later"):
        with session.transaction(timeout=PATIENCE) as tx:
            tx.execute(f"CREATE SCHEMA {name} (id U32);", timeout=PATIENCE)
    assert [it["state"] for it in transactions(node)] == ["REVERTED", "COMMITTED", "COMMITTED"]


@pytest.mark.rule("X-1", "X-3")
def test_a_block_begins_although_the_server_holds_one_that_nobody_was_told_of(node: LoopbackNode, session: Session) -> None:
    # It began, and was answered as if it had not.
    node.control("disposition", disposition="RequestFailed", execute=True, count=1)
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
    assert [it["state"] for it in transactions(node)] == ["REVERTED", "COMMITTED"]
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-2", "X-3", "E-3")
def test_a_command_is_part_of_no_transaction_that_only_may_have_begun(node: LoopbackNode, session: Session) -> None:
    tx = session.transaction()
    node.control("delay", kind="CommandRequest", when="before", count=1)
    with pytest.raises(nervix_ffi.DeadlineError):
        tx.begin(timeout=0.2)
    later = Running(lambda: session.execute(LATER, timeout=PATIENCE))
    wait(node, held=1)
    node.control("release")
    with pytest.raises(nervix_ffi.RejectedError, match="nothing was sent, as the session holds transaction"):
        later.result()
    tx.begin(timeout=PATIENCE)
    assert tx.execute(SCHEMA, timeout=PATIENCE).admission is not None
    tx.commit(timeout=PATIENCE)
    assert exists(node, "SCHEMA made")
    assert not exists(node, "SCHEMA later")


@pytest.mark.rule("X-1", "X-3")
def test_a_transaction_of_plain_commands_is_the_hosts_own_affair(node: LoopbackNode, session: Session) -> None:
    session.execute("BEGIN;", timeout=PATIENCE)
    assert session.execute(SCHEMA, timeout=PATIENCE).admission is not None
    session.execute("COMMIT;", timeout=PATIENCE)
    assert exists(node, "SCHEMA made")


@pytest.mark.rule("X-3", "X-7")
def test_a_block_that_nobody_ends_nor_keeps_is_reverted_before_anything_else(node: LoopbackNode, session: Session) -> None:
    def block() -> None:
        # A signal's handler may raise at the first bytecode of __exit__, which then never runs.
        tx = session.transaction(timeout=PATIENCE)
        tx.__enter__()
        tx.execute(SCHEMA, timeout=PATIENCE)

    block()
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert exists(node, "SCHEMA later")


@pytest.mark.rule("X-7")
@pytest.mark.parametrize("how", ["failed", "not begun", "not sent", "taken over"])
def test_errors_of_transactions_keep_no_session_alive(node: LoopbackNode, how: str) -> None:
    gc.collect()
    gc.disable()
    try:
        session = connect(node)
        if how == "failed":
            with pytest.raises(nervix_ffi.CommandFailed):
                session.execute("SHOW CREATE SCHEMA nothing;", timeout=PATIENCE)
        elif how == "not begun":
            with pytest.raises(nervix_ffi.CommandFailed), session.transaction("nowhere", timeout=PATIENCE):
                pytest.fail("it began")
        elif how == "not sent":
            leave_unreverted(node, session)
            with pytest.raises(nervix_ffi.DeadlineError, match="nothing was sent"):
                session.execute(LATER, timeout=0.05)
            node.control("accept", mode="accept")
            session.execute(LATER, timeout=PATIENCE)
        else:
            with pytest.raises(nervix_ffi.TransactionTakenOver), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
                node.control("transaction", action="take_over")
                tx.execute(SCHEMA, timeout=PATIENCE)
            del tx
        alive = weakref.ref(session)
        del session
        assert alive() is None
    finally:
        gc.enable()


# ---- several threads


@pytest.mark.rule("X-1", "X-3", "X-6")
def test_transactions_of_several_threads_are_each_told_their_own(node: LoopbackNode, session: Session) -> None:
    rounds = 40
    told: list[tuple[str | None, str | None]] = []
    refused: set[str] = set()

    def work(thread: int) -> tuple[int, int]:
        committed = failed = 0
        for number in range(rounds):
            name = f"t{thread}_{number}"
            fails = number % 3 == 0
            while True:
                try:
                    with session.transaction(timeout=PATIENCE) as tx:
                        outcome = tx.execute(f"CREATE SCHEMA {name} (id U32);", timeout=PATIENCE)
                        assert outcome.admission is not None
                        assert tx.status is not None
                        assert (tx.status.id, tx.status.accepted) == (outcome.admission.preview.transaction, 1)
                        if fails:
                            node.control("execute", domain=DOMAIN, statement=f"CREATE SCHEMA {name} (id U32);")
                except nervix_ffi.TransactionFailed as failure:
                    told.append((failure.status.id if failure.status else None, tx.id))
                    failed += 1
                except nervix_ffi.CommandFailed as failure:
                    # Another thread's is held.
                    refused.add(failure.execution.query if failure.execution else "")
                    continue
                else:
                    committed += 1
                assert tx.finished
                break
        return committed, failed

    threads = [Running(lambda thread=thread: work(thread)) for thread in range(3)]  # type: ignore[misc]
    failing = len(range(0, rounds, 3))
    assert [thread.result() for thread in threads] == [(rounds - failing, failing)] * 3
    assert refused <= {"BEGIN;"}
    assert all(found == own is not None for found, own in told)
    states = [it["state"] for it in transactions(node)]
    assert (states.count("COMMITTED"), states.count("FAILED")) == (3 * (rounds - failing), 3 * failing)
    assert session.execute(LATER, timeout=PATIENCE).transaction is None
    assert forbidden(node) == {}


# ---- signals


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler()) and None
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.rule("X-3", "N-4")
@pytest.mark.parametrize("handler", ["command", "interrupt"])
def test_a_signal_while_the_session_ends_a_transaction_makes_nothing_part_of_it(
    node: LoopbackNode, session: Session, on_signal: Callable[[Callable[[], Any]], None], handler: str
) -> None:
    leave_unreverted(node, session)
    execution = session.prepare(LATER)
    found: list[BaseException] = []

    def handle() -> None:
        node.control("release")
        if handler == "interrupt":
            raise KeyboardInterrupt
        try:
            session.execute("CREATE SCHEMA inner (id U32);", timeout=PATIENCE)
        except nervix_ffi.Error as failure:
            found.append(failure)

    on_signal(handle)
    node.control("delay", kind="CommandRequest", when="before", count=1)
    reverts = sent(node, "CommandRequest")

    def signal_when_held() -> None:
        wait(node, held=1)
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=signal_when_held)
    sender.start()
    node.control("accept", mode="accept")
    try:
        assert execution.run(timeout=PATIENCE).completed
    except KeyboardInterrupt as interruption:
        found.append(interruption)
        carried = vars(interruption)
        assert carried["execution"] is execution
        assert all("was not sent this time" in note for note in carried["__notes__"])
        assert execution.run(timeout=PATIENCE).completed
    sender.join()
    assert len(found) == 1
    if handler == "command":
        assert isinstance(found[0], nervix_ffi.TransportError)
        assert "nothing was sent" in str(found[0])
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]
    assert exists(node, "SCHEMA later")
    assert not exists(node, "SCHEMA inner")
    assert sent(node, "CommandRequest") > reverts
    assert counts(node)["executed"][execution.reference] == 1
