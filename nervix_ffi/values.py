"""Values that Python has no word for: the withheld one, and instants in nanoseconds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final, TypeAlias, final

__all__ = ["REDACTED", "Redacted", "Value", "from_datetime", "to_datetime"]


@final
class Redacted:
    """The type of REDACTED: a value that exists and is withheld.

    It is neither None nor a value (R-4): equal to itself alone, and false, so that ``if row["secret"]`` never takes it for one.
    """

    __slots__ = ()
    _only: Redacted | None = None

    def __new__(cls) -> Redacted:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "REDACTED"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "REDACTED"  # A copy and a pickle are the one object again.


#: What a withheld cell reads as.
REDACTED: Final = Redacted()

#: A cell in Python: BOOL is bool; integers are int; F32 and F64 are float; STRING is str; BYTES is bytes; DATETIME is an int of
#: nanoseconds since the Unix epoch; a list is a list; a missing value is None; a withheld one is REDACTED.
Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | Redacted | None"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_datetime(nanoseconds: int) -> datetime:
    """The instant of a DATETIME as an aware datetime in UTC.

    A datetime counts microseconds, so the last three digits are dropped, towards the past.
    """
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def from_datetime(instant: datetime) -> int:
    """Nanoseconds since the Unix epoch of an aware datetime. Raises ValueError for one without a zone."""
    if instant.utcoffset() is None:
        raise ValueError("the datetime has no zone; give it one, for example instant.replace(tzinfo=timezone.utc)")
    return (instant - _EPOCH) // timedelta(microseconds=1) * 1000
