"""The tests of the Rust crates, as one test of this suite."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.timeout(1700)
def test_the_rust_workspace_passes_its_tests(root: Path) -> None:
    """Runs them as released, with overflow checks: the profile of the package, so that dependencies are compiled once."""
    cargo = shutil.which("cargo")
    assert cargo is not None, "the tests need cargo"
    run = subprocess.run(
        [cargo, "test", "--release", "--locked", "--workspace", "--no-fail-fast"],
        cwd=root / "core",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    results = [line for line in run.stdout.splitlines() if line.startswith("test result:")]
    print("\n".join(results))
    assert run.returncode == 0, run.stdout[-20_000:]
    assert results, "no test of the workspace ran"
