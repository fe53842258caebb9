"""Timeouts, cancellation, and several readers of one session."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from nervix_ffi import Cancel, InvalidArgumentError

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("-inf")])
def test_a_timeout_that_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidArgumentError, match="seconds"):
        Cancel(timeout)


@pytest.mark.parametrize("timeout", ["5", b"5", True, [], object()])
def test_a_timeout_that_is_no_number_is_named(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout is a number of seconds or None, not "):
        Cancel(timeout)


def test_arguments_of_a_wrong_type_are_named(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake", domain="lab")
        session.execute("rows s 1 3")
        event = session.next_event()
        for call, words in (
            (lambda: connect(None), "the server is text (str), not NoneType"),
            (lambda: connect("http://fake", domain=5), "the domain is text"),
            (lambda: connect("http://fake", username=5, password="x"), "the username is text"),
            (lambda: connect("http://fake", seeds=5), "seeds is a sequence"),
            (lambda: connect("http://fake", seeds=[5]), "each of seeds is text"),
            (lambda: connect("http://fake", cancel=5), "cancel is a Cancel or None, not int"),
            (lambda: session.execute(5), "the command is text"),
            (lambda: session.execute("x", timeout="5"), "timeout is a number"),
            (lambda: session.use(None), "domain is the name of a domain"),
            (lambda: session.attach_clock(5), "domain is the name of a domain"),
            (lambda: session.subscribe(5), "source is the name"),
            (lambda: session.suggest(5), "the text to complete is text"),
            (lambda: session.suggest("x", 0.5), "cursor is an int, not float"),
            (lambda: session.suggest("x", page_size=1.5), "page_size is an int, not float"),
            (lambda: session.suggest("x", continuation=5), "the continuation is text"),
            (lambda: event.column(None), "column is a position (int) or a name (str), not NoneType"),
            (lambda: event.column(1.0), "column is a position"),
            (lambda: event.cell("0", "name"), "row is a position (int), not str"),
        ):
            try:
                call()
            except TypeError as failure:
                assert words in str(failure), failure
            else:
                raise AssertionError(words)
        """
    )


