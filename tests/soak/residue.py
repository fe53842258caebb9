"""What a process holds: handles of the library, threads, descriptors, memory."""

from __future__ import annotations

import ctypes
import gc
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from nervix_ffi import _handle

#: Bytes that memory may have grown by from the end of the warm-up to the end: pools of Python, pyarrow, the library and libc, which
#: depend on how many threads were in which of them at once, and the soak's own records. Of an hour it is ten bytes a millisecond.
GROWTH = 32 << 20

#: Seconds for what goes on in the background to end: connections that are being closed, threads that resolved a name.
SETTLING = 30.0


def resident() -> int:
    """Bytes of this process that are in memory once its allocators gave back what they need not keep."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    # Only glibc has it, and only glibc keeps so much.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@dataclass(frozen=True)
class Residue:
    """What was there at one moment."""

    handles: Counter[str]
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Residue:
        gc.collect()
        live = (known() for known in _handle._known.copy())
        return cls(
            Counter(handle.what for handle in live if handle is not None and not handle.closed),
            len(list(Path("/proc/self/task").iterdir())),
            len(list(Path("/proc/self/fd").iterdir())),
        )

    def beyond(self, start: Residue) -> list[str]:
        """What is there that was not at the start."""
        found = [f"{count} handles of {what}" for what, count in (self.handles - start.handles).items()]
        if self.threads > start.threads:
            found.append(f"{self.threads - start.threads} threads")
        if self.descriptors > start.descriptors:
            found.append(f"{self.descriptors - start.descriptors} descriptors")
        return found


def left_behind(start: Residue) -> list[str]:
    """What is still there beyond the start once everything had time to end."""
    until = time.monotonic() + SETTLING
    while (found := Residue.now().beyond(start)) and time.monotonic() < until:
        time.sleep(0.2)
    return found
