"""Builds the cffi extension ``nervix_ffi._ffi`` from the headers in ``include/``.

The headers are the one source: their types, enums and functions become the extension's declarations, and every function becomes
a slot of a table of function pointers. The extension is not linked with the client library. It opens one by name
(``nervix_library_open``) and fills the table from it, so any library of the same interface can stand behind the package.

``python build_ffi.py`` compiles the extension into the source tree; ``python build_ffi.py --stub`` prints the typing stub
``nervix_ffi/_ffi.pyi``. This module must not know what any function does.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
HEADERS = (ROOT / "include" / "nervix_client.h", ROOT / "include" / "nervix_client_ext.h")
MODULE = "nervix_ffi._ffi"

#: Functions that every library of the interface has; any other name is an extension and may be absent.
REQUIRED_PREFIX = "nx_"

#: The stable ABI that the extension is compiled for, unless the interpreter has none (free-threaded builds).
LIMITED_API = "0x030A0000"

ARROW = """
struct ArrowSchema {
  const char *format;
  const char *name;
  const char *metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema **children;
  struct ArrowSchema *dictionary;
  void (*release)(struct ArrowSchema *);
  void *private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void **buffers;
  struct ArrowArray **children;
  struct ArrowArray *dictionary;
  void (*release)(struct ArrowArray *);
  void *private_data;
};
"""

#: What the extension offers besides the functions of the headers.
LOADER_DECLARATIONS = """
const char *nervix_library_open(const char *path);
const char *nervix_library_missing(void);
bool nervix_library_has(const char *name);
const char *nervix_library_path(void);
struct ArrowSchema *nervix_arrow_schema_new(void);
struct ArrowArray *nervix_arrow_array_new(void);
void nervix_arrow_schema_free(struct ArrowSchema *schema);
void nervix_arrow_array_free(struct ArrowArray *array);
void *nervix_arrow_schema_destructor(void);
void *nervix_arrow_array_destructor(void);
uint64_t nervix_process(void);
void nervix_forked(void);
void nervix_drop(void *release, uint64_t process, void *object);
void nervix_drop_place(void *release, uint64_t process, void *place);
void *nervix_take(void *place);
"""

LOADER = r"""
static struct {
  const char *name;
  void **slot;
} nervix_functions[] = {
@SLOTS@
};

#define NERVIX_FUNCTION_COUNT (sizeof nervix_functions / sizeof nervix_functions[0])

/* NULL, or why the file cannot be opened. A library that was opened is never closed: its threads may be running. */
static const char *nervix_library_open(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  size_t index;
  if (library == NULL) {
    return dlerror();
  }
  for (index = 0; index < NERVIX_FUNCTION_COUNT; index++) {
    *nervix_functions[index].slot = dlsym(library, nervix_functions[index].name);
  }
  return NULL;
}

/* NULL, or the first function that every library must have and this one has not. */
static const char *nervix_library_missing(void) {
  size_t index;
  for (index = 0; index < NERVIX_FUNCTION_COUNT; index++) {
    if (*nervix_functions[index].slot == NULL &&
        strncmp(nervix_functions[index].name, "@PREFIX@", sizeof "@PREFIX@" - 1) == 0) {
      return nervix_functions[index].name;
    }
  }
  return NULL;
}

static bool nervix_library_has(const char *name) {
  size_t index;
  for (index = 0; index < NERVIX_FUNCTION_COUNT; index++) {
    if (strcmp(nervix_functions[index].name, name) == 0) {
      return *nervix_functions[index].slot != NULL;
    }
  }
  return false;
}

/* The file that the system really took the first function from. */
static const char *nervix_library_path(void) {
  Dl_info info;
  size_t index;
  for (index = 0; index < NERVIX_FUNCTION_COUNT; index++) {
    if (*nervix_functions[index].slot != NULL && dladdr(*nervix_functions[index].slot, &info) != 0) {
      return info.dli_fname;
    }
  }
  return NULL;
}

static struct ArrowSchema *nervix_arrow_schema_new(void) {
  return (struct ArrowSchema *)calloc(1, sizeof(struct ArrowSchema));
}

static struct ArrowArray *nervix_arrow_array_new(void) {
  return (struct ArrowArray *)calloc(1, sizeof(struct ArrowArray));
}

static void nervix_arrow_schema_free(struct ArrowSchema *schema) {
  if (schema != NULL && schema->release != NULL) {
    schema->release(schema);
  }
  free(schema);
}

static void nervix_arrow_array_free(struct ArrowArray *array) {
  if (array != NULL && array->release != NULL) {
    array->release(array);
  }
  free(array);
}

/* A capsule that nobody consumed releases what it holds; a consumer leaves the release callback NULL. */
static void nervix_schema_capsule_end(PyObject *capsule) {
  nervix_arrow_schema_free((struct ArrowSchema *)PyCapsule_GetPointer(capsule, "arrow_schema"));
}

static void nervix_array_capsule_end(PyObject *capsule) {
  nervix_arrow_array_free((struct ArrowArray *)PyCapsule_GetPointer(capsule, "arrow_array"));
}

