"""Collects the licence texts of the crates that the library and the node are built from.

    python tools/licences.py [--check]

Writes LICENSES-THIRD-PARTY.txt: each distinct text once, under the crates that it covers. With ``--check`` it writes nothing and
ends with 1 when the file is not what it would write. Needs cargo, and the crates that core/Cargo.lock names fetched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "LICENSES-THIRD-PARTY.txt"
PLATFORM = "x86_64-unknown-linux-gnu"
ROOTS = ("nervix-client-ffi", "nervix-loopback")
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def built_in(metadata: dict[str, Any]) -> set[str]:
    """The identities of the packages that the two artefacts are built from, tests and build scripts aside."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] in ROOTS]
    seen: set[str] = set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return seen


def collect() -> str:
    """The text of the file."""
    run = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM],
        cwd=ROOT / "core",
        check=True,
        capture_output=True,
    )
    metadata = json.loads(run.stdout)
    wanted = built_in(metadata)
    texts: dict[str, list[str]] = {}
    silent: list[str] = []
    for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"])):
        if package["id"] not in wanted or package["source"] is None:
            continue
        label = f"{package['name']} {package['version']} ({package['license'] or 'see its text'})"
        folder = Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.name.upper().startswith(NAMES) and path.is_file())
        if not files:
            silent.append(label)
        for path in files:
            text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8", errors="replace").strip().splitlines())
            texts.setdefault(text, []).append(label)
    parts = ["The compiled library and the loopback node contain code of the crates below, under their own licences.\n"]
    if silent:
        parts.append("Crates whose package carries no licence text:\n" + "".join(f"  {label}\n" for label in silent))
    for text, labels in sorted(texts.items(), key=lambda item: item[1]):
        covered = "".join(f"  {label}\n" for label in dict.fromkeys(labels))
        parts.append("-" * 100 + "\n" + covered + "\n" + text + "\n")
    return "\n".join(parts)


def main() -> int:
    """Writes or compares the file."""
    text = collect()
    if "--check" in sys.argv[1:]:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
            print("LICENSES-THIRD-PARTY.txt is stale: run python tools/licences.py")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
