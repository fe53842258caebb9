"""Which transactions a session may hold, and who has to end them.

Owns that account. Must not know how commands are run, nor how a transaction is ended: see ``_commands`` and ``transaction``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nervix_ffi.transaction import Transaction

__all__ = ["Current", "Held", "nothing"]


def nothing() -> None:
    """Stands for a transaction where there is none."""


class Current:
    """A transaction that was begun as an object, whether anybody keeps that or not."""

    __slots__ = ("domain", "of_block", "over", "status", "transaction")

    def __init__(self, transaction: Transaction, of_block: bool) -> None:
        self.transaction = weakref.ref(transaction)
        #: The domain that it is of.
        self.domain = transaction.domain
        #: How it began, if the library says that.
        self.status = transaction.status
        #: Whether it is of a block, and so to be ended when nobody keeps it.
        self.of_block = of_block
        #: Whether it is known to be over, or left to be ended. Set, and never taken back: another one has an account of its own.
        self.over = False


class Held:
    """The account of one session. Keeps no transaction that somebody else has to keep."""

    def __init__(self) -> None:
        #: What was begun last.
        self.current: Current | None = None
        #: The transactions whose blocks ended before they did, the oldest first.
        self.left: list[Transaction] = []
        #: Who wants to finish those, the one whose turn it is first: a mark of the call, and its thread.
        self.settlers: dict[object, int] = {}
        #: Calls of BEGIN that go on right now.
        self.beginnings: dict[object, None] = {}
        #: Transactions that somebody keeps, and that may have begun.
        self._asked: dict[weakref.ref[Transaction], None] = {}
        #: Whether BEGIN was ever called as a plain command: then what the session holds is known to the host alone.
        self.plain_begin = False

    def transaction(self) -> Transaction | None:
        """The one that is under way, if somebody keeps it."""
        current = self.current
        return None if current is None or current.over else current.transaction()

    @property
    def domain(self) -> str | None:
        """The domain of the one that is under way, whether anybody keeps it or not."""
        current = self.current
        return None if current is None or current.over else current.domain

    def begun(self, transaction: Transaction, of_block: bool) -> None:
        """It is under way from now on; whether a block has to end it."""
        self.current = Current(transaction, of_block)

    def passed(self, transaction: Transaction) -> None:
        """It is under way no longer; another one may be by now."""
        current = self.current
        if current is not None and current.transaction() is transaction:
            current.over = True

    def asks(self, transaction: Transaction) -> None:
        """It may begin from here on."""
        self._asked[weakref.ref(transaction)] = None

    def knows(self, transaction: Transaction) -> None:
        """It is known whether it began, or it is left to be ended."""
        self._asked.pop(weakref.ref(transaction), None)

    def is_somebodys(self, transaction: Transaction | None, beginnings: int) -> bool:
        """Whether what the library or a server holds may be a transaction that somebody runs, begins or has to end.

        Apart from the one ``transaction``, and so many calls of BEGIN, of whoever asks.
        """
        for asked in self._asked.copy():
            if asked() is None:
                self._asked.pop(asked, None)
        others = (asked() for asked in self._asked.copy())
        return (
            self.plain_begin
            or self.domain is not None
            or bool(self.left)
            or len(self.beginnings) > beginnings
            or any(one is not None and one is not transaction for one in others)
        )
