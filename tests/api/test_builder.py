"""The builder reads the headers, and the extension takes any library of the interface."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import build_ffi


def test_a_function_keeps_its_types_and_names() -> None:
    found = build_ffi.parse_headers(
        [
            "/* no */ typedef struct nx_a nx_a;\n#define X 1\n"
            "nx_a *nx_make(const uint8_t *text, size_t text_len); // yes\nvoid nx_end(void);"
        ]
    )
    assert found.opaque == ["nx_a"]
    assert found.functions["nx_make"].prototype == "nx_a *nx_make(const uint8_t *text, size_t text_len);"
    assert found.functions["nx_end"].prototype == "void nx_end(void);"


def test_an_enum_keeps_its_values() -> None:
    found = build_ffi.parse_headers(["typedef enum nx_e { NX_A = 1, NX_B = 0x10, } nx_e;"])
    assert found.enums == {"nx_e": {"NX_A": 1, "NX_B": 16}}


@pytest.mark.parametrize(
    "text",
    [
        "typedef union nx_u nx_u;",
        "extern int nx_variable;",
        "typedef enum nx_e { NX_A } nx_e;",
        "typedef enum nx_e { NX_A = 1 } nx_f;",
        "typedef struct nx_a nx_b;",
        "void nx_f(void); void nx_f(void);",
        "void nx_f(void",
    ],
)
def test_a_declaration_that_is_not_understood_stops_the_build(text: str) -> None:
    with pytest.raises(build_ffi.HeaderError):
        build_ffi.parse_headers([text])


def test_every_function_of_the_headers_is_in_the_table(root: Path) -> None:
    found = build_ffi.read_headers()
    text = (root / "include" / "nervix_client.h").read_text(encoding="utf-8")
    assert {name for name in found.functions if f"{name}(" in text} >= {"nx_session_connect", "nx_event_cell_varlen"}
    source = build_ffi.source_text(found)
    assert all(f'{{"{name}", (void **)&nervix_table.{name}}}' in source for name in found.functions)


def test_the_stub_is_current(root: Path) -> None:
    stub = (root / "nervix_ffi" / "_ffi.pyi").read_text(encoding="utf-8")
    assert stub == build_ffi.stub_text(build_ffi.read_headers()), "run `python build_ffi.py --stub > nervix_ffi/_ffi.pyi`"


def test_the_extension_needs_no_client_library(root: Path) -> None:
    import nervix_ffi._ffi

    found = subprocess.run(["readelf", "-d", nervix_ffi._ffi.__file__], capture_output=True, encoding="utf-8", check=True).stdout
    assert "nervix_client" not in found


def test_a_library_that_is_not_there_is_an_import_error(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("import nervix_ffi", NERVIX_CLIENT_LIBRARY="/nowhere/libnothing.so")
    assert "ImportError: cannot load the Nervix client library /nowhere/libnothing.so" in done.stderr
    assert "NERVIX_CLIENT_LIBRARY" in done.stderr


def test_a_library_without_a_function_is_an_import_error_that_names_it(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    source, library = tmp_path / "part.c", tmp_path / "libpart.so"
    source.write_text("int nx_error_kind_of(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = run_python("import nervix_ffi", NERVIX_CLIENT_LIBRARY=str(library))
    assert "has no function nx_error_message" in done.stderr
    assert done.stderr.count("ImportError: ") == 1


def test_library_says_which_file_is_loaded_and_what_it_has(
    with_fake: Callable[[str], subprocess.CompletedProcess[str]], fake_library: Path
) -> None:
    done = with_fake("print(nervix_ffi.library().path, sorted(nervix_ffi.library().extensions))")
    assert done.stdout.strip() == f"{fake_library} []"


def test_the_tests_import_the_source_tree(root: Path) -> None:
    import nervix_ffi

    assert Path(nervix_ffi.__file__).parent == root / "nervix_ffi"
