"""Build the fuzz targets of core/fuzz and run each of them for a while, two at a time.

    python tools/fuzz.py                        every target for 20 seconds
    python tools/fuzz.py --seconds 600 abi rows the targets named, for ten minutes each
    NERVIX_FUZZ_SECONDS=600 .ci/run             as long within the checks

Each target begins with the seeds that our own encoders write, and with what earlier runs left in core/fuzz/corpus when
--keep is given. Prints how many inputs each target ran and how much of the code they reached; exits 1 when one of them
found something, with the input kept in core/fuzz.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FUZZ = Path(__file__).resolve().parent.parent / "core" / "fuzz"
TRIPLE = "x86_64-unknown-linux-gnu"
# A target that hangs in its last input is given so long to be told by its own -timeout.
GRACE = 120
# Weighing inputs by the rarity of what they reach takes longer than running them, where each reaches so much.
ALSO = {"abi": ["-entropic=0"]}

_LAST = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+)", re.MULTILINE)


class Run(NamedTuple):
    """What came of one target."""

    target: str
    code: int
    seconds: float
    output: str

    def line(self) -> str:
        """One line of the table."""
        found = _LAST.search(self.output)
        if self.code or not found:
            return f"{self.target:12} FAILED with {self.code} after {self.seconds:.0f} s"
        inputs, coverage, features = found.groups()
        return f"{self.target:12} {self.seconds:5.0f} s {inputs:>9} inputs {coverage:>7} edges {features:>7} features"


def declared() -> list[str]:
    """The targets that the crate has."""
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def built() -> Path:
    """Build everything, and say where it lies."""
    command = ["cargo", "build", "--locked"]
    subprocess.run(command, cwd=FUZZ, check=True, env={**os.environ, "CARGO_INCREMENTAL": "0"})
    return Path(os.environ.get("CARGO_TARGET_DIR", FUZZ / "target")).absolute() / TRIPLE / "debug"


def run(program: Path, corpus: Path, own: Path, seconds: int, seed: int) -> Run:
    """Run one target from its seeds; what it adds goes into the folder of its own."""
    own.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [str(program), f"-max_total_time={seconds}", f"-seed={seed}", "-rss_limit_mb=2048", "-timeout=20"]
    command += ["-print_funcs=0", f"-artifact_prefix={FUZZ}/", *ALSO.get(program.name, []), str(own), str(corpus)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + GRACE, check=False)
    except subprocess.TimeoutExpired as expired:
        output = (expired.output or b"").decode(errors="replace")
        return Run(program.name, -1, time.monotonic() - began, output)
    return Run(program.name, done.returncode, time.monotonic() - began, done.stdout.decode(errors="replace"))


def main() -> int:
    """Build, check that the interface is reached, run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="all of them unless named")
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("NERVIX_FUZZ_SECONDS", "20")))
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add what is found to core/fuzz/corpus, and begin with it")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(declared())
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}: there are {', '.join(declared())}")
    programs = built()
    with tempfile.TemporaryDirectory() as work:
        seeds = Path(work) / "seeds"
        corpus = FUZZ / "corpus" if arguments.keep else Path(work) / "corpus"
        subprocess.run([programs / "seeds", seeds], check=True)
        # On a machine that is busy a call may run out of time in which a seed has it succeed: once in three is enough.
        for _ in range(3):
            reached = subprocess.run([programs / "reached"], capture_output=True, text=True, check=False)
            if not reached.returncode:
                break
        else:
            print(reached.stdout, reached.stderr, sep="\n")
            print("the seeds of abi do not reach every function of the C interface")
            return 1
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = [
                pool.submit(run, programs / name, seeds / name, corpus / name, arguments.seconds, arguments.seed)
                for name in arguments.targets or declared()
            ]
            failed = []
            for one in runs:
                ended = one.result()
                print(ended.line(), flush=True)
                if ended.code:
                    failed.append(ended)
    for ended in failed:
        print(f"\n== {ended.target}\n" + "\n".join(ended.output.splitlines()[-80:]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
