"""Eight threads that use everything of one session at once, releasing what others retain and cancelling what others wait for.

Run as a program: ``hammer.py URI SEED SECONDS``. It prints DONE when nothing but what may happen happened. Must not know how the
package keeps this safe.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import nervix_ffi

THREADS = 8
DOMAIN = "lab"
FIELDS = "id U64, note STRING OPTIONAL"
NOTE = "n" * 100
ROWS = [{"id": number, "note": NOTE} for number in range(20)]

#: The failures that closing, cancelling and deadlines bring. Anything else, above all a PROTOCOL error, fails.
EXPECTED = (
    nervix_ffi.ClosedError,
    nervix_ffi.DeadlineError,
    nervix_ffi.CancelledError,
    nervix_ffi.UncertainError,
    nervix_ffi.InterruptedReadError,
    nervix_ffi.ReopenRequiredError,
    nervix_ffi.RejectedError,
)


class Bag:
    """Things that threads hand to each other: what one puts, another uses, while a third may release it."""

    def __init__(self, room: int) -> None:
        self._things: list[Any] = []
        self._room = room

    def put(self, thing: Any) -> None:
        self._things.append(thing)
        while len(self._things) > self._room:
            self.take()

    def look(self, chance: random.Random) -> Any:
        try:
            return chance.choice(self._things)
        except IndexError:
            return None

    def take(self) -> Any:
        try:
            return self._things.pop(0)
        except IndexError:
            return None

    def clear(self) -> None:
        self._things.clear()


class Objects:
    """A session and one of everything that it can have, opened together."""

    def __init__(self, uri: str) -> None:
        self.session = nervix_ffi.connect(uri, domain=DOMAIN, timeout=30)
        self.subscription = self.session.subscribe("readings", delivery="DROPPING", timeout=30)
        self.producer = self.session.open_producer("held", FIELDS, timeout=30)
        self.consumer = self.session.open_consumer("out", FIELDS, timeout=30)
        self.clock = self.session.attach_clock("beat", timeout=30)
        self.execution = self.session.prepare("SHOW CLUSTER STATUS;")


class Hammer:
    """The threads and what they share."""

    def __init__(self, uri: str, seed: int, seconds: float) -> None:
        self.uri = uri
        self.seed = seed
        self.until = time.monotonic() + seconds
        self.objects = Objects(uri)
        self.events, self.views, self.batches, self.deliveries = Bag(20), Bag(40), Bag(10), Bag(10)
        self.submissions, self.executions, self.cancels = Bag(20), Bag(10), Bag(10)
        self.failures: list[str] = []
        self.done = dict.fromkeys((action.__name__ for action in self.actions()), 0)

    def actions(self) -> list[Callable[[random.Random], object]]:
        return [
            self.command, self.run_shared, self.run_released, self.read, self.keep_views, self.check_views, self.make_batch,
            self.use_batch, self.release_something, self.submit, self.outcome, self.deliver, self.settle, self.tick,
            self.cancel, self.suggest, self.subscribe,
        ]  # fmt: skip

    def limit(self, chance: random.Random) -> dict[str, Any]:
        """A short deadline, a token that another thread may trigger, or both."""
        cancel = nervix_ffi.Cancel()
        self.cancels.put(cancel)
        return {"timeout": chance.choice([0.0, 0.001, 0.01, 0.1]), "cancel": chance.choice([None, cancel])}

    def command(self, chance: random.Random) -> None:
        self.objects.session.execute("SHOW CREATE RELAY readings;", **self.limit(chance))

    def run_shared(self, chance: random.Random) -> None:
        assert self.objects.execution.run(**self.limit(chance)).completed

    def run_released(self, chance: random.Random) -> None:
        execution = self.executions.look(chance)
        if execution is None or chance.random() < 0.3:
            execution = self.objects.session.prepare("SHOW CLUSTER STATUS;")
            self.executions.put(execution)
        execution.run(**self.limit(chance))

    def read(self, chance: random.Random) -> None:
        self.events.put(self.objects.subscription.next(**self.limit(chance)))

    def keep_views(self, chance: random.Random) -> None:
        event = self.events.look(chance)
        if isinstance(event, nervix_ffi.Rows):
            self.views.put(chance.choice([lambda: event.frame, event.to_arrow, lambda: event.column("note")])())

    def check_views(self, chance: random.Random) -> None:
        view = self.views.look(chance)
        if isinstance(view, memoryview):
            # A frame by its identifier, a batch by how Arrow's streams begin.
            assert bytes(view[4:8]) == b"NXSM" or bytes(view[:4]) == b"\xff\xff\xff\xff"
        elif isinstance(view, nervix_ffi.Column):
            assert set(view.to_list()) == {NOTE}
        elif view is not None:
            assert set(view.column("note").to_pylist()) == {NOTE}

    def make_batch(self, _: random.Random) -> None:
        batch = self.objects.producer.batch(ROWS)
        self.batches.put(batch)
        self.views.put(batch.ipc)
        self.views.put(batch.to_arrow())

    def use_batch(self, chance: random.Random) -> None:
        batch = self.batches.look(chance)
        if batch is not None:
            assert batch.rows() == ROWS
            self.submissions.put(self.objects.producer.submit(batch, **self.limit(chance)))

    def release_something(self, chance: random.Random) -> None:
        for bag in (self.batches, self.deliveries, self.executions, self.submissions, self.events, self.views):
            if chance.random() < 0.3:
                thing = bag.look(chance)
                release = getattr(thing, "release", None)
                if release is not None and not isinstance(thing, memoryview):
                    release()
                elif chance.random() < 0.5:
                    bag.take()

    def submit(self, chance: random.Random) -> None:
        self.submissions.put(self.objects.producer.submit(ROWS, **self.limit(chance)))

    def outcome(self, chance: random.Random) -> None:
        submission = self.submissions.look(chance)
        if submission is not None:
            try:
                submission.result(check=False, **self.limit(chance))
            except nervix_ffi.InvalidArgumentError as error:
                if "was let go" not in str(error):  # By another thread.
                    raise

    def deliver(self, chance: random.Random) -> None:
        delivery = self.objects.consumer.next(**self.limit(chance))
        self.deliveries.put(delivery)
        self.views.put(delivery.ipc)
        self.views.put(delivery.to_arrow())

    def settle(self, chance: random.Random) -> None:
        delivery = self.deliveries.look(chance)
        if delivery is not None:
            assert {row["note"] for row in delivery.rows()} == {NOTE}
            settle = chance.choice([delivery.ack, delivery.ack, delivery.retry])
            settle(check=False, **self.limit(chance))

    def tick(self, chance: random.Random) -> None:
        self.objects.clock.read()
        self.objects.clock.next(**self.limit(chance))

    def cancel(self, chance: random.Random) -> None:
        cancel = self.cancels.look(chance)
        if cancel is not None:
            cancel.trigger()

    def suggest(self, chance: random.Random) -> None:
        self.objects.session.suggest("CREATE ", **self.limit(chance))

    def subscribe(self, chance: random.Random) -> None:
        with self.objects.session.subscribe("readings", delivery="DROPPING", timeout=1) as other:
            self.events.put(other.next(**self.limit(chance)))

    def again(self, chance: random.Random) -> None:
        """Closes what the others are in, in any order, and opens it anew."""
        old, self.objects = self.objects, Objects(self.uri)
        closing = [old.session, old.consumer, old.clock, old.producer, old.subscription]
        for one in chance.sample(closing, chance.randint(1, len(closing))):
            if isinstance(one, (nervix_ffi.Producer, nervix_ffi.Consumer)):
                one.release()
            else:
                one.close()
        old.session.close()

    def work(self, index: int) -> None:
        chance = random.Random(self.seed * THREADS + index)
        actions = self.actions()
        while time.monotonic() < self.until and not self.failures:
            action = chance.choice(actions)
            try:
                if index == 0 and chance.random() < 0.01:
                    self.again(chance)
                action(chance)
                self.done[action.__name__] += 1
            except EXPECTED:
                pass
            except BaseException:
                self.failures.append(traceback.format_exc())

    def run(self) -> None:
        threads = [threading.Thread(target=self.work, args=(index,)) for index in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.failures, "\n".join(self.failures)
        self.objects.session.close()
        for bag in (self.events, self.batches, self.deliveries, self.submissions, self.executions, self.cancels):
            bag.clear()
        gc.collect()
        # What is still seen of frames and batches outlives everything it came from.
        chance = random.Random(self.seed)
        for _ in range(100):
            self.check_views(chance)


if __name__ == "__main__":
    # The one warning that is documented: deliveries are dropped here unsettled.
    warnings.filterwarnings("ignore", ".*was neither settled nor released", ResourceWarning)
    hammer = Hammer(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    hammer.run()
    print(hammer.done, flush=True)
    print("DONE", flush=True)
