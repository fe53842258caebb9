"""A command that is repeated in another session, or in spite of a server that found it malformed: E-2, E-3, T-6."""

from __future__ import annotations

import gc
import time
from contextlib import suppress

import pytest

import nervix_ffi
from nervix_ffi import Disposition, Origin
from nervix_ffi.cancel import Limit
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, Running, connect, executed, publish, read_ids, sent, wait
from .test_transactions import SCHEMA, applied, exists, forbidden, transactions
from .test_unfinished_transactions import LATER

Session = nervix_ffi.Session

REQUEST = {"direction": "in", "kind": "CommandRequest"}
OUTCOME = {"direction": "out", "kind": "CommandOutcome"}


@pytest.mark.rule("E-2", "E-3", "N-2", "X-2")
@pytest.mark.parametrize("what", ["append", "commit"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_has_what_another_session_has_to_repeat(node: LoopbackNode, what: str, when: str) -> None:
    session = connect(node)
    tx = session.transaction()
    tx.begin(timeout=PATIENCE)
    tx.execute(SCHEMA, timeout=PATIENCE)
    preview = tx.preview
    node.control("delay", when=when)
    call = Running(lambda: tx.execute(LATER, timeout=PATIENCE) if what == "append" else tx.commit(timeout=PATIENCE))
    wait(node, held=1)
    session.close()
    with pytest.raises(nervix_ffi.ClosedError) as caught:
        call.result()
    lost = caught.value.execution
    assert lost is not None
    assert (lost.position, lost.preview) == (1, preview if what == "commit" else None)
    assert f"prepare(query, reference={lost.reference!r}, position=1" in str(caught.value)
    assert ("preview=" in str(caught.value)) == (what == "commit")
    wait(node, sessions={"exactly": 0})
    node.control("clear")
    with connect(node) as other:
        given = {"reference": lost.reference, "position": lost.position, "preview": lost.preview}
        again = other.prepare(lost.query, **given)  # type: ignore[arg-type]
        assert (again.position, again.preview) == (lost.position, lost.preview)
        outcome = again.run(timeout=PATIENCE, check=False)
    if when == "after":
        assert outcome.origin == Origin.RECOVERED
        assert outcome.completed
        assert (outcome.admission is not None) == (what == "append")
    else:
        # It never was part of the transaction, and is no command outside of it either.
        assert outcome.disposition != Disposition.COMPLETED
    assert exists(node, "SCHEMA later") is False
    assert exists(node, "SCHEMA made") == (what == "commit" and when == "after")


@pytest.mark.rule("E-2")
def test_a_command_says_what_it_was_sent_with_once_it_was(node: LoopbackNode, session: Session) -> None:
    plain = session.prepare(LATER)
    assert (plain.position, plain.preview) == (None, None)
    plain.run(timeout=PATIENCE)
    assert (plain.position, plain.preview) == (None, None)
    with session.transaction(timeout=PATIENCE) as tx:
        append = session.prepare(SCHEMA)
        assert append.position is None
        append.run(timeout=PATIENCE)
        assert append.position == 0
        commit = session.prepare("COMMIT;")
        commit.run(timeout=PATIENCE)
        assert (commit.position, commit.preview) == (1, tx.preview)
    commit.release()
    with pytest.raises(nervix_ffi.ClosedError):
        _ = commit.position


@pytest.mark.rule("E-2", "X-2")
@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("same", [False, True], ids=["another session", "the same session"])
def test_what_was_sent_outside_of_a_transaction_is_repeated_inside_of_none(
    node: LoopbackNode, session: Session, arrived: bool, same: bool
) -> None:
    with connect(node) as first:
        first = session if same else first
        lost = first.prepare(LATER)
        node.control("cut", how="abort", when="before", **(OUTCOME if arrived else REQUEST))
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.DeadlineError):
            lost.run(timeout=0.2)
        node.control("accept", mode="accept")
        with pytest.raises(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
            tx.execute(SCHEMA, timeout=PATIENCE)
            again = session.prepare(LATER, reference=lost.reference)
            with pytest.raises(nervix_ffi.UncertainError, match="not known to belong to transaction"):
                again.run(timeout=PATIENCE)
            _ = 1 / 0
        outcome = again.run(timeout=PATIENCE)
    assert outcome.admission is None
    assert outcome.origin == (Origin.RECOVERED if arrived else Origin.EXECUTED)
    assert exists(node, "SCHEMA later")
    assert executed(node, lost.reference) == 1
    assert forbidden(node) == {}


@pytest.mark.rule("T-6", "E-3", "X-5")
@pytest.mark.parametrize("code", [11, 13])
@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught in the block"])
def test_a_commit_that_the_server_found_malformed_is_sent_again_by_the_host_alone(
    node: LoopbackNode, session: Session, code: int, arrived: bool, caught: bool
) -> None:
    uncertain = pytest.raises(nervix_ffi.UncertainError, match="may have happened")
    with uncertain as told, session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", when="before", how="status", code=code, **(OUTCOME if arrived else REQUEST))
        if caught:
            with pytest.raises(nervix_ffi.UncertainError):
                tx.commit(timeout=PATIENCE)
    commit = told.value.execution
    assert commit is not None
    requests = sent(node, "CommandRequest")
    for _ in range(2):
        with pytest.raises(nervix_ffi.TransportError, match=f"not sent again by itself.*{commit.reference}"):
            session.execute(LATER, timeout=PATIENCE)
    assert sent(node, "CommandRequest") == requests
    assert commit.run(timeout=PATIENCE).completed
    assert session.execute(LATER, timeout=PATIENCE).admission is None
    assert applied(node) == {append.reference: 1}
    assert [it["state"] for it in transactions(node)] == ["COMMITTED"]


@pytest.mark.rule("S-1", "S-2", "N-2")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_subscription_whose_opening_was_given_up_is_had_all_the_same(node: LoopbackNode, session: Session, when: str) -> None:
    node.control("delay", kind="SubscribeRequest", when=when)
    with pytest.raises(nervix_ffi.DeadlineError) as caught:
        session.subscribe("readings", name="mine", timeout=0.2)
    node.control("clear")
    assert caught.value.execution is not None
    subscription = session.subscription(caught.value.execution.run(timeout=PATIENCE))
    publish(node, 1, 2)
    assert read_ids(subscription, 2) == [1, 2]
    subscription.delete(timeout=PATIENCE)
    assert list(subscription) == []
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="no subscription"):
        session.subscription(session.execute("LIST DOMAINS;", timeout=PATIENCE))


@pytest.mark.rule("X-6", "X-1")
def test_a_transaction_is_of_the_domain_that_the_server_names(node: LoopbackNode, session: Session) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        assert tx.status is not None
        assert tx.domain == tx.status.domain == DOMAIN


@pytest.mark.rule("E-2", "X-2", "X-3")
@pytest.mark.parametrize("what", ["append", "commit", "commit without a preview", "revert"])
@pytest.mark.parametrize("arrived", [False, True])
def test_what_was_part_of_another_transaction_does_nothing_to_the_one_under_way(
    node: LoopbackNode, session: Session, what: str, arrived: bool
) -> None:
    lost = of_a_lost_session(node, what, arrived)
    given = {"reference": lost.reference, "position": lost.position, "preview": lost.preview}
    with session.transaction(timeout=PATIENCE) as tx:
        made = tx.execute("CREATE SCHEMA mine (id U32);", timeout=PATIENCE)
        again = session.prepare(lost.query, **given)  # type: ignore[arg-type]
        with pytest.raises(nervix_ffi.UncertainError, match="not known to belong to transaction"):
            again.run(timeout=PATIENCE)
        assert not tx.finished
    assert tx.finished
    assert applied(node)[made.reference] == 1
    assert exists(node, "SCHEMA mine")
    outcome = again.run(timeout=PATIENCE, check=False)
    assert outcome.completed == arrived
    assert forbidden(node) == {}


def of_a_lost_session(node: LoopbackNode, what: str, arrived: bool) -> nervix_ffi.Execution:
    """A command of a transaction whose session ended before its outcome was known."""
    with connect(node) as first:
        tx = first.transaction()
        tx.begin(timeout=PATIENCE)
        tx.execute(SCHEMA, timeout=PATIENCE)
        query = {"append": LATER, "revert": "REVERT;"}.get(what, "COMMIT;")
        execution = first.prepare(f"{LATER} {query}" if "without" in what else query)
        node.control("cut", how="abort", when="before", **(OUTCOME if arrived else REQUEST))
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.DeadlineError):
            execution.run(timeout=0.2)
    node.control("accept", mode="accept")
    return execution


