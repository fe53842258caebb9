"""Every object is released exactly once, in any order of letting go. The names of the tests state the facts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.rule("B-2", "B-3")


def test_closing_a_session_twice_frees_it_once(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        session.close()
        session.close()
        assert session.closed
        del session
        nothing_is_left()
        """
    )


def test_a_session_that_is_collected_is_freed(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        assert live() == {"session": 1}
        del session
        nothing_is_left()
        """
    )


def test_an_execution_keeps_its_session(with_fake: Run) -> None:
    with_fake(
        """
        execution = connect("http://fake").prepare("x")
        gc.collect()
        assert live() == {"session": 1, "execution": 1}
        assert execution.run().completed
        del execution
        nothing_is_left()
        """
    )


def test_a_subscription_keeps_its_session(with_fake: Run) -> None:
    with_fake(
        """
        subscription = connect("http://fake").subscribe("r")
        gc.collect()
        assert live() == {"session": 1}
        del subscription
        nothing_is_left()
        """
    )


def test_outcomes_schemas_and_suggestions_leave_nothing_in_the_library(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        outcome, page = session.execute("CREATE SUBSCRIPTION s TO r;"), session.suggest("é wo")
        assert live() == {"session": 1}, live()
        session.close()
        nothing_is_left()
        assert outcome.schema.names == ("id", "name", "secret")
        assert page.items[0].apply("é wo") == "é word " and page.continuation == "more"
        """
    )


def test_what_failed_leaves_nothing_in_the_library(with_fake: Run) -> None:
    with_fake(
        """
        for arguments in ({"username": "half"}, {"password": "half"}):
            try:
                connect("http://fake", **arguments)
            except InvalidArgumentError:
                pass
        session = connect("http://fake")
        for call in (lambda: session.execute("error 9"), lambda: session.prepare(""), lambda: session.next_event(timeout=0)):
            try:
                call()
            except Error:
                pass
        session.close()
        nothing_is_left()
        """
    )


ROWS = """
session = connect("http://fake")
session.execute("rows s 1 3")
event = session.next_event()
"""


def test_rows_outlive_their_session(with_fake: Run) -> None:
    with_fake(
        ROWS
        + """
session.close()
del session
gc.collect()
assert event.rows()[0] == {"id": 1, "name": "h\\u00e9", "secret": REDACTED}
del event
nothing_is_left()
"""
    )


def test_a_frame_outlives_its_event(with_fake: Run) -> None:
    with_fake(
        ROWS
        + """
frame, cell = event.frame, event.cell(0, "name")
event.release()
del event
session.close()
gc.collect()
assert live() == {"event": 1}, live()
assert frame.readonly and frame[4:8] == b"NXSM" and bytes(cell) == "h\\u00e9".encode()
part = frame[4:8]
del frame, cell
gc.collect()
assert live() == {"event": 1} and part == b"NXSM"
thread = threading.Thread(target=part.release)
thread.start()
thread.join()
del part, session
nothing_is_left()
"""
    )


def test_columns_and_arrow_batches_outlive_their_event(with_fake: Run) -> None:
    with_fake(
        ROWS
        + """
column, batch = event.column("id"), event.to_arrow()
event.release()
session.close()
del event, session
nothing_is_left()
assert column.values.tolist() == [1, 2, 3] and batch.num_rows == 3
"""
    )


def test_reading_a_released_event_raises_closed(with_fake: Run) -> None:
    with_fake(
        ROWS
        + """
with event:
    pass
for call in (event.rows, lambda: event.frame, lambda: event.key, lambda: event.column(0), lambda: event.cell(0, 1), event.to_arrow):
    try:
        call()
    except ClosedError:
        continue
    raise AssertionError("it could be read")
assert len(event) == 3 and event.schema.names == ("id", "name", "secret")
"""
    )


def test_using_what_was_closed_raises_closed(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        execution, subscription = session.prepare("x"), session.subscribe("r")
        released = session.prepare("y")
        released.release()
        for close, calls in (
            (lambda: None, [released.run]),
            (
                session.close,
                [execution.run, lambda: session.execute("x"), lambda: session.prepare("x"), session.next_event,
                 lambda: session.suggest("x"), lambda: session.subscribe("r"), subscription.next, subscription.delete],
            ),
        ):
            close()
            for call in calls:
                try:
                    call()
                except ClosedError:
                    continue
                raise AssertionError(call)
        del execution, subscription, released, calls, call, close
        nothing_is_left()
        """
    )


def test_a_session_closed_by_another_thread_ends_its_calls_and_the_last_one_out_frees_it(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        ended = []
        def waits(call):
            try:
                call()
            except Error as failure:
                ended.append((type(failure), failure.reference))
        subscription = session.subscribe("r")
        threads = [
            threading.Thread(target=waits, args=(call,))
            for call in (lambda: session.execute("wait"), session.next_event, subscription.next, lambda: session.execute("wait"))
        ]
        for thread in threads:
            thread.start()
        until(lambda: fake.fake_waiting() == 3)  # One of the two readers waits for the other.
        session.close()
        for thread in threads:
            thread.join()
        assert sorted(ended, key=str) == sorted([(ClosedError, "reference-1")] * 2 + [(ClosedError, None)] * 2, key=str), ended
        del session, subscription, threads, thread
        nothing_is_left()
        """
    )


def test_many_events_read_and_dropped_leave_nothing(with_fake: Run) -> None:
    with_fake(
        """
        session = connect("http://fake")
        for _ in range(500):
            session.execute("rows s 1 3")
            event = session.next_event()
            event.rows(), event.frame, event.to_arrow()
        del event
        assert live() == {"session": 1}, live()
        session.close()
        nothing_is_left()
        """
    )


def test_at_exit_everything_is_released(with_fake: Run) -> None:
    done = with_fake(
        """
        import atexit
        session = connect("http://fake")
        execution = session.prepare("x")
        session.execute("rows s 1 3")
        event = session.next_event()
        libc = ctypes.CDLL(None)
        class Last:
            def __del__(self, fake=fake, write=os.write, KINDS=KINDS):
                write(1, b"left %d bad %d" % (sum(fake.fake_live(n) for n in range(len(KINDS))), fake.fake_bad_frees()))
        sys.last_of_all = Last()
        """
    )
    assert done.stdout == "left 0 bad 0"
