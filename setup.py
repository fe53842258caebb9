"""The build: the Rust library and node, then the cffi extension that opens the library.

Everything that can be said in pyproject.toml is said there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

import build_ffi  # noqa: E402 - lies beside this file, which an isolated build does not import from by itself

#: What cargo builds, and the kind of each file that goes into the package.
PACKAGES = ("nervix-client-ffi", "nervix-loopback")


class BuildError(SystemExit):
    """Ends the build with one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"error: {sentence}")


def build_core() -> list[Path]:
    """Builds the library and the node, and returns their files."""
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if cargo is None or shutil.which(cargo) is None:
        raise BuildError("building nervix-ffi needs Rust's cargo, which is not on PATH; install Rust, then try again.")
    command = [cargo, "build", "--release", "--locked", "--manifest-path", str(ROOT / "core" / "Cargo.toml")]
    for package in PACKAGES:
        command += ["-p", package]
    done = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"], stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise BuildError("cargo could not build the client library; its own messages above say why.")
    files: list[Path] = []
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") != "compiler-artifact" or Path(message.get("manifest_path", "")).parent.parent != ROOT / "core":
            continue
        kinds = message["target"]["kind"]
        if "cdylib" in kinds:
            files += [Path(name) for name in message["filenames"] if Path(name).suffix in (".so", ".dylib")]
        elif "bin" in kinds and message.get("executable"):
            files.append(Path(message["executable"]))
    if len(files) != len(PACKAGES):
        raise BuildError(
            f"cargo built {', '.join(map(str, files)) or 'nothing'} where one library and one program were expected."
        )
    return files


class BuildExtension(build_ext):
    """Puts the library and the node beside the extension, in the source tree when the install is editable."""

    def build_extension(self, ext: Extension) -> None:
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise BuildError(
                f"building nervix-ffi needs a C compiler, and {compiler} is not on PATH; install one, then try again."
            )
        # An interpreter's own folder is no place that another machine has.
        linker = self.compiler.linker_so
        self.compiler.linker_so = [word for word in linker if not word.startswith(("-Wl,-rpath", "-Wl,-R"))]
        files = build_core()
        source = Path(self.build_temp) / "_ffi.c"
        source.parent.mkdir(parents=True, exist_ok=True)
        build_ffi.make_builder().emit_c_code(str(source))
        ext.sources = [str(source)]
        super().build_extension(ext)
        folders = {Path(self.get_ext_fullpath(ext.name)).parent}
        if getattr(self, "editable_mode", False) or "develop" in self.distribution.commands:
            folders.add(ROOT / "nervix_ffi")
        for folder in folders:
            for file in files:
                # Written aside and renamed: a process that has the old file mapped keeps it.
                fresh = folder / f".{file.name}.new"
                shutil.copy2(file, fresh)
                os.replace(fresh, folder / file.name)


arguments = build_ffi.compile_arguments()
setup(
    cmdclass={"build_ext": BuildExtension},
    ext_modules=[
        Extension(
            build_ffi.MODULE,
            sources=[],
            depends=[str(header) for header in build_ffi.HEADERS],
            py_limited_api=build_ffi.uses_limited_api(),
            **arguments,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if build_ffi.uses_limited_api() else {},
)
