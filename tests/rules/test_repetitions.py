"""A command that is repeated in another session, or in spite of a server that found it malformed: E-2, E-3, T-6."""

from __future__ import annotations

import pytest

import nervix_ffi
from nervix_ffi import Disposition, Origin
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
            with pytest.raises(nervix_ffi.UncertainError, match="does not belong to transaction"):
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