static void *nervix_arrow_schema_destructor(void) {
  return (void *)nervix_schema_capsule_end;
}

static void *nervix_arrow_array_destructor(void) {
  return (void *)nervix_array_capsule_end;
}

/* How many forks lie between this process and the first one: what an older process made is not this one's to release. */
static uint64_t nervix_forks;

static uint64_t nervix_process(void) {
  return nervix_forks;
}

static void nervix_forked(void) {
  nervix_forks++;
}

static void nervix_drop(void *release, uint64_t process, void *object) {
  if (object != NULL && process == nervix_forks) {
    ((void (*)(void *))release)(object);
  }
}

/* What a place holds, which is the caller's from then on. */
static void *nervix_take(void *place) {
  void *object = *(void **)place;
  *(void **)place = NULL;
  return object;
}

static void nervix_drop_place(void *release, uint64_t process, void *place) {
  nervix_drop(release, process, nervix_take(place));
}
"""


@dataclass(frozen=True)
class Function:
    """A function that a header declares: its name, its return type and its parameters as written."""

    name: str
    returns: str
    parameters: tuple[str, ...]

    @property
    def prototype(self) -> str:
        """The declaration in C."""
        space = "" if self.returns.endswith("*") else " "
        return f"{self.returns}{space}{self.name}({', '.join(self.parameters) or 'void'});"


@dataclass
class Declarations:
    """What the headers declare, in their order."""

    opaque: list[str] = field(default_factory=list)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)


class HeaderError(ValueError):
    """A header holds a declaration that this builder does not understand."""


def _statements(text: str) -> Iterable[str]:
    """Each declaration of a header, on one line, without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    text = re.sub(r"^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus\b.*?^[ \t]*#[ \t]*endif\b[^\n]*$", "", text, flags=re.S | re.M)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    depth, start = 0, 0
    for index, character in enumerate(text):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == ";" and depth == 0:
            yield " ".join(text[start:index].split())
            start = index + 1
    rest = text[start:].strip()
    if rest:
        raise HeaderError(f"the header ends inside a declaration: {rest[:60]!r}")


def _enumerators(body: str, name: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in body.split(","))):
        match = re.fullmatch(r"(\w+) ?= ?(0x[0-9A-Fa-f]+|\d+)", item)
        if match is None:
            raise HeaderError(f"enum {name}: {item!r} has no literal value")
        values[match[1]] = int(match[2], 0)
    return values


def parse_headers(texts: Sequence[str]) -> Declarations:
    """Reads header texts. Raises HeaderError for a declaration that is none of those the headers are made of."""
    found = Declarations()
    for text in texts:
        for statement in _statements(text):
            if match := re.fullmatch(r"typedef struct (\w+) (\w+)", statement):
                if match[1] != match[2]:
                    raise HeaderError(f"struct {match[1]} has another name as a type: {match[2]}")
                found.opaque.append(match[1])
            elif match := re.fullmatch(r"typedef enum (\w+) \{(.*)\} ?(\w+)", statement):
                if match[1] != match[3]:
                    raise HeaderError(f"enum {match[1]} has another name as a type: {match[3]}")
                found.enums[match[1]] = _enumerators(match[2], match[1])
            elif re.fullmatch(r"struct Arrow(Schema|Array)", statement):
                continue  # Defined by the Arrow C data interface, declared in ARROW.
            elif match := re.fullmatch(r"((?:const )?(?:struct )?\w+(?: ?\*+)? ?)\b(\w+) ?\(([^()]*)\)", statement):
                parameters = tuple(part.strip() for part in match[3].split(","))
                if match[2] in found.functions:
                    raise HeaderError(f"{match[2]} is declared twice")
                found.functions[match[2]] = Function(match[2], match[1].strip(), () if parameters == ("void",) else parameters)
            else:
                raise HeaderError(f"not understood: {statement!r}")
    return found


def read_headers() -> Declarations:
    """The declarations of the headers in ``include/``."""
    return parse_headers([header.read_text(encoding="utf-8") for header in HEADERS])


def declarations_text(found: Declarations) -> str:
    """The declarations for cffi."""
    lines = [f"typedef struct {name} {name};" for name in found.opaque]
    for name, values in found.enums.items():
        body = ", ".join(f"{constant} = {value}" for constant, value in values.items())
        lines.append(f"typedef enum {name} {{ {body} }} {name};")
    lines.append(ARROW)
    lines += [function.prototype for function in found.functions.values()]
    lines.append(LOADER_DECLARATIONS)
    return "\n".join(lines)


