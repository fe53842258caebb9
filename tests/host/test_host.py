"""A host in C: the interface works without Python, and a memory checker finds nothing to complain about."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..probes import golden

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
PATIENCE = 110


#: What `endpoints.c` expects: its fields end in one that is sensitive, which the emitter has to leak to hand it out.
FIELDS = "id U32, maybe I64 OPTIONAL, text STRING, tags VEC<STRING>, grid ARRAY<I16, 2, 2>, secret STRING SENSITIVE"
MODE = "MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms MAX 40ms"
ENDPOINTS = f"""
CREATE PACED DOMAIN lab WITH PERIOD 100ms SKEW 10ms;
USE lab;
CREATE SCHEMA row ({FIELDS});
CREATE RELAY rows SCHEMA row UNBRANCHED;
CREATE INGESTOR in FROM CLIENT SCHEMA row {MODE} ON QUIESCE SUSPEND TIMESTAMP NOW TO rows INHERIT ALL
  FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
CREATE EMITTER out FROM rows TO CLIENT SCHEMA row {MODE} INHERIT ALL EXCEPT secret SET secret = leak_sensitive(input.secret)
  BATCH MAX MESSAGES 16 MAX SIZE 64KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
START AT '2030-01-01T00:00:00Z' TIME RATE 2.0;
"""

#: What `threads.c` expects.
THREADS = f"""
CREATE PACED DOMAIN lab WITH PERIOD 20ms SKEW 1ms;
USE lab;
CREATE SCHEMA row (id U32);
CREATE RELAY rows SCHEMA row UNBRANCHED;
CREATE INGESTOR in FROM CLIENT SCHEMA row {MODE} ON QUIESCE SUSPEND TIMESTAMP NOW TO rows INHERIT ALL
  FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
CREATE EMITTER out FROM rows TO CLIENT SCHEMA row {MODE} INHERIT ALL
  BATCH MAX MESSAGES 1 MAX SIZE 64KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
START;
"""

#: No invalid access and no definite leak. What is still reachable at the end belongs to the library's running threads.
CHECKER = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--show-leak-kinds=definite",
    "--fair-sched=yes",
]

checked = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the hosts, compiled strictly and linked with the library that this process uses."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    assert compiler is not None, "no C compiler"
    folder = tmp_path_factory.mktemp("host")
    # Linked by its soname, as a host would: the file that is loaded must go by that name.
    library = folder / "libnervix_client_ffi.so"
    library.symlink_to(nervix_ffi.library().path)
    strict = ["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    link = ["-L", str(folder), f"-Wl,-rpath,{folder}", "-lnervix_client_ffi", "-lpthread"]
    for name in ("host", "endpoints", "threads"):
        source = HERE / f"{name}.c"
        subprocess.run([compiler, *strict, "-I", str(INCLUDE), str(source), "-o", str(folder / name), *link], check=True)
    return folder


def run(command: list[str], load: str | Path, step: str, do: Callable[[LoopbackNode], None], *more: str) -> tuple[int, str, str]:
    """Run a host against a node, doing something when it has said so: status, output, errors."""
    with LoopbackNode(user="guest", password="sesame", load=load) as node:
        process = subprocess.Popen(
            [*command, node.uri, "guest", "sesame", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            if first == f"{step}\n":
                do(node)
            output, errors = process.communicate(timeout=PATIENCE)
            ended = node.wait(sessions=0)
            assert ended["sessions"]["ended"]["end_stream"] == 0
            assert (ended["producers"], ended["consumers"], ended["clocks"]) == (0, 0, 0)
            return process.returncode, first + output, errors
        finally:
            process.kill()
            process.communicate()


def run_host(command: list[str]) -> tuple[int, str, str]:
    """Run `host`, publishing the scenario's rows once it has subscribed."""

    def publish(node: LoopbackNode) -> None:
        for batch in golden.batches("rows"):
            node.control("publish", domain="conformance", relay="typed_rows", rows=batch)

    return run(command, golden.SCENARIOS / "rows.nspl", "SUBSCRIBED", publish)


def run_endpoints(command: list[str]) -> tuple[int, str, str]:
    """Run `endpoints`, cutting its connection when it may be."""

    def cut(node: LoopbackNode) -> None:
        node.control("cut", how="abort")

    return run(command, ENDPOINTS, "CUT", cut)


def run_threads(command: list[str], rounds: int) -> tuple[int, str, str]:
    """Run `threads` for as many rounds."""
    return run(command, THREADS, "BUSY", lambda _: None, str(rounds))


@pytest.mark.rule("B-1", "B-2", "B-3", "B-4", "B-6", "X-7")
def test_a_host_in_c(hosts: Path) -> None:
    assert run_host([str(hosts / "host")]) == (0, "SUBSCRIBED\nPASS\n", "")


@pytest.mark.rule("B-2", "B-3", "B-9", "B-11", "B-12", "B-13", "B-14", "B-15", "B-16", "X-7")
def test_a_host_in_c_with_clocks_producers_and_consumers(hosts: Path) -> None:
    assert run_endpoints([str(hosts / "endpoints")]) == (0, "CUT\nPASS\n", "")


@checked
@pytest.mark.timeout(240)
@pytest.mark.rule("B-2", "B-3", "F-9")
def test_a_host_in_c_under_a_memory_checker(hosts: Path) -> None:
    status, output, errors = run_host([*CHECKER, str(hosts / "host")])
    assert (status, output) == (0, "SUBSCRIBED\nPASS\n"), errors
    assert "==" not in errors


@checked
@pytest.mark.timeout(240)
@pytest.mark.rule("B-2", "B-9", "B-11", "B-14", "B-15")
def test_clocks_producers_and_consumers_under_a_memory_checker(hosts: Path) -> None:
    status, output, errors = run_endpoints([*CHECKER, str(hosts / "endpoints")])
    assert (status, output) == (0, "CUT\nPASS\n"), errors
    assert "==" not in errors


@pytest.mark.rule("B-2", "B-3", "B-9", "B-14", "B-15")
def test_eight_threads_in_c(hosts: Path) -> None:
    assert run_threads([str(hosts / "threads")], 200) == (0, "BUSY\nPASS\n", "")


@checked
@pytest.mark.timeout(240)
@pytest.mark.rule("B-2", "B-3", "B-9", "B-14", "B-15", "F-9")
def test_eight_threads_in_c_under_a_memory_checker(hosts: Path) -> None:
    status, output, errors = run_threads([*CHECKER, str(hosts / "threads")], 15)
    assert (status, output) == (0, "BUSY\nPASS\n"), errors
    assert "==" not in errors


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "host.cpp"
    source.write_text('#include "nervix_client_ext.h"\nint main() { nx_error_free(nullptr); return 0; }\n', encoding="utf-8")
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, *strict, "-I", str(INCLUDE), "-c", str(source), "-o", str(tmp_path / "host.o")], check=True)
