"""Which transactions a session may hold, and who has to end them.

Owns that account. Must not know how commands are run, nor how a transaction is ended: see ``_commands`` and ``transaction``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nervix_ffi.outcome import TransactionStatus
    from nervix_ffi.transaction import Transaction

__all__ = ["Held", "nothing"]


def nothing() -> None:
    """Stands for a transaction where there is none."""


class Held:
    """The account of one session. Keeps no transaction that somebody else has to keep."""

    def __init__(self) -> None:
        #: The transaction that is under way, if it was begun as an object.
        self.transaction: Callable[[], Transaction | None] = nothing
        #: The domain of the transaction that was begun as an object and is not known to be over, whether anybody keeps that or not.
        self.domain: str | None = None
        #: That transaction's identity, if it is of a block, which is to be ended when nobody keeps it.
        self.block: TransactionStatus | None = None
        #: The transactions whose blocks ended before they did, the oldest first.
        self.left: list[Transaction] = []
        #: Who wants to finish those, the one whose turn it is first: a mark of the call, and its thread.
        self.settlers: dict[object, int] = {}
        #: Calls of BEGIN that go on right now.
        self.beginnings: dict[object, None] = {}
        #: Transactions that somebody keeps, and that may have begun.
        self.asked: weakref.WeakSet[Transaction] = weakref.WeakSet()
        #: Whether BEGIN was ever called as a plain command: then what the session holds is known to the host alone.
        self.plain_begin = False

    def begun(self, transaction: Transaction, block: TransactionStatus | None) -> None:
        """It is under way from now on; ``block`` is its identity if a block has to end it."""
        self.transaction = weakref.ref(transaction)
        self.domain = transaction.domain
        self.block = block

    def over(self) -> None:
        """None is under way any more."""
        self.transaction = nothing
        self.domain = self.block = None

    def is_somebodys(self, transaction: Transaction | None, beginnings: int) -> bool:
        """Whether what the library or a server holds may be a transaction that somebody runs, begins or has to end.

        Apart from the one ``transaction``, and so many calls of BEGIN, of whoever asks.
        """
        return (
            self.plain_begin
            or self.domain is not None
            or bool(self.left)
            or len(self.beginnings) > beginnings
            or any(one is not transaction for one in list(self.asked))
        )
