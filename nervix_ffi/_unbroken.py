"""Doing things in one piece, whatever signal arrives.

Python runs signal handlers between bytecodes, and a handler may raise there: right after a call that took something, at the first
bytecode of an ``__exit__``, within a ``finally``. So whatever must not be left half done is written down as a chain of iterators
and run by one call into C, in which no bytecode is between the steps; and what must be undone is undone by the end of a ``with``
over an object whose ``__exit__`` is C, or by the end of the object's life. Must not know what the steps are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, TypeVar

from nervix_ffi._library import ffi, lib

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Release", "after_fork", "dropping", "ending", "own", "putting", "run", "taken"]

T = TypeVar("T")

#: Runs steps, which an iterator takes one by one: a queue without room forgets what they return.
run: Callable[[Iterable[object]], None] = deque[object](maxlen=0).extend

#: A function of the library that lets go of an object.
Release = Callable[["CData"], object]

_NULL = ffi.NULL
_take = lib.nervix_take


def ending(*steps: Iterable[object]) -> CData:
    """``with ending(steps):`` runs the steps when the block ends, however it ends. Steps are taken one by one only then."""
    return ffi.gc(_NULL, partial(next, map(run, (chain(*steps),))))


def putting(place: object, name: str, value: object) -> Iterator[object]:
    """The step that sets an attribute."""
    return map(setattr, (place,), (name,), (value,))


_drops: dict[str, tuple[Callable[[CData], object], Callable[[CData], object]]] = {}


def _dropping(release: Release) -> tuple[Callable[[CData], object], Callable[[CData], object]]:
    name: str = release.__name__
    found = _drops.get(name)
    if found is None:
        function, process = ffi.addressof(lib, name), lib.nervix_process()
        found = partial(lib.nervix_drop, function, process), partial(lib.nervix_drop_place, function, process)
        _drops[name] = found
    return found


def dropping(release: Release) -> Callable[[CData], object]:
    """``release``, in C and only in this process: a child of a fork lets go of nothing of its parent's."""
    return _dropping(release)[0]


def after_fork() -> None:
    """In the child of a fork: what was made before is the parent's."""
    lib.nervix_forked()
    _drops.clear()


def own(make: Callable[..., CData], arguments: tuple[object, ...], release: Release) -> CData:
    """What ``make`` returns, released when the last reference to it is gone."""
    return next(map(ffi.gc, starmap(make, (arguments,)), (dropping(release),)))


def place_for(c_type: str, release: Release) -> CData:
    """A place that the library writes an object to. What lies there at the end of the place's life is released."""
    return ffi.gc(ffi.new(f"{c_type} **"), _dropping(release)[1])


def taken(place: CData, release: Release) -> Iterator[CData]:
    """The object in a place, if there is one, taken out when the iterator is run; see ``own``."""
    return map(ffi.gc, filter(None, starmap(_take, ((place,),))), (dropping(release),))