@pytest.mark.rule("T-6", "E-3")
@pytest.mark.parametrize("by", ["revert", "its execution", "the session", "a commit"])
@pytest.mark.parametrize("arrived", [False, True])
def test_a_revert_that_the_server_found_malformed_is_made_again_by_the_host(
    node: LoopbackNode, session: Session, by: str, arrived: bool
) -> None:
    with pytest.raises(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", when="before", how="status", code=13, **(OUTCOME if arrived else REQUEST))
        with pytest.raises(nervix_ffi.UncertainError) as uncertain:
            tx.revert(timeout=PATIENCE)
        _ = 1 / 0
    requests = sent(node, "CommandRequest")
    with pytest.raises(nervix_ffi.TransportError, match="not sent again by itself"):
        session.execute(LATER, timeout=PATIENCE)
    with pytest.raises(nervix_ffi.TransportError, match="not sent again by itself"):
        session.attach_clock(timeout=PATIENCE)
    assert sent(node, "CommandRequest") == requests
    if by == "revert":
        assert tx.revert(timeout=PATIENCE).completed
    elif by == "its execution":
        assert uncertain.value.execution is not None
        assert uncertain.value.execution.run(timeout=PATIENCE).completed
    else:
        # Where the server has none any more, that is what it says.
        session.execute("REVERT;" if by == "the session" else "COMMIT;", timeout=PATIENCE, check=False)
    assert session.execute(LATER, timeout=PATIENCE, check=False).admission is None
    assert exists(node, "SCHEMA made") == (by == "a commit" and not arrived)
    assert transactions(node)[0]["state"] != "OPEN"


@pytest.mark.rule("T-6", "X-5")
def test_a_revert_found_malformed_is_not_made_again_once_a_commit_is_known(node: LoopbackNode, session: Session) -> None:
    tx, reference = malformed_behind_a_lost_commit(node, session, "REVERT;")
    assert tx.revert(timeout=PATIENCE).completed
    assert requests_of(node, reference) == 1
    assert session.execute(LATER, timeout=PATIENCE).admission is None
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]


