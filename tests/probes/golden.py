"""Makes the probe's expected reports from a scenario's statements and rows, without the library.

    python tests/probes/golden.py            write many.json.gz, and the report of every scenario of our own

Owns its own reading of the scenarios: nothing here imports the package, so a report that agrees with it agrees with a second
reader.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SCENARIOS = Path(__file__).resolve().parent / "scenarios"

INTEGERS = {"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}


class Type(NamedTuple):
    """A field's type: a scalar's name, or LIST or FIXED_LIST with its element."""

    name: str
    element: Type | None = None
    length: int = 0


class Field(NamedTuple):
    name: str
    type: Type
    nullable: bool
    sensitive: bool

    def line(self, prefix: str) -> str:
        nullable = "nullable" if self.nullable else "required"
        sensitive = "sensitive" if self.sensitive else "public"
        return f"{prefix} {self.name} {self.type.name} {nullable} {sensitive}"


class Scenario(NamedTuple):
    """What a scenario's statements declare about the one relay that its probe reads."""

    relay: str
    fields: list[Field]
    branch: str | None
    key: list[Field]


def parse_type(text: str) -> Type:
    """`VEC<…>` and `ARRAY<…, n, m>` (outermost length first) around a scalar."""
    text = text.strip()
    if text.startswith("VEC<"):
        return Type("LIST", parse_type(text[4:-1]))
    if text.startswith("ARRAY<"):
        parts = split_outside(text[6:-1])
        inner = parse_type(parts[0])
        for length in reversed(parts[1:]):
            inner = Type("FIXED_LIST", inner, int(length))
        return inner
    return Type(text)


def split_outside(text: str) -> list[str]:
    """Split at the commas that are outside angle brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def parse_fields(text: str) -> list[Field]:
    fields = []
    for part in split_outside(text):
        name, rest = part.strip().split(None, 1)
        nullable = bool(re.search(r"\bOPTIONAL\b", rest))
        sensitive = bool(re.search(r"\bSENSITIVE\b", rest))
        fields.append(Field(name, parse_type(re.sub(r"\b(OPTIONAL|SENSITIVE)\b", "", rest)), nullable, sensitive))
    return fields


def read_scenario(name: str) -> Scenario:
    """Read one scenario's `.nspl`."""
    text = re.sub(r"//[^\n]*", "", (SCENARIOS / f"{name}.nspl").read_text(encoding="utf-8"))
    schemas = {m[1]: parse_fields(m[2]) for m in re.finditer(r"CREATE SCHEMA (\w+) \((.*?)\);", text, re.S)}
    branches = dict(re.findall(r"CREATE BRANCH (\w+) SCHEMA (\w+)", text))
    relay = re.search(r"CREATE RELAY (\w+) SCHEMA (\w+) (?:BRANCHED BY (\w+)|UNBRANCHED)", text)
    assert relay is not None, f"{name} declares no relay"
    return Scenario(relay[1], schemas[relay[2]], relay[3], schemas[branches[relay[3]]] if relay[3] else [])


def read_rows(name: str) -> list[dict[str, Any]]:
    """Read one scenario's rows."""
    packed = SCENARIOS / f"{name}.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (SCENARIOS / f"{name}.json").read_bytes()
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def batches(name: str) -> list[list[dict[str, Any]]]:
    """A scenario's rows as they are published: one batch a row, or for `many` one a branch."""
    rows = read_rows(name)
    if name != "many":
        return [[row] for row in rows]
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["tenant"], []).append(row)
    return list(grouped.values())


def cell(kind: Type, value: Any) -> str:
    """One value as the probe prints it."""
    if kind.element is not None:
        return "[" + ",".join(cell(kind.element, element) for element in value) + "]"
    if kind.name in INTEGERS:
        return f"{kind.name.lower()}:{value}"
    if kind.name in ("F32", "F64"):
        code, digits = (">f", 8) if kind.name == "F32" else (">d", 16)
        bits = value["bits"] if isinstance(value, dict) else struct.pack(code, value).hex()
        assert len(bits) == digits
        return f"{kind.name.lower()}:{bits}"
    if kind.name == "BOOL":
        return f"bool:{'true' if value else 'false'}"
    if kind.name == "STRING":
        return f"str:{value.encode('utf-8').hex()}"
    if kind.name == "BYTES":
        return f"bytes:{value['hex']}"
    assert kind.name == "DATETIME", kind
    return f"datetime:{value}"


def cells(fields: list[Field], row: dict[str, Any]) -> str:
    def one(field: Field) -> str:
        if field.sensitive:
            return "redacted"
        value = row.get(field.name)
        return "null" if value is None else cell(field.type, value)

    return " ".join(f"{field.name}={one(field)}" for field in fields)


def report(name: str) -> str:
    """The whole report that the probe prints for a scenario."""
    scenario = read_scenario(name)
    lines = ["OPERATION completed", "ERROR failed diagnostics=1 span=12..12"]
    lines += [field.line("FIELD") for field in scenario.fields]
    if scenario.branch:
        lines.append(f"BRANCH {scenario.branch}")
        lines += [field.line("KEY") for field in scenario.key]
    lines.append("SUBSCRIBED")
    for batch in batches(name):
        lines += [f"ROW [{cells(scenario.key, row)}] {cells(scenario.fields, row)}" for row in batch]
    lines += ["CHECKS ok", "CLOSED completed", "PASS"]
    return "\n".join(lines) + "\n"


def many_rows() -> Iterator[dict[str, Any]]:
    """The rows of `many`: 40 branches of 250 rows, from arithmetic alone."""
    for branch in range(40):
        for index in range(250):
            number = branch * 250 + index
            value = math.ldexp(number - 5000, -(number % 64))
            yield {
                "id": number,
                "tenant": f"tenant-{branch * 7 % 40:02}",
                "at": (number * 1_000_003 - 5_000_000_000) * 997,
                "value": {"bits": struct.pack(">d", value).hex()},
                "count": None if number % 3 == 0 else (-1) ** number * number**4,
                "flag": number % 5 == 0,
                "text": "é世🚀"[: number % 4] + "x" * (number % 7),
                "raw": {"hex": bytes((number * step) % 256 for step in range(number % 6)).hex()},
            }


def pack(path: Path, text: str) -> None:
    """Write a compressed file whose bytes depend on the text alone."""
    path.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


def main() -> None:
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in many_rows())
    pack(SCENARIOS / "many.json.gz", f"[\n{rows}\n]\n")
    pack(SCENARIOS / "many.report.gz", report("many"))
    for name in ("keys", "lists"):
        (SCENARIOS / f"{name}.report").write_text(report(name), encoding="utf-8")


if __name__ == "__main__":
    main()
