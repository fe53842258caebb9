"""Subscriptions: generations, gaps, ends and bounded queues."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import EndReason, Interrupted, Rows
from nervix_ffi.testing import LoopbackNode

from ..support import (
    DOMAIN,
    PATIENCE,
    Running,
    counts,
    expect_line,
    finish,
    next_event,
    publish,
    python,
    read_ids,
    reading,
    reopened,
    row_ids,
    sent,
    wait,
)

# ---- opening and deleting


@pytest.mark.rule("S-2")
def test_a_subscription_has_a_name_a_generation_and_the_schema_of_its_relay(session: nervix_ffi.Session) -> None:
    outcome = session.execute("CREATE SUBSCRIPTION s TO sites;", timeout=PATIENCE)
    assert outcome.subscription is not None
    assert outcome.schema is not None
    assert (outcome.subscription.name, outcome.subscription.generation > 0) == ("s", True)
    assert [str(field) for field in outcome.schema.fields] == ["id U32", "site STRING", "secret STRING SENSITIVE"]
    assert (outcome.schema.branch, [field.name for field in outcome.schema.key_fields]) == ("by_site", ["site"])


@pytest.mark.rule("S-6")
def test_a_deleted_name_is_free_at_once_and_hears_nothing_more(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    generations = set()
    for turn in range(5):
        subscription = session.subscribe("readings", name="again")
        generations.add(subscription.generation)
        publish(node, turn, turn + 100)
        # Deleted with rows unread: those of this generation must not turn up in the next.
        if turn % 2:
            assert read_ids(subscription, 2) == [turn, turn + 100]
        assert subscription.delete(timeout=PATIENCE) is not None
    assert len(generations) == 5
    with session.subscribe("readings", name="again") as last:
        publish(node, 77)
        assert read_ids(last, 1) == [77]


@pytest.mark.rule("S-6")
def test_a_name_in_use_is_refused_and_stays_in_use(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.subscribe("readings", name="once") as once:
        with pytest.raises(nervix_ffi.CommandFailed):
            session.subscribe("readings", name="once")
        publish(node, 1)
        assert read_ids(once, 1) == [1]


@pytest.mark.rule("S-1")
def test_a_subscription_that_cannot_open_says_why(session: nervix_ffi.Session) -> None:
    with pytest.raises(nervix_ffi.CommandFailed) as caught:
        session.subscribe("nowhere")
    assert caught.value.outcome.message
    with pytest.raises(nervix_ffi.CommandFailed) as caught:
        session.execute("CREATE SUBSCRIPTION s TO readings WHERE;", timeout=PATIENCE)
    assert caught.value.diagnostics[0].span is not None


@pytest.mark.rule("S-3")
def test_a_filter_and_two_subscriptions_each_see_their_own_rows(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.subscribe("readings", where="id > 2 AND note = 'x'") as some, session.subscribe("readings") as every:
        rows = [reading(number, "x" if number % 2 else "y") for number in range(6)]
        node.control("publish", domain=DOMAIN, relay="readings", rows=rows)
        assert read_ids(some, 2) == [3, 5]
        assert read_ids(every, 6) == [0, 1, 2, 3, 4, 5]


@pytest.mark.rule("CL-1")
def test_a_filter_may_read_the_clock_and_open_before_start(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    for statement in (
        "CREATE UNPACED DOMAIN later;",
        "USE later;",
        "CREATE SCHEMA timed (id U32, at DATETIME);",
        "CREATE RELAY times SCHEMA timed UNBRANCHED;",
    ):
        session.execute(statement, timeout=PATIENCE)
    with session.subscribe("times", where="at < now()") as past:
        session.execute("START;", timeout=PATIENCE)
        rows = [{"id": 1, "at": 0}, {"id": 2, "at": (1 << 63) - 1}, {"id": 3, "at": 5}]
        node.control("publish", domain="later", relay="times", rows=rows)
        assert read_ids(past, 2) == [1, 3]


# ---- the session is lost


@pytest.mark.rule("S-7", "D-5", "D-6", "B-7", "SM-2", "SM-4", "N-7")
@pytest.mark.parametrize("how", ["close", "abort", "reset", "goaway", "status"])
def test_a_lost_session_is_a_gap_and_then_a_new_generation(node: LoopbackNode, session: nervix_ffi.Session, how: str) -> None:
    with session.subscribe("readings", name="kept") as kept:
        publish(node, 1)
        first = next_event(kept)
        assert row_ids(first) == [1]
        node.control("cut", how=how)
        gap = next_event(kept)
        assert isinstance(gap, Interrupted)
        assert (gap.subscription, gap.generation) == ("kept", first.generation)
        reopened(node)
        publish(node, 2)
        again = next_event(kept)
        assert row_ids(again) == [2]
        assert again.generation != first.generation


@pytest.mark.rule("S-7", "D-6")
@pytest.mark.parametrize("reason", ["ServerShuttingDown", "ProtocolViolated"])
def test_a_session_that_the_server_ends_is_opened_again(node: LoopbackNode, session: nervix_ffi.Session, reason: str) -> None:
    with session.subscribe("readings") as kept:
        node.control("end", reason=reason)
        assert isinstance(next_event(kept), Interrupted)
        reopened(node)
        publish(node, 3)
        assert read_ids(kept, 1) == [3]


@pytest.mark.rule("S-7", "B-7")
def test_a_refused_reopening_is_reported_and_repeated(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.subscribe("readings", name="kept") as kept:
        node.control("refuse_subscribe", count=3, message="not now")
        node.control("cut", how="reset")
        assert isinstance(next_event(kept), Interrupted)
        for _ in range(3):
            refused = next_event(kept)
            assert isinstance(refused, nervix_ffi.RestorationFailed)
            assert "not now" in (refused.message or "")
        reopened(node, answers=5)
        publish(node, 4)
        assert read_ids(kept, 1) == [4]
    assert sent(node, "SubscribeRequest") == 5


@pytest.mark.rule("S-7")
def test_a_deletion_while_the_reopening_is_refused_sends_nothing(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    kept = session.subscribe("readings", name="kept")
    node.control("refuse_subscribe", count=1000)
    node.control("cut", how="reset")
    assert isinstance(next_event(kept), Interrupted)
    assert isinstance(next_event(kept), nervix_ffi.RestorationFailed)
    outcome = kept.delete(timeout=PATIENCE)
    assert outcome is not None
    assert outcome.completed
    assert sent(node, "UnsubscribeRequest") == 0
    node.control("clear")
    # The name is free, and what was deleted does not come back.
    with session.subscribe("sites", name="kept") as other:
        assert counts(node)["subscriptions"] == 1
        node.control("publish", domain=DOMAIN, relay="sites", rows=[{"id": 9, "site": "a", "secret": "b"}])
        assert read_ids(other, 1) == [9]


@pytest.mark.rule("S-7")
def test_a_deletion_whose_session_ends_before_its_answer_is_complete(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    kept = session.subscribe("readings", name="kept")
    node.control("cut", direction="in", when="before", kind="UnsubscribeRequest", how="abort")
    outcome = kept.delete(timeout=PATIENCE)
    assert outcome is not None
    assert outcome.completed
    assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    wait(node, subscriptions={"exactly": 0}, sessions={"exactly": 1})
    assert session.subscribe("readings", name="kept").delete(timeout=PATIENCE) is not None


@pytest.mark.rule("S-7")
def test_a_deletion_wins_over_a_reopening_in_flight(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    kept = session.subscribe("readings", name="kept")
    node.control("delay", kind="SubscribeRequest", when="before")
    node.control("cut", how="reset")
    assert isinstance(next_event(kept), Interrupted)
    wait(node, held=1)
    call = Running(lambda: kept.delete(timeout=PATIENCE))
    node.control("release")
    outcome = call.result()
    assert outcome is not None
    assert outcome.completed
    wait(node, subscriptions={"exactly": 0})
    with session.subscribe("readings", name="kept") as again:
        publish(node, 5)
        assert read_ids(again, 1) == [5]


@pytest.mark.rule("S-7", "D-6")
def test_a_subscription_whose_answer_was_lost_is_opened_once(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("cut", direction="out", when="before", kind="SubscribeOutcome", how="abort")
    with session.subscribe("readings", name="kept") as kept:
        reopened(node, answers=1)
        publish(node, 6)
        events = [next_event(kept)]
        while not isinstance(events[-1], Rows):
            assert isinstance(events[-1], Interrupted)
            events.append(next_event(kept))
        assert row_ids(events[-1]) == [6]


@pytest.mark.rule("N-1", "N-7")
def test_rows_published_while_the_session_is_lost_are_not_delivered_later(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    with session.subscribe("readings") as kept:
        node.control("accept", mode="refuse")
        node.control("cut", how="abort")
        assert isinstance(next_event(kept), Interrupted)
        publish(node, 1, 2, 3)
        node.control("accept", mode="accept")
        reopened(node)
        publish(node, 4)
        assert read_ids(kept, 1) == [4]
    # Nothing that a user could mistake for a position to resume from.
    assert not {name for name in dir(kept) if "seek" in name or "resume" in name or "position" in name}


# ---- the server ends it


@pytest.mark.rule("S-4", "B-7")
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["DROP RELAY readings;"], EndReason.RELAY_REMOVED),
        (["CREATE SCHEMA other (id U32);", "ALTER RELAY readings SET SCHEMA other;"], EndReason.RELAY_CHANGED),
    ],
)
def test_an_ended_generation_is_over(
    node: LoopbackNode, session: nervix_ffi.Session, statements: list[str], reason: EndReason
) -> None:
    ended = session.subscribe("readings", name="kept")
    other = session.subscribe("sites", name="other")
    publish(node, 1)
    for statement in statements:
        node.control("execute", domain=DOMAIN, statement=statement)
    assert row_ids(next_event(ended)) == [1]
    last = next_event(ended)
    assert isinstance(last, nervix_ffi.Ended)
    assert (last.reason, last.generation) == (reason, ended.generation)
    assert list(ended) == []
    with pytest.raises(nervix_ffi.ClosedError):
        ended.next(timeout=PATIENCE)
    # A later session opens the other one again, and not this one.
    subscribed = sent(node, "SubscribeRequest")
    node.control("cut", how="reset")
    assert isinstance(next_event(other), Interrupted)
    reopened(node, answers=3)
    assert sent(node, "SubscribeRequest") == subscribed + 1


@pytest.mark.rule("S-4", "R-1")
def test_after_a_change_a_new_subscription_reads_the_new_schema(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    subscription = session.subscribe("readings", name="kept")
    publish(node, 1)
    before = next_event(subscription)
    session.execute("ALTER SCHEMA reading ADD extra STRING OPTIONAL;", timeout=PATIENCE)
    last = next_event(subscription)
    assert isinstance(last, nervix_ffi.Ended)
    assert last.reason == EndReason.RELAY_CHANGED
    with session.subscribe("readings", name="kept") as again:
        assert again.schema.names == ("id", "value", "note", "extra")
        node.control("publish", domain=DOMAIN, relay="readings", rows=[{**reading(2), "extra": "new"}])
        after = next_event(again)
    assert isinstance(before, Rows)
    assert isinstance(after, Rows)
    assert before.schema.names == ("id", "value", "note")
    assert after.rows() == [{"id": 2, "value": 2, "note": "", "extra": "new"}]


@pytest.mark.rule("S-4")
def test_deleting_an_ended_subscription_sends_nothing(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    session.execute("CREATE SUBSCRIPTION kept TO readings;", timeout=PATIENCE)
    session.execute("DROP RELAY readings;", timeout=PATIENCE)
    assert isinstance(session.next_event(timeout=PATIENCE), nervix_ffi.Ended)
    assert session.execute("DELETE SUBSCRIPTION kept;", timeout=PATIENCE).completed
    assert sent(node, "UnsubscribeRequest") == 0


# ---- more than can be kept


@pytest.mark.rule("S-5", "N-1")
def test_rows_that_dropping_delivery_drops_are_counted(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """A batch of more frames than the node's lane holds: what does not fit is lost, and every row is accounted for."""
    total = 40_000
    subscription = session.subscribe("readings", delivery="DROPPING")
    reader = Running(lambda: account(subscription, total))
    node.control("publish", domain=DOMAIN, relay="readings", rows=[reading(number) for number in range(total)])
    read, lost = reader.result()
    assert lost > 0
    assert len(read) + lost == total
    assert read == sorted(set(read))