def source_text(found: Declarations) -> str:
    """The C source that goes before what cffi generates."""
    includes = "\n".join(f'#include "{header.name}"' for header in HEADERS)
    # The header's own prototypes type the slots, so a slot cannot differ from what the header says.
    table = "\n".join(f"  __typeof__({name}) *{name};" for name in found.functions)
    slots = "\n".join(f'  {{"{name}", (void **)&nervix_table.{name}}},' for name in found.functions)
    macros = "\n".join(f"#define {name} (nervix_table.{name})" for name in found.functions)
    return "\n".join(
        [
            "#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>",
            f"#ifndef ARROW_C_DATA_INTERFACE\n#define ARROW_C_DATA_INTERFACE\n#include <stdint.h>\n{ARROW}\n#endif",
            includes,
            f"static struct {{\n{table}\n}} nervix_table;",
            LOADER.replace("@SLOTS@", slots).replace("@PREFIX@", REQUIRED_PREFIX),
            "/* From here on each function is called through its slot. */",
            macros,
        ]
    )


def uses_limited_api() -> bool:
    """Whether this interpreter offers the stable ABI to extensions."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


def compile_arguments() -> dict[str, list[object]]:
    """Arguments of the C compiler and linker, as setuptools' Extension takes them."""
    defines: list[object] = [("_GNU_SOURCE", "1")]
    if uses_limited_api():
        defines.append(("Py_LIMITED_API", LIMITED_API))
    return {
        "include_dirs": [str(ROOT / "include")],
        "define_macros": defines,
        "libraries": ["dl"] if sys.platform.startswith("linux") else [],
    }


def make_builder() -> FFI:
    """The cffi builder of the extension, ready to emit its C source or to compile it."""
    found = read_headers()
    builder = FFI()
    builder.cdef(declarations_text(found))
    builder.set_source(MODULE, source_text(found), py_limited_api=uses_limited_api(), **compile_arguments())
    return builder


_STUB_NUMBERS = {"size_t", "uint64_t", "uint32_t", "uint16_t", "int32_t", "int64_t"}


def _stub_type(c_type: str, enums: dict[str, dict[str, int]]) -> str:
    if c_type == "void":
        return "None"
    if c_type == "bool":
        return "bool"
    if c_type in _STUB_NUMBERS or c_type in enums:
        return "int"
    if "*" in c_type:
        return "CData"
    raise HeaderError(f"no Python type for {c_type!r}")


def stub_text(found: Declarations) -> str:
    """The typing stub of the extension."""
    lines = [
        "# Generated by `python build_ffi.py --stub` from the headers in include/. Do not edit.",
        "from collections.abc import Callable",
        "from typing import Any",
        "",
        "class CData:",
        "    # What an item or a member is depends on the C type; the modules that read one annotate it.",
        "    def __getitem__(self, index: int) -> Any: ...",
        "    def __setitem__(self, index: int, value: object) -> None: ...",
        "    def __getattr__(self, name: str) -> Any: ...",
        "    def __bool__(self) -> bool: ...",
        "    def __int__(self) -> int: ...",
        "    def __len__(self) -> int: ...",
        "    def __add__(self, offset: int) -> CData: ...",
        "    def __enter__(self) -> CData: ...",
        "    def __exit__(self, *_: object) -> None: ...",
        "",
        "class CBuffer:",
        "    def __buffer__(self, flags: int, /) -> memoryview: ...",
        "    def __getitem__(self, index: slice) -> bytes: ...",
        "",
        "class FFI:",
        "    NULL: CData",
        "    def addressof(self, library: Lib, name: str) -> CData: ...",
        "    def new(self, cdecl: str, init: object = ...) -> CData: ...",
        "    def cast(self, cdecl: str, source: object) -> CData: ...",
        "    def from_buffer(self, cdecl: str, data: object, require_writable: bool = ...) -> CData: ...",
        "    def buffer(self, cdata: CData, size: int = ...) -> CBuffer: ...",
        "    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...",
        "    def unpack(self, cdata: CData, length: int) -> bytes: ...",
        "    def gc(self, cdata: CData, destructor: Callable[[CData], object] | None, size: int = ...) -> CData: ...",
        "    def release(self, cdata: CData) -> None: ...",
        "",
        "class Lib:",
    ]
    for values in found.enums.values():
        lines += [f"    {constant}: int" for constant in values]
    loader = parse_headers([LOADER_DECLARATIONS])
    for function in [*found.functions.values(), *loader.functions.values()]:
        parameters = ["self"]
        for parameter in function.parameters:
            match = re.fullmatch(r"(.*[ *])(\w+)", parameter)
            if match is None:
                raise HeaderError(f"{function.name}: parameter {parameter!r} has no name")
            kind = _stub_type(match[1].strip(), found.enums)
            bytes_too = match[1].strip() in ("const char *", "const uint8_t *")
            parameters.append(f"{match[2]}: {'CData | bytes' if bytes_too else kind}")
        returns = _stub_type(function.returns, found.enums)
        lines.append(f"    def {function.name}({', '.join(parameters)}, /) -> {returns}: ...")
    lines += ["", "ffi: FFI", "lib: Lib", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Compiles the extension in place, or prints its stub."""
    if list(arguments) == ["--stub"]:
        sys.stdout.write(stub_text(read_headers()))
        return 0
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        built = Path(make_builder().compile(tmpdir=folder))
        print(shutil.copy2(built, ROOT / "nervix_ffi" / built.name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