def malformed_behind_a_lost_commit(node: LoopbackNode, session: Session, query: str) -> tuple[nervix_ffi.Transaction, str | None]:
    """A block that raises after its commit was lost and another end of it found malformed, of which the session then sends none."""
    with pytest.raises(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", when="before", how="abort", **REQUEST)
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.DeadlineError):
            tx.commit(timeout=0.2)
        node.control("accept", mode="accept")
        node.control("cut", when="before", how="status", code=13, **REQUEST)
        with pytest.raises(nervix_ffi.UncertainError) as malformed:
            session.execute(query, timeout=PATIENCE)
        _ = 1 / 0
    # What the session asks about is the commit; that one is refused.
    node.control("disposition", disposition="RequestFailed", execute=False)
    with pytest.raises(nervix_ffi.TransportError, match="not sent again by itself"):
        session.execute(LATER, timeout=PATIENCE)
    assert requests_of(node, malformed.value.reference) == 0
    return tx, malformed.value.reference


def requests_of(node: LoopbackNode, reference: str | None) -> int:
    """How often a command arrived."""
    entries = node.journal()["entries"]
    return sum(entry.get("kind") == "CommandRequest" and entry.get("reference") == reference for entry in entries)


@pytest.mark.rule("E-3", "X-5")
def test_a_commit_that_was_prepared_before_is_asked_about_too(node: LoopbackNode, session: Session) -> None:
    early = session.prepare("COMMIT;")
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("cut", how="abort", when="before", **OUTCOME)
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.DeadlineError):
            early.run(timeout=0.2)
        node.control("accept", mode="accept")
    assert tx.finished
    assert applied(node) == {append.reference: 1}
    assert executed(node, early.reference) == 1
    assert early.run(timeout=PATIENCE).completed


