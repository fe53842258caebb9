"""A copy of the source tree, and a cargo that builds at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FILES = ("pyproject.toml", "setup.py", "build_ffi.py", "pytest_nervix.py", "MANIFEST.in", "LICENSE", "README.md")

CARGO = """#!{python}
import json, pathlib, sys
core = pathlib.Path({core!r})
pathlib.Path({log!r}).write_text(json.dumps(sys.argv[1:]))
if {status}:
    print("error: it does not compile", file=sys.stderr)
    sys.exit({status})
for crate, kind, name in (("ffi", "cdylib", "libnervix_client_ffi.so"), ("node", "bin", "nervix-loopback")):
    path = str(pathlib.Path({built!r}) / name)
    print(json.dumps({{"reason": "compiler-artifact", "manifest_path": str(core / crate / "Cargo.toml"),
                      "target": {{"kind": [kind], "name": name}}, "filenames": [path],
                      "executable": path if kind == "bin" else None}}))
print(json.dumps({{"reason": "build-finished", "success": True}}))
"""


@dataclass
class Tree:
    """A copy of the source tree, whose core is built by a cargo that only says so."""

    path: Path
    programs: Path
    log: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the tree. PATH has the programs of this tree before the system's."""
        variables = {**os.environ, "PATH": f"{self.programs}:/usr/bin:/bin", **environment}
        variables.pop("CARGO", None)
        return subprocess.run(
            command, cwd=self.path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False
        )

    def pip(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs pip on the tree, with the build requirements of this environment and nothing from outside."""
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", arguments[0]]
        return self.run(
            *command,
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            *arguments[1:],
            PIP_ROOT_USER_ACTION="ignore",
            **environment,
        )

    def cargo_arguments(self) -> list[str]:
        """What cargo was called with."""
        arguments: list[str] = json.loads(self.log.read_text(encoding="utf-8"))
        return arguments

    def set_cargo(self, status: int = 0) -> None:
        """Puts a cargo in place that ends with ``status``."""
        cargo = self.programs / "cargo"
        cargo.write_text(
            CARGO.format(
                python=sys.executable,
                core=str(self.path / "core"),
                built=str(self.programs.parent / "built"),
                log=str(self.log),
                status=status,
            ),
            encoding="utf-8",
        )
        cargo.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path, root: Path, fake_library: Path) -> Tree:
    """A copy of the source tree with a cargo of its own."""
    path, programs, built = tmp_path / "tree", tmp_path / "programs", tmp_path / "built"
    for folder in (path, programs, built):
        folder.mkdir()
    for name in FILES:
        if (root / name).exists():
            shutil.copy2(root / name, path / name)
    unbuilt = shutil.ignore_patterns("*.so", "*.dylib", "nervix-loopback", "__pycache__", "target")
    for folder in ("include", "nervix_ffi", "core"):
        shutil.copytree(root / folder, path / folder, ignore=unbuilt)
    shutil.copy2(fake_library, built / "libnervix_client_ffi.so")
    (built / "nervix-loopback").write_text("#!/bin/sh\n", encoding="utf-8")
    (built / "nervix-loopback").chmod(0o755)
    made = Tree(path, programs, tmp_path / "cargo.json")
    made.set_cargo()
    return made
