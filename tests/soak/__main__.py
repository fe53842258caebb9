"""``python -m tests.soak``: see the package."""

from __future__ import annotations

import argparse
import secrets
import sys

from .run import Soak


def main() -> int:
    """The status of the process: 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Use everything while everything fails.")
    parser.add_argument("--duration", type=float, default=3600.0, help="seconds of faults; 3600 unless given")
    parser.add_argument("--seed", type=int, help="what fixes the choices; drawn and printed unless given")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    soak = Soak(seed, arguments.duration)
    problems = soak.run()
    print(soak.summary(), flush=True)
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    if problems:
        print(
            f"replay, as far as threads allow: python -m tests.soak --duration {arguments.duration:g} --seed {seed}",
            file=sys.stderr,
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
