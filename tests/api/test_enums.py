"""The enumerations of the package are those of the headers."""

from __future__ import annotations

from enum import IntEnum

import pytest

import build_ffi
from nervix_ffi import Type
from nervix_ffi._library import lib
from nervix_ffi.enums import C_NAMES, read


@pytest.mark.parametrize("kind", C_NAMES, ids=lambda kind: kind.__name__)
def test_an_enumeration_has_exactly_the_values_of_the_header(kind: type[IntEnum]) -> None:
    name, prefix = C_NAMES[kind]
    assert {prefix + member.name: member.value for member in kind} == build_ffi.read_headers().enums[name]
    assert all(getattr(lib, prefix + member.name) == member for member in kind)


def test_every_enumeration_of_the_headers_is_known() -> None:
    assert {name for name, _ in C_NAMES.values()} == set(build_ffi.read_headers().enums)


def test_a_value_that_a_newer_library_adds_stays_a_number() -> None:
    assert read(Type, 1) is Type.U8
    assert read(Type, 200) == 200
