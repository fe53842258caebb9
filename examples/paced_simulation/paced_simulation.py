"""Simulated sensors on a paced domain clock: submits readings by the clock, consumes what the graph makes of them.

    python examples/paced_simulation/paced_simulation.py --node           everything on an embedded node
    python examples/paced_simulation/paced_simulation.py --server http://127.0.0.1:47391

Every reading is stamped with a center of the domain's clock, written to a ledger, and submitted. Consumers record each effect once,
keyed by the reading's id, and only then acknowledge. Ledger and effects survive a crash at any moment; `--replay` submits again what
did not complete. The report goes to standard output, one observation a line. Exit status: 0 when every submitted reading completed, 3
when one did not, 2 when the command line, the graph or the domain cannot be used, 1 after a failure of the program's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

GRAPH = Path(__file__).resolve().parent / "paced_simulation.nspl"

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZES = {"": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

#: The graph's ingestor for each way to stamp a reading.
INGESTORS = {"at": "simulated_readings", "now": "live_readings"}


def seconds(text: str) -> float:
    """A duration, for example `250ms`, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write for example 250ms, 5s or 10m")
    return float(match[1]) * UNITS[match[2]]


def size(text: str) -> int:
    """A number of bytes, for example `1MiB`."""
    match = re.fullmatch(r"(\d+)(|bytes|KiB|MiB|GiB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write for example 262144, 256KiB or 1MiB")
    return int(match[1]) * SIZES[match[2]]


def number(least: int) -> Callable[[str], int]:
    """A whole number, `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return parse


def number_or_seconds(text: str) -> int | float:
    """A positive count (an int), or a duration (a float of seconds)."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    return seconds(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Paced simulation of sensors through a Nervix graph.")
    made.add_argument("--server", default="http://127.0.0.1:47391", help="origin of a node")
    made.add_argument("--username", default=os.environ.get("NERVIX_USERNAME"))
    made.add_argument("--password", default=os.environ.get("NERVIX_PASSWORD"))
    made.add_argument("--domain", default="paced_simulation")
    made.add_argument("--timestamps", choices=sorted(INGESTORS), default="at", help="stamp at the center, or on arrival")
    made.add_argument("--ingestor", help="the graph's for --timestamps unless given")
    made.add_argument("--emitter", default="observed_readings")
    made.add_argument("--rejections", default="rejection_notices", help="the emitter of refused readings")
    made.add_argument("--ticks", type=number(0), default=50, help="how many centers to submit at; 0 only replays")
    made.add_argument("--sensors", type=number(1), default=3)
    made.add_argument("--burst", type=number(1), default=1, help="readings of each sensor a tick")
    made.add_argument("--invalid-every", type=number(0), default=0, help="every so many ticks, one reading out of the window")
    made.add_argument("--consumers", type=number(1), default=1)
    made.add_argument("--consumer-delay", type=seconds, default=0.0, help="how long the consumers stay away at first")
    made.add_argument(
        "--consumer-leave-after", type=number_or_seconds, help="the last consumer leaves after so many deliveries, or that time"
    )
    made.add_argument("--processing-time", type=seconds, default=0.0, help="how long a consumer works on a delivery")
    made.add_argument("--credit-batches", type=number(1), default=8)
    made.add_argument("--credit-bytes", type=size, default=2**20)
    made.add_argument("--inspect-every", type=number_or_seconds, help="every so many ticks, or that time, describe the endpoints")
    made.add_argument("--ledger", type=Path, default=Path("paced-simulation-ledger.jsonl"))
    made.add_argument("--effects", type=Path, default=Path("paced-simulation-effects.jsonl"))
    made.add_argument("--replay", action="store_true", help="first submit again what did not complete and is still admissible")
    made.add_argument("--follow-generations", action="store_true", help="go on with the next START after a STOP")
    made.add_argument("--deadline", type=seconds, default=600.0, help="how long to wait for outcomes and notices at the end")
    made.add_argument("--library", help="another client library of the same interface")
    made.add_argument("--node", action="store_true", help="start a loopback node with the graph and use it")
    return made


def main() -> int:
    """Run the command line."""
    options = parser().parse_args()
    if options.ingestor is None:
        options.ingestor = INGESTORS[options.timestamps]
    if options.library:
        os.environ["NERVIX_CLIENT_LIBRARY"] = options.library
    try:
        # From here on the client library is loaded.
        from simulation import Simulation

        from nervix_ffi.testing import LoopbackNode

        with contextlib.ExitStack() as stack:
            if options.node:
                node = stack.enter_context(LoopbackNode(load=GRAPH))
                options.server, options.username, options.password = node.uri, None, None
            return Simulation(options).run()
    except KeyboardInterrupt:
        reason = "interrupted while it was finishing"
    except Exception as failure:
        reason = " ".join(str(failure).split()) or type(failure).__name__
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
