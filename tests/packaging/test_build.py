"""What a build makes, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import Tree


def test_the_wheel_holds_library_and_node_and_serves_every_cpython(tree: Tree, tmp_path: Path) -> None:
    done = tree.pip("wheel", "--wheel-dir", str(tmp_path / "wheels"), ".")
    assert done.returncode == 0, done.stdout
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert "-cp310-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    wanted = ("_ffi.abi3.so", "libnervix_client_ffi.so", "nervix-loopback", "py.typed", "_ffi.pyi", "testing/node.py")
    assert {f"nervix_ffi/{name}" for name in wanted} <= names
    assert "pytest_nervix.py" in names
    assert not [name for name in names if name.startswith(("core", "include", "tests", "build_ffi", "setup"))]
    assert modes["nervix_ffi/nervix-loopback"] & 0o111 == 0o111
    assert not list((tree.path / "nervix_ffi").glob("*.so")), "the source tree stays as it was"

    target = tmp_path / "installed"
    done = tree.pip("install", "--target", str(target), str(wheel))
    assert done.returncode == 0, done.stdout
    dynamic = subprocess.run(
        ["readelf", "-d", target / "nervix_ffi" / "_ffi.abi3.so"], capture_output=True, encoding="utf-8", check=True
    )
    assert "RPATH" not in dynamic.stdout
    assert "RUNPATH" not in dynamic.stdout
    assert "nervix_client" not in dynamic.stdout
    environment = {name: value for name, value in os.environ.items() if name != "NERVIX_CLIENT_LIBRARY"}
    loaded = subprocess.run(
        [sys.executable, "-c", "import nervix_ffi; print(nervix_ffi.__file__, nervix_ffi.library().path)"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(target)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert loaded.stdout.split() == [
        str(target / "nervix_ffi" / "__init__.py"),
        str(target / "nervix_ffi" / "libnervix_client_ffi.so"),
    ]


def test_cargo_builds_a_locked_release_of_the_two_packages(tree: Tree, tmp_path: Path) -> None:
    done = tree.pip("wheel", "--wheel-dir", str(tmp_path / "wheels"), ".")
    assert done.returncode == 0, done.stdout
    arguments = tree.cargo_arguments()
    assert arguments[:3] == ["build", "--release", "--locked"]
    assert [arguments[index + 1] for index, word in enumerate(arguments) if word == "-p"] == [
        "nervix-client-ffi",
        "nervix-loopback",
    ]


def test_an_editable_install_puts_library_and_node_into_the_source_tree(tree: Tree, tmp_path: Path) -> None:
    done = tree.pip("install", "--target", str(tmp_path / "installed"), "--editable", ".")
    assert done.returncode == 0, done.stdout
    built = {path.name for path in (tree.path / "nervix_ffi").iterdir()}
    assert {"_ffi.abi3.so", "libnervix_client_ffi.so", "nervix-loopback"} <= built
    assert os.access(tree.path / "nervix_ffi" / "nervix-loopback", os.X_OK)


@pytest.mark.parametrize("missing", ["cargo", "a C compiler"])
def test_a_missing_tool_is_one_clear_sentence(tree: Tree, tmp_path: Path, missing: str) -> None:
    environment = {"CC": "no-such-cc"}
    if missing == "cargo":
        (tree.programs / "cargo").unlink()
        environment = {}
    done = tree.pip("wheel", "--wheel-dir", str(tmp_path / "wheels"), ".", **environment)
    assert done.returncode != 0
    said = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("error: building nervix-ffi needs")]
    assert len(said) == 1, done.stdout
    assert "not on PATH; install" in said[0]
    assert "Traceback" not in done.stdout


def test_a_core_that_does_not_compile_is_one_clear_sentence(tree: Tree, tmp_path: Path) -> None:
    tree.set_cargo(status=101)
    done = tree.pip("wheel", "--wheel-dir", str(tmp_path / "wheels"), ".")
    assert done.returncode != 0
    assert "error: it does not compile" in done.stdout
    assert "error: cargo could not build the client library" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_sdist_holds_all_that_a_build_needs(tree: Tree, tmp_path: Path) -> None:
    (tree.path / "core" / "target").mkdir()
    (tree.path / "core" / "target" / "big").write_text("", encoding="utf-8")
    script = f"import setuptools.build_meta as build; build.build_sdist({str(tmp_path)!r})"
    done = tree.run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stdout
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.partition("/")[2] for name in contents.getnames()}
    wanted = {
        "build_ffi.py",
        "setup.py",
        "pyproject.toml",
        "LICENSE",
        "include/nervix_client.h",
        "include/nervix_client_ext.h",
        "core/Cargo.toml",
        "core/Cargo.lock",
        "core/ffi/src/lib.rs",
        "nervix_ffi/_ffi.pyi",
        "nervix_ffi/py.typed",
        "pytest_nervix.py",
    }
    assert wanted <= names, wanted - names
    assert not [name for name in names if name.startswith("core/target") or name.endswith(".so")]
