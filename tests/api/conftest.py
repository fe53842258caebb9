"""A library without a server, for tests of what the package itself does."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PREAMBLE = '''
import ctypes, gc, os, signal, sys, threading, time, weakref
import nervix_ffi
from nervix_ffi import *

fake = ctypes.CDLL(nervix_ffi.library().path)
KINDS = (
    "session", "execution", "outcome", "schema", "event", "cancel", "error", "suggestions", "clock event", "clock", "fields",
    "producer", "submission outcome", "consumer", "delivery", "batch", "builder",
)

def live():
    """How many objects of each kind the host holds."""
    return {kind: fake.fake_live(number) for number, kind in enumerate(KINDS) if fake.fake_live(number)}

def until(condition):
    """Waits for something that another thread is about to do."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)

def nothing_is_left():
    gc.collect()
    assert live() == {}, live()
    assert fake.fake_bad_frees() == 0, "freed twice, or used after it was freed"

'''


@pytest.fixture
def with_fake(
    fake_library: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a script with the fake library loaded. It must end with status 0 and an empty standard error."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        done = run_python(PREAMBLE + textwrap.dedent(script), NERVIX_CLIENT_LIBRARY=str(fake_library))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done

    return run
