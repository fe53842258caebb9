"""What a Subscription stands for: one opening of a name, for as long as the server has it."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, Running, connect, next_event, publish, row_ids, wait

PRICES = """
CREATE UNPACED DOMAIN lab;
USE lab;
CREATE SCHEMA price ({});
CREATE RELAY prices SCHEMA price UNBRANCHED;
START;
"""


@pytest.mark.rule("R-1", "S-3")
@pytest.mark.parametrize("deleted", [True, False], ids=["deleted before", "still open"])
def test_a_generation_number_that_comes_again_has_the_fields_of_its_own_opening(deleted: bool) -> None:
    with LoopbackNode(load=PRICES.format("price I64, amount I64")) as node:
        uri = node.uri
        session = connect(node)
        subscription = session.subscribe("prices", name="s")
        node.publish("prices", [{"price": 1, "amount": 2}], domain=DOMAIN)
        first = next_event(subscription)
        assert isinstance(first, nervix_ffi.Rows)
        if deleted:
            subscription.delete(timeout=PATIENCE)
    listen = ["--listen", f"127.0.0.1:{urllib.parse.urlsplit(uri).port}"]
    with session, LoopbackNode(load=PRICES.format("amount I64, price I64, note STRING"), options=listen) as node:
        row: dict[str, Any] = {"amount": 10, "price": 999, "note": "n"}
        if deleted:
            subscription = session.subscribe("prices", name="s", timeout=PATIENCE)
            assert subscription.generation == first.generation, "the numbers are not the same: the test says nothing"
        else:
            wait(node, subscriptions=1)
        node.publish("prices", [row], domain=DOMAIN)
        while not isinstance(event := next_event(subscription), nervix_ffi.Rows):
            pass
        assert event.rows() == [row]
        assert event.to_arrow().to_pylist() == [row]
        assert event.schema.names == ("amount", "price", "note")
    assert first.rows() == [{"price": 1, "amount": 2}]


def test_a_read_that_may_not_wait_returns_what_is_there(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    subscription = session.subscribe("readings")
    with pytest.raises(nervix_ffi.DeadlineError):
        subscription.next(timeout=0)
    for number in range(3):
        publish(node, number)
    found: list[Any] = []

    def poll() -> None:
        # Nothing tells when an event has arrived; a read that never returned one would poll for ever.
        while len(found) < 3:
            try:
                found.extend(row_ids(subscription.next(timeout=0)))
            except nervix_ffi.DeadlineError:
                continue

    Running(poll).result()
    assert found == [0, 1, 2]
    over = nervix_ffi.Cancel(0)
    with pytest.raises(nervix_ffi.DeadlineError):
        subscription.next(cancel=over)


@pytest.mark.parametrize(
    "statement",
    ["DELETE SUBSCRIPTION s;", "delete  subscription s", "// gone\nDELETE SUBSCRIPTION s; // now\n"],
)
def test_a_subscription_deleted_by_a_statement_ends_its_readers(session: nervix_ffi.Session, statement: str) -> None:
    subscription, unread = session.subscribe("readings", name="s"), session.subscribe("readings", name="unread")
    reading = Running(lambda: list(subscription))
    waiting = Running(lambda: subscription.next(timeout=PATIENCE))
    assert session.execute(statement, timeout=PATIENCE).completed
    assert reading.result() == []
    with pytest.raises(nervix_ffi.ClosedError, match="over"):
        waiting.result()
    assert subscription.delete() is None
    session.execute("DELETE SUBSCRIPTION unread;", timeout=PATIENCE)
    with pytest.raises(nervix_ffi.ClosedError, match="over"):
        unread.next(timeout=PATIENCE)


def test_what_was_read_before_a_deletion_is_not_lost(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    subscription, other = session.subscribe("readings", name="s"), session.subscribe("readings", name="other")
    with pytest.raises(nervix_ffi.DeadlineError):
        subscription.next(timeout=0)
    publish(node, 1)
    wait(node, frames={"out": {"SubscriptionRows": 2}})
    assert row_ids(next_event(other)) == [1]
    publish(node, 2)
    while len(subscription._channel._queue) < 2:
        row_ids(next_event(other))
        publish(node, 2)
    session.execute("DELETE SUBSCRIPTION s;", timeout=PATIENCE)
    assert [row_ids(event)[0] for event in subscription][:2] == [1, 2]


@pytest.mark.parametrize("read", [True, False], ids=["read", "never read"])
def test_an_old_subscription_touches_none_that_has_its_name_now(
    node: LoopbackNode, session: nervix_ffi.Session, read: bool
) -> None:
    old = session.subscribe("readings", name="s")
    if read:
        publish(node, 1)
        assert row_ids(next_event(old)) == [1]
    session.execute("DELETE SUBSCRIPTION s;", timeout=PATIENCE)
    new = session.subscribe("readings", name="s")
    assert old.delete() is None
    old.close()
    with old:
        pass
    wait(node, subscriptions={"exactly": 1})
    publish(node, 2)
    assert row_ids(next_event(new)) == [2]
    assert list(old) == []
    new.delete(timeout=PATIENCE)
    wait(node, subscriptions={"exactly": 0})


def test_events_of_an_old_subscription_are_none_of_the_new_one_with_its_name(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    session.subscribe("readings", name="s")
    other = session.subscribe("readings", name="other")
    publish(node, 1)
    assert row_ids(next_event(other)) == [1]
    session.execute("DELETE SUBSCRIPTION s;", timeout=PATIENCE)
    new = session.subscribe("readings", name="s")
    publish(node, 2)
    assert row_ids(next_event(new)) == [2]


@pytest.mark.parametrize("how", ["DELETE SUBSCRIPTION s;", "DROP RELAY readings;"])
def test_leaving_the_block_of_a_subscription_that_is_no_more_is_quiet(
    node: LoopbackNode, session: nervix_ffi.Session, how: str
) -> None:
    with session.subscribe("readings", name="s"):
        if how.startswith("DELETE"):
            session.execute(how, timeout=PATIENCE)
        else:
            node.control("execute", domain=DOMAIN, statement=how)
            wait(node, subscriptions={"exactly": 0})
    assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


def test_a_deletion_that_is_refused_for_another_reason_is_an_error(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    subscription = session.subscribe("readings", name="s")
    node.control("reject", kind="UnsubscribeRequest", reason="InvalidRequest")
    with pytest.raises(nervix_ffi.RejectedError):
        subscription.delete(timeout=PATIENCE)
    publish(node, 1)
    assert row_ids(next_event(subscription)) == [1], "it goes on"
    assert subscription.delete(timeout=PATIENCE) is not None


def test_a_subscription_that_is_read_no_longer_can_still_be_deleted(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    subscription = session.subscribe("readings", name="s")
    subscription.close()
    wait(node, subscriptions={"exactly": 1})
    with pytest.raises(nervix_ffi.ClosedError):
        subscription.next(timeout=PATIENCE)
    outcome = subscription.delete(timeout=PATIENCE)
    assert outcome is not None
    assert outcome.completed
    wait(node, subscriptions={"exactly": 0})
    assert subscription.delete() is None


def test_a_statement_may_begin_with_a_comment(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    statement = "// the even ones\n  // of all\n CREATE SUBSCRIPTION even TO readings WHERE value IS NOT NULL;"
    with session.subscribe(statement, timeout=PATIENCE) as subscription:
        publish(node, 1, 2)
        assert row_ids(next_event(subscription)) == [2]
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="without where"):
        session.subscribe(statement, where="TRUE")