def account(subscription: nervix_ffi.Subscription, total: int) -> tuple[list[int], int]:
    """Read until every row of `total` either came or was reported lost."""
    read: list[int] = []
    lost = 0
    while len(read) + lost < total:
        event = next_event(subscription)
        if isinstance(event, nervix_ffi.DeliveryLost):
            assert event.count > 0
            assert not event.local
            lost += event.count
        else:
            read += row_ids(event)
    return read, lost


@pytest.mark.rule("C-7", "S-8", "B-7")
def test_a_subscription_that_is_not_read_overflows_alone(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    session.execute("CREATE SUBSCRIPTION idle TO readings BLOCKING;", timeout=PATIENCE)
    session.execute("CREATE SUBSCRIPTION small TO sites;", timeout=PATIENCE)
    node.control("flood", domain=DOMAIN, relay="readings", rows=[reading(1)], times=1000)
    # The reader never waited: the node got rid of every frame, and is told that this subscription takes no more.
    wait(node, frames={"in": {"UnsubscribeRequest": 1}})
    assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    node.control("publish", domain=DOMAIN, relay="sites", rows=[{"id": 5, "site": "a", "secret": "b"}])
    events = [session.next_event(timeout=PATIENCE) for _ in range(2)]
    overflow = next(event for event in events if event.subscription == "idle")
    assert isinstance(overflow, nervix_ffi.Overflow)
    assert row_ids(next(event for event in events if event.subscription == "small")) == [5]
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("S-8", "B-7")
def test_a_subscription_that_overflowed_is_opened_again_on_the_next_session(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    subscription = session.subscribe("readings", name="idle", delivery="BLOCKING")
    node.control("flood", domain=DOMAIN, relay="readings", rows=[reading(1)], times=1000)
    wait(node, frames={"in": {"UnsubscribeRequest": 1}}, subscriptions={"exactly": 0})
    assert isinstance(next_event(subscription), nervix_ffi.Overflow)
    node.control("cut", how="reset")
    reopened(node)
    publish(node, 8)
    event = next_event(subscription)
    while isinstance(event, Interrupted):
        event = next_event(subscription)
    assert row_ids(event) == [8]


@pytest.mark.rule("S-8")
def test_one_frame_near_the_limit_fits(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    note = "x" * (3 << 20)
    with session.subscribe("readings") as subscription:
        node.control("publish", domain=DOMAIN, relay="readings", rows=[reading(1, note)])
        event = next_event(subscription)
    assert isinstance(event, Rows)
    assert len(event.frame) > 3 << 20
    assert event.rows()[0]["note"] == note


@pytest.mark.rule("S-8", "S-5")
def test_a_python_reader_that_is_behind_others_loses_rows_visibly(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """While one Subscription is read, what comes for another is kept, in a bounded queue."""
    fast, slow = session.subscribe("readings", name="fast"), session.subscribe("readings", name="slow")
    with pytest.raises(nervix_ffi.DeadlineError):
        slow.next(timeout=0)
    total = 3000
    reader = Running(lambda: read_ids(fast, total))
    for start in range(0, total, 50):
        publish(node, *range(start, start + 50))
    assert reader.result() == list(range(total))
    read: list[int] = []
    lost = 0
    while len(read) + lost < total:
        event = next_event(slow)
        if isinstance(event, nervix_ffi.DeliveryLost):
            assert event.local
            lost += event.count
        else:
            read += row_ids(event)
    assert read == sorted(set(read))


CLIENT = """
    import sys
    import nervix_ffi

    with nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30) as session:
        with session.subscribe("readings", delivery="BLOCKING") as subscription:
            print("SUBSCRIBED", flush=True)
            seen = []
            while len(seen) < int(sys.argv[2]):
                event = subscription.next(timeout=60)
                seen += event.column("id").to_list()
                event.release()
            assert seen == list(range(len(seen))), "rows are missing"
            print("ALL", flush=True)
"""


@pytest.mark.rule("S-9")
def test_a_blocking_subscription_whose_client_stands_still_holds_its_relay_back(node: LoopbackNode) -> None:
    batches, size = 64, 64
    client = python(CLIENT, node.uri, str(batches * size))
    try:
        expect_line(client, "SUBSCRIBED")
        client.send_signal(signal.SIGSTOP)

        def fill() -> None:
            for batch in range(batches):
                rows: list[Any] = [reading(batch * size + row, "x" * 4000) for row in range(size)]
                node.control("publish", domain=DOMAIN, relay="readings", rows=rows)

        publisher = Running(fill)
        wait(node, blocked_publications=1)
        client.send_signal(signal.SIGCONT)
        publisher.result()
        expect_line(client, "ALL")
        assert finish(client) == ("", "")
    finally:
        client.kill()
        client.wait()