def test_a_cancel_ends_every_call_it_was_given_to_and_sticks(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        cancel, ended = Cancel(), []
        def waits(call):
            try:
                call()
            except CancelledError as failure:
                ended.append(failure.reference)
        calls = [lambda: session.execute("wait", cancel=cancel), lambda: session.next_event(cancel=cancel)]
        threads = [threading.Thread(target=waits, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        until(lambda: fake.fake_waiting() == 2)
        cancel.trigger()
        for thread in threads:
            thread.join()
        waits(lambda: connect("http://wait", cancel=cancel))
        assert sorted(ended, key=str) == [None, None, "reference-1"], ended
        assert session.execute("x").completed
        session.close()
        nothing_is_left()
        """
    )


def test_a_command_with_a_triggered_token_ends_cancelled_and_names_its_reference(with_fake: Run) -> None:
    with_fake(
        """
        cancel = Cancel()
        cancel.trigger()
        with connect("http://fake") as session:
            try:
                session.execute("x", cancel=cancel)
            except CancelledError as failure:
                assert failure.reference == failure.execution.reference == "reference-1"
                assert failure.execution.run().completed
        """
    )


def test_the_earlier_of_timeout_and_token_ends_a_call(with_fake: Run) -> None:
    with_fake(
        """
        with connect("http://fake") as session:
            for arguments in ({"timeout": 0}, {"timeout": 0.05}, {"cancel": Cancel(0.05)}, {"timeout": 60, "cancel": Cancel(0.05)},
                              {"timeout": 0.05, "cancel": Cancel(60)}):
                for call in (session.next_event, lambda **given: session.execute("wait", **given)):
                    try:
                        call(**arguments)
                    except TimeoutError as failure:
                        assert isinstance(failure, DeadlineError)
                    else:
                        raise AssertionError(arguments)
        """
    )


@pytest.mark.rule("S-3", "S-5", "B-7")
def test_a_subscription_yields_its_own_generation_and_the_gaps_until_it_ends(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        subscription = session.subscribe("r", name="s")
        for event in ("rows s 1 1", "rows other 1 9", "rows s 7 9", "lost s 1 5", "skipped s 1 4", "interrupted s 1 0",
                      "failed s 1 0", "rows s 2 2", "rows s 1 9", "unheard s 2 0", "overflow s 2 0", "rows s 4 3", "ended s 1 0",
                      "ended s 4 0", "rows s 4 9"):
            session.execute(event)
        seen = list(subscription)
        assert [type(event).__name__ for event in seen] == [
            "Rows", "DeliveryLost", "RowsSkipped", "Interrupted", "RestorationFailed", "Rows", "Unknown", "Overflow", "Rows", "Ended"
        ], seen
        assert [len(seen[0]), seen[1].count, seen[2].count, len(seen[5]), seen[6].kind, len(seen[8])] == [1, 5, 4, 2, 99, 3]
        assert seen[2].cause is None and seen[9].reason is None and seen[9].message is None, "the fake has no extension"
        assert list(subscription) == []
        try:
            subscription.next()
        except ClosedError as failure:
            assert "subscribe again" in str(failure)
        assert len(session.next_event()) == 9, "of the other subscription, which nobody else reads"
        """
    )


def test_events_of_a_subscription_go_to_its_object_once_that_is_read(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        first, second = session.subscribe("r", name="one"), session.subscribe("r", name="two")
        for count, name in enumerate(("one", "two", "one", "two"), 1):
            session.execute(f"rows {name} 1 {count}")
        assert len(session.next_event()) == 1, "no object is read yet"
        assert len(second.next()) == 2
        assert len(session.next_event()) == 3
        assert len(second.next()) == 4
        """
    )


def test_several_threads_read_their_subscriptions_of_one_session(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        names = [f"s{number}" for number in range(5)]
        subscriptions = [session.subscribe("r", name=name) for name in names]
        seen = {name: [] for name in names}
        def read(subscription):
            seen[subscription.name] += [len(event) for event in subscription if isinstance(event, Rows)]
        threads = [threading.Thread(target=read, args=(subscription,)) for subscription in subscriptions]
        for thread in threads:
            thread.start()
        for count in range(200):
            session.execute(f"rows {names[count % 5]} 1 {count}")
        for name in names:
            session.execute(f"ended {name} 1 0")
        for thread in threads:
            thread.join()
        assert seen == {name: list(range(number, 200, 5)) for number, name in enumerate(names)}, seen
        """
    )


@pytest.mark.rule("S-5", "S-8")
def test_what_does_not_fit_for_a_reader_that_does_not_come_is_reported_where_it_is_missing(with_fake: Run) -> None:
    with_fake(
        """
        from nervix_ffi._pump import LIMIT_EVENTS
        session = connect("http://fake")
        slow, quick = session.subscribe("r", name="slow"), session.subscribe("r", name="quick")
        session.execute("rows slow 1 2")
        assert len(slow.next()) == 2
        for _ in range(LIMIT_EVENTS + 10):
            session.execute("rows slow 1 2")
        session.execute("rows quick 1 7")
        assert len(quick.next()) == 7
        for _ in range(LIMIT_EVENTS):
            assert isinstance(slow.next(), Rows)
        session.execute("rows slow 1 3")
        lost = slow.next()
        assert isinstance(lost, DeliveryLost) and lost.local and lost.count == 20, lost
        assert len(slow.next()) == 3
        del lost, slow, quick
        session.close()
        nothing_is_left()
        """
    )


def test_deleting_a_subscription_ends_its_reader(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        subscription, seen = session.subscribe("r", name="s"), []
        thread = threading.Thread(target=lambda: seen.extend(subscription))
        thread.start()
        until(lambda: fake.fake_waiting() == 1)
        assert subscription.delete().completed
        thread.join()
        assert seen == [] and subscription.delete() is None
        with session.subscribe("r", name="t") as other:
            before = fake.fake_executed()
        assert fake.fake_executed() == before + 1
        try:
            with session.subscribe("r", name="u") as other:
                before = fake.fake_executed()
                raise KeyError
        except KeyError:
            assert fake.fake_executed() == before
        """
    )


def test_bad_arguments_are_refused_with_what_to_do(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        session.execute("rows s 1 3")
        event = session.next_event()
        for call, kind, words in (
            (lambda: session.execute("a\\ud800"), InvalidArgumentError, "surrogate"),
            (lambda: session.execute(b"x"), TypeError, "str"),
            (lambda: session.suggest("x", 2), InvalidArgumentError, "cursor"),
            (lambda: session.suggest("x", page_size=101), InvalidArgumentError, "1 to 100"),
            (lambda: event.column(3), InvalidArgumentError, "0 to 2"),
            (lambda: event.column(-1), InvalidArgumentError, "0 to 2"),
            (lambda: event.column("none"), InvalidArgumentError, "id, name, secret"),
            (lambda: event.cell(-1, 1), InvalidArgumentError, "0 to 2"),
            (lambda: event.cell(1, "name"), TypeMismatchError, ""),
            (lambda: event.column("name").values, TypeMismatchError, "offsets"),
            (lambda: event.column("id").offsets, TypeMismatchError, "values"),
            (lambda: event.column("id").data, TypeMismatchError, "values"),
            (lambda: event.column("id")[3], IndexError, ""),
            (lambda: connect("http://fake", seeds=["http://other"]), UnsupportedError, "connect_options"),
            (lambda: connect("http://fake", seeds="http://other"), TypeError, "sequence"),
            (lambda: connect("http://fake", retry_timeout=1), UnsupportedError, "connect_options"),
        ):
            try:
                call()
            except kind as failure:
                assert words in str(failure), failure
            else:
                raise AssertionError(words)
        assert session.execute("x").completed
        """
    )


@pytest.mark.rule("R-4", "B-6")
def test_a_column_keeps_value_null_and_redacted_apart(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        session.execute("rows s 1 3")
        event = session.next_event()
        columns = [event.column(name) for name in event.schema.names]
        assert [column.states.tolist() for column in columns] == [[1, 1, 1], [1, 2, 1], [3, 3, 3]]
        assert columns[0].values.format == "I" and columns[0].to_list() == [1, 2, 3]
        assert columns[1].offsets.tolist() == [0, 3, 3, 6] and columns[1].data.tobytes() == "h\\u00e9h\\u00e9".encode()
        assert [columns[1][row] for row in (0, 1, 2, -1)] == ["h\\u00e9", None, "h\\u00e9", "h\\u00e9"]
        assert columns[2].to_list() == [REDACTED] * 3 and columns[2][0] is REDACTED
        assert all(column.states.readonly for column in columns)
        assert event.key == {"tenant": "acme"} and event.column("tenant", Part.BRANCH_KEY).to_list() == ["acme"]
        batch = event.to_arrow()
        assert batch.schema.metadata[b"nervix.branch_key"] == b'{"tenant": "acme"}'
        assert batch.schema.field("secret").metadata == {b"nervix.redacted": b"true"} and batch.schema.field("secret").nullable
        assert batch.to_pydict() == {"id": [1, 2, 3], "name": ["h\\u00e9", None, "h\\u00e9"], "secret": [None] * 3}
        import pyarrow
        assert pyarrow.record_batch(event).num_rows == 3
        """
    )
