"""Withheld values and instants."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nervix_ffi import REDACTED, Redacted, from_datetime, to_datetime


@pytest.mark.rule("R-4")
def test_redacted_is_neither_none_nor_a_value() -> None:
    assert REDACTED is not None
    assert not REDACTED
    assert REDACTED not in (None, 0, "", b"", False, [])
    assert repr(REDACTED) == "REDACTED"


def test_there_is_one_redacted() -> None:
    assert Redacted() is REDACTED
    assert copy.deepcopy({"a": [REDACTED]})["a"][0] is REDACTED
    assert pickle.loads(pickle.dumps(REDACTED)) is REDACTED


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_datetime_is_its_instant_to_the_microsecond(nanoseconds: int) -> None:
    assert from_datetime(to_datetime(nanoseconds)) == nanoseconds // 1000 * 1000


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no zone"):
        from_datetime(datetime(2020, 1, 1))
    assert from_datetime(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