@pytest.mark.rule("E-3", "X-3", "X-5")
@pytest.mark.parametrize("query", ["COMMIT;", "REVERT;"])
@pytest.mark.parametrize("first", ["lost", "lost outside", "refused", "of a plain BEGIN"])
def test_an_end_that_is_run_again_is_none_of_the_transaction_under_way(
    node: LoopbackNode, session: Session, query: str, first: str
) -> None:
    made = None
    if first == "lost":
        with pytest.raises(ZeroDivisionError), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
            tx.execute(LATER, timeout=PATIENCE)
            made = session.prepare(query)
            lose(node, made)
            _ = 1 / 0
        del tx
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    else:
        if first == "of a plain BEGIN":
            session.execute("BEGIN;", timeout=PATIENCE)
        made = session.prepare(query)
        if first == "refused":
            with pytest.raises(nervix_ffi.CommandFailed):
                made.run(timeout=PATIENCE)
        else:
            lose(node, made)
        if first == "of a plain BEGIN":
            made.run(timeout=PATIENCE)
    with session.transaction(timeout=PATIENCE) as under_way:
        append = under_way.execute(SCHEMA, timeout=PATIENCE)
        with suppress(nervix_ffi.Error):
            made.run(timeout=PATIENCE)
        assert not under_way.finished
    assert under_way.finished
    assert applied(node)[append.reference] == 1
    assert session.execute("DROP SCHEMA made;", timeout=PATIENCE).admission is None


def lose(node: LoopbackNode, execution: nervix_ffi.Execution) -> None:
    """Run a command and lose its answer."""
    node.control("cut", how="abort", when="before", **OUTCOME)
    node.control("accept", mode="refuse")
    with pytest.raises(nervix_ffi.DeadlineError):
        execution.run(timeout=0.2)
    node.control("accept", mode="accept")


@pytest.mark.rule("T-6", "E-3", "X-5")
def test_no_commit_that_the_server_found_malformed_is_made_when_another_one_is_known(
    node: LoopbackNode, session: Session
) -> None:
    malformed_behind_a_lost_commit(node, session, "COMMIT;")
    assert not exists(node, "SCHEMA made")


@pytest.mark.rule("X-1", "X-3", "X-8")
@pytest.mark.parametrize("how", ["an old commit", "its own BEGIN"])
def test_a_transaction_that_nobody_keeps_is_not_reverted_for_what_is_run_again(
    node: LoopbackNode, session: Session, how: str
) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute(LATER, timeout=PATIENCE)
        old = session.prepare("COMMIT;")
        old.run(timeout=PATIENCE)
    del tx
    begun = session.transaction()
    if how == "its own BEGIN":
        node.control("cut", how="abort", when="before", **OUTCOME)
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.DeadlineError) as uncertain:
            begun.begin(timeout=0.2)
        node.control("accept", mode="accept")
        old = uncertain.value.execution or old
    else:
        begun.begin(timeout=PATIENCE)
        begun.execute(SCHEMA, timeout=PATIENCE)
    del begun
    gc.collect()
    assert old.run(timeout=PATIENCE).completed
    if how == "its own BEGIN":
        # Whoever runs that keeps account of it.
        assert session.execute(SCHEMA, timeout=PATIENCE).admission is not None
    else:
        with pytest.raises(nervix_ffi.RejectedError, match="nothing was sent"):
            session.execute("CREATE SCHEMA other (id U32);", timeout=PATIENCE)
    session.execute("COMMIT;", timeout=PATIENCE)
    assert exists(node, "SCHEMA made")


