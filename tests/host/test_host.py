"""A host in C: the interface works without Python, and a memory checker finds nothing to complain about."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..probes import golden

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
PATIENCE = 110


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """host.c, compiled strictly and linked with the library that this process uses."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    assert compiler is not None, "no C compiler"
    folder = tmp_path_factory.mktemp("host")
    # Linked by its soname, as a host would: the file that is loaded must go by that name.
    library = folder / "libnervix_client_ffi.so"
    library.symlink_to(nervix_ffi.library().path)
    program = folder / "host"
    strict = ["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    link = ["-L", str(folder), f"-Wl,-rpath,{folder}", "-lnervix_client_ffi", "-lpthread"]
    subprocess.run([compiler, *strict, "-I", str(INCLUDE), str(HERE / "host.c"), "-o", str(program), *link], check=True)
    return program


def run(command: list[str]) -> tuple[int, str, str]:
    """Run the host against a node, publishing the scenario's rows once it has subscribed: status, output, errors."""
    with LoopbackNode(user="guest", password="sesame", load=golden.SCENARIOS / "rows.nspl") as node:
        process = subprocess.Popen(
            [*command, node.uri, "guest", "sesame"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            first = process.stdout.readline()
            if first == "SUBSCRIBED\n":
                for batch in golden.batches("rows"):
                    node.control("publish", domain="conformance", relay="typed_rows", rows=batch)
            output, errors = process.communicate(timeout=PATIENCE)
            ended = node.counts()["sessions"]["ended"]
            assert ended["end_stream"] == 0
            return process.returncode, first + output, errors
        finally:
            process.kill()
            process.communicate()


@pytest.mark.rule("B-1", "B-2", "B-3", "B-4", "B-6", "B-7", "X-7")
def test_a_host_in_c(host: Path) -> None:
    assert run([str(host)]) == (0, "SUBSCRIBED\nPASS\n", "")


@pytest.mark.timeout(240)
@pytest.mark.rule("B-2", "B-3", "F-9")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_host_in_c_under_a_memory_checker(host: Path) -> None:
    """No invalid access and no definite leak. What is still reachable at the end belongs to the library's running threads."""
    checker = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]
    status, output, errors = run([*checker, "--show-leak-kinds=definite", "--fair-sched=yes", str(host)])
    assert (status, output) == (0, "SUBSCRIBED\nPASS\n"), errors
    assert "==" not in errors


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "host.cpp"
    source.write_text('#include "nervix_client_ext.h"\nint main() { nx_error_free(nullptr); return 0; }\n', encoding="utf-8")
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, *strict, "-I", str(INCLUDE), "-c", str(source), "-o", str(tmp_path / "host.o")], check=True)
