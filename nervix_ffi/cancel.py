"""Cancel: ends waits from outside, once or after a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from nervix_ffi.errors import InvalidArgumentError

__all__ = ["MOMENT", "Cancel", "Limit"]

#: Waits longer than this many seconds (a century) are as good as endless.
_ENDLESS = 100.0 * 365 * 86400


#: What a timeout of 0 waits, in seconds: long enough for what has arrived to be handed over, as the library ends a call at once
#: whose time is over.
MOMENT = 0.01


def _seconds(timeout: float) -> float:
    """Raises TypeError for what is no number, InvalidArgumentError for a negative one or NaN."""
    if not hasattr(timeout, "__float__") or isinstance(timeout, bool):
        raise TypeError(f"timeout is a number of seconds or None, not {type(timeout).__name__}")
    try:
        seconds = float(timeout)
    except OverflowError:
        seconds = math.inf if timeout > 0 else -math.inf
    if not seconds >= 0:
        raise InvalidArgumentError(f"a timeout is a number of seconds, 0 or more, or None for no limit; {timeout!r} is neither")
    return seconds


def deadline_of(timeout: float | None) -> float | None:
    """The monotonic instant ``timeout`` seconds from now. Raises TypeError, or InvalidArgumentError for a negative number or NaN."""
    if timeout is None:
        return None
    seconds = _seconds(timeout)
    return None if seconds > _ENDLESS else time.monotonic() + seconds


class Cancel:
    """Ends the calls that it is given to.

    ``Cancel()`` ends them with CancelledError once ``trigger`` was called, from any thread. ``Cancel(timeout=2.5)`` also ends
    them with DeadlineError 2.5 seconds after it was made. Both stick: later calls end at once. Ending a wait never undoes work
    that a server admitted.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._deadline = deadline_of(timeout)
        self._triggered = False
        # No lock: each step is one call into C, and either a listener finds the flag or the trigger finds the listener.
        self._listeners: dict[object, Callable[[], None]] = {}

    def trigger(self) -> None:
        """Ends every call that has this token, now and later. Any thread, any number of times."""
        self._triggered = True
        for listener in self._listeners.copy().values():
            listener()

    @property
    def triggered(self) -> bool:
        """Whether ``trigger`` was called."""
        return self._triggered

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0.0 when it is over, None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def __repr__(self) -> str:
        state = "triggered" if self._triggered else "not triggered"
        return f"<Cancel {state}, remaining={self.remaining}>"

    def _listen(self, key: object, listener: Callable[[], None]) -> None:
        self._listeners[key] = listener
        if self._triggered:
            listener()


class Limit:
    """How long one public call may take: a deadline fixed when the call was made, and a Cancel."""

    __slots__ = ("cancel", "deadline")

    def __init__(self, timeout: float | None, cancel: Cancel | None, least: float = 0.0) -> None:
        if cancel is not None and not isinstance(cancel, Cancel):
            raise TypeError(f"cancel is a Cancel or None, not {type(cancel).__name__}")
        deadline = deadline_of(timeout if timeout is None else max(_seconds(timeout), least))
        if cancel is not None and cancel._deadline is not None:
            deadline = cancel._deadline if deadline is None else min(deadline, cancel._deadline)
        self.deadline = deadline
        self.cancel = cancel

    @classmethod
    def until(cls, deadline: float | None, cancel: Cancel) -> Limit:
        """A limit with a deadline that was fixed before."""
        limit = cls(None, cancel)
        limit.deadline = deadline
        return limit

    @property
    def triggered(self) -> bool:
        """Whether the Cancel was triggered."""
        return self.cancel is not None and self.cancel.triggered

    def remaining(self) -> float | None:
        """Seconds left, 0.0 when over, None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        """Whether there is nothing left of it: a call that begins now sends nothing."""
        return self.triggered or self.remaining() == 0.0

    def listen(self, key: object, listener: Callable[[], None]) -> None:
        """Calls ``listener`` when the Cancel is triggered, at once when it was."""
        if self.cancel is not None:
            self.cancel._listen(key, listener)

    def unlistening(self, key: object) -> Iterable[object]:
        """The steps that end what ``listen`` began, if it did."""
        return () if self.cancel is None else map(self.cancel._listeners.pop, (key,), (None,))