@pytest.mark.rule("E-3", "X-5")
def test_a_commit_behind_one_that_was_never_sent_is_asked_about_too(node: LoopbackNode, session: Session) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        node.control("delay", when="before")
        slow = Running(lambda: session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE))
        wait(node, held=1)
        first, second, token = session.prepare("COMMIT;"), session.prepare("COMMIT;"), nervix_ffi.Cancel()
        waiting = Running(lambda: first.run(cancel=token))
        while first not in tx._commits:
            time.sleep(0.001)
        with pytest.raises(nervix_ffi.DeadlineError, match="not sent"):
            second.run(timeout=0.1)
        assert tx._commits == [first]
        token.trigger()
        with pytest.raises(nervix_ffi.CancelledError, match="not sent"):
            waiting.result()
        assert tx._commits == []
        node.control("release")
        slow.result()
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-3")
def test_the_end_of_a_transaction_that_nobody_has_is_not_that_of_one_begun_meanwhile(
    node: LoopbackNode, session: Session
) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        # As another thread's call does when it finds one that nobody has, just before this one began.
        session._revert("transaction-0", Limit(PATIENCE, None))
        assert not tx.finished
    assert tx.finished
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-3", "E-7")
def test_a_revert_behind_a_refused_statement_reverts_nothing(node: LoopbackNode, session: Session) -> None:
    with session.transaction(timeout=PATIENCE) as tx:
        append = tx.execute(SCHEMA, timeout=PATIENCE)
        with pytest.raises(nervix_ffi.CommandFailed):
            tx.execute("CREATE RELAY nothing SCHEMA nowhere UNBRANCHED; REVERT;", timeout=PATIENCE)
        assert not tx.finished
    assert applied(node) == {append.reference: 1}


@pytest.mark.rule("X-3", "X-7")
def test_a_signal_while_a_block_is_left_makes_nothing_part_of_it(
    node: LoopbackNode, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: nervix_ffi.Transaction) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.transaction(timeout=PATIENCE) as tx:  # noqa: PT012
        tx.execute(SCHEMA, timeout=PATIENCE)
        monkeypatch.setattr(nervix_ffi.Transaction, "_pass", interrupted)
        _ = 1 / 0
    assert session.execute(LATER, timeout=PATIENCE).admission is None
    assert [it["state"] for it in transactions(node)] == ["REVERTED"]


@pytest.mark.rule("E-3", "X-5", "X-1")
@pytest.mark.parametrize("what", ["begin", "commit"])
def test_a_call_that_sends_nothing_makes_nothing_known(
    node: LoopbackNode, session: Session, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def exhausted() -> None:
        raise OSError(24, "too many open files")

    tx = session.transaction()
    if what == "commit":
        tx.begin(timeout=PATIENCE)
        tx.execute(SCHEMA, timeout=PATIENCE)
    call = tx.begin if what == "begin" else tx.commit
    node.control("cut", how="abort", when="before", **OUTCOME)
    node.control("accept", mode="refuse")
    with pytest.raises(nervix_ffi.DeadlineError) as uncertain:
        call(timeout=0.2)
    node.control("accept", mode="accept")
    with monkeypatch.context() as patch:
        patch.setattr("nervix_ffi._handle.attention", exhausted)
        with pytest.raises(nervix_ffi.TransportError, match="nothing was sent"):
            call(timeout=PATIENCE)
    assert call(timeout=PATIENCE).reference == uncertain.value.reference
    assert executed(node, uncertain.value.reference) == 1
