"""How the soak's threads call: with limits that end a call now and then, and until every command has an outcome.

Owns what an error may mean. Must not know what is called.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TypedDict

import nervix_ffi
from nervix_ffi import Cancel, Disposition, Error, ErrorKind, Execution, Outcome

from .books import Books

#: Seconds that an ordinary call may take.
PATIENCE = 20.0
#: Seconds after which something that does not come is a failure of the soak.
ENDLESS = 150.0

#: After these a command may have happened.
PERHAPS = (ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED)
#: After these it was not admitted, and may be run again.
REFUSED = (ErrorKind.REJECTED, ErrorKind.CONNECT, ErrorKind.TRANSPORT)
#: After these what is no command may be asked for again: the last is of a session that ended because the server broke the protocol.
AGAIN = (*PERHAPS, *REFUSED, ErrorKind.PROTOCOL)


class Limits(TypedDict, total=False):
    """What ends a call."""

    timeout: float
    cancel: Cancel


class Canceller:
    """A thread that triggers tokens at their time."""

    def __init__(self) -> None:
        self._due: list[tuple[float, Cancel]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canceller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def after(self, seconds: float) -> Cancel:
        """A token that is triggered from another thread after a while."""
        cancel = Cancel()
        with self._lock:
            self._due.append((time.monotonic() + seconds, cancel))
        return cancel

    def _run(self) -> None:
        while not self._over.wait(0.01):
            now = time.monotonic()
            with self._lock:
                due = [cancel for at, cancel in self._due if at <= now]
                self._due = [(at, cancel) for at, cancel in self._due if at > now]
            for cancel in due:
                cancel.trigger()


class Calls:
    """The calls of one thread."""

    def __init__(self, books: Books, dice: random.Random, canceller: Canceller) -> None:
        self._books = books
        self._dice = dice
        self._canceller = canceller

    def limits(self) -> Limits:
        """Most calls have all the time they need; some are given up early, by time or by another thread."""
        throw = self._dice.random()
        if throw < 0.8:
            return {"timeout": PATIENCE}
        seconds = self._dice.choice([0.0, 0.003, 0.03, 0.3])
        if throw < 0.9:
            return {"timeout": seconds}
        return {"timeout": PATIENCE, "cancel": self._canceller.after(seconds)}

    def outcome(self, execution: Execution) -> Outcome:
        """Runs a command until its outcome is known."""
        since = time.monotonic()
        while True:
            try:
                outcome = execution.run(check=False, **self.limits())
            except Error as failure:
                self._look_at(execution, failure)
            else:
                if outcome.disposition != Disposition.OUTCOME_UNKNOWN:
                    if outcome.reference not in (None, execution.reference):
                        self._books.wrong(f"{execution!r} has the outcome of {outcome.reference}")
                    self._books.has_outcome(execution.reference)
                    return outcome
                self._books.may_have_happened(execution.reference, "OUTCOME_UNKNOWN")
            if time.monotonic() - since > ENDLESS:
                raise AssertionError(f"{execution!r} has no outcome after {ENDLESS} s")

    def recovered(self, failure: Error) -> Outcome | None:
        """The outcome of the command that an error left open; None when none was sent. Raises any other error again."""
        execution = failure.execution
        if failure.kind in REFUSED or (failure.kind in PERHAPS and execution is None and failure.reference is None):
            self._books.did(f"refused: {type(failure).__name__}")
            return None
        if failure.kind not in PERHAPS:
            raise failure
        if execution is None:
            raise AssertionError(f"the error names {failure.reference} and has no execution to run again: {failure}")
        self._look_at(execution, failure)
        return self.outcome(execution)

    def completed(self, failure: Error) -> Outcome | None:
        """As ``recovered``, for a command that has to complete: raises what its outcome is raised as when it did not."""
        outcome = self.recovered(failure)
        if outcome is None or failure.execution is None or outcome.completed:
            return outcome
        return failure.execution.run(timeout=PATIENCE)

    def _look_at(self, execution: Execution, failure: Error) -> None:
        if failure.kind in REFUSED:
            self._books.did(f"refused: {type(failure).__name__}")
            time.sleep(0.05)
            return
        if failure.kind not in PERHAPS:
            raise failure
        if failure.reference != execution.reference or failure.execution is not execution:
            self._books.wrong(f"the error of {execution!r} is about {failure.reference}: {failure}")
        if isinstance(failure, nervix_ffi.UncertainError) and not (
            execution.reference in str(failure) and "may have" in str(failure)
        ):
            self._books.wrong(f"an uncertain command's error does not say so: {failure}")
        self._books.may_have_happened(execution.reference, getattr(failure.kind, "name", "another kind"))
        time.sleep(0.005)
