"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from .wire import reader

# Those of them that assert and are no tests, so that a failure says what was compared.
pytest.register_assert_rewrite("tests.cuts")

ROOT = Path(__file__).resolve().parent.parent

# What lands must not depend on luck: CI looks at the same examples each time, everybody else at new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The classes of the second reader and writer, which flatc makes from the schema."""
    reader.generate(tmp_path_factory.mktemp("wire"))


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A library of the interface without a server behind it, compiled."""
    compiler = shutil.which("cc")
    assert compiler is not None, "the tests need a C compiler"
    path = tmp_path_factory.mktemp("fake") / "libfake.so"
    source = root / "tests" / "api" / "fake_library.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{root / 'include'}", "-o", path, source, "-lpthread"],
        check=True,
    )
    return path


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a fresh interpreter, warnings being errors, and returns what it printed and its status."""

    def run(script: str, *, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(script, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-W", "error", "-X", "faulthandler", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that is loaded, behind one that has its interface and none of its extensions."""
    import build_ffi
    import nervix_ffi

    lines = ['#include "nervix_client.h"', "#include <dlfcn.h>", "#include <stdlib.h>", "static void *library;"]
    lines.append("__attribute__((constructor)) static void open_library(void) {")
    lines.append(f'  library = dlopen("{nervix_ffi.library().path}", RTLD_NOW | RTLD_LOCAL);')
    lines.append("  if (library == NULL) abort();\n}")
    for function in build_ffi.read_headers().functions.values():
        if function.name.startswith(build_ffi.REQUIRED_PREFIX):
            names = ", ".join(parameter.replace("*", " ").split()[-1] for parameter in function.parameters)
            returned = "" if function.returns == "void" else "return "
            lines.append(f"{function.prototype[:-1]} {{")
            lines.append(f"  static __typeof__({function.name}) *to;")
            lines.append(f'  if (to == NULL) to = (__typeof__(to))dlsym(library, "{function.name}");')
            lines.append(f"  {returned}to({names});\n}}")
    folder = tmp_path_factory.mktemp("plain")
    source, path = folder / "plain.c", folder / "libplain.so"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", f"-I{ROOT / 'include'}", "-o", path, source, "-ldl"], check=True)
    return path
