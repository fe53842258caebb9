"""Reads the session protocol's FlatBuffers schema and the value rules written beside its fields.

A rule stands in braces in a trailing comment of a field, ``count: ulong; // {nonzero}``, or of the
line that opens a table, ``table BackupCut { // {check}``. ``wire_types``, ``wire_codec`` and
``wire_tests`` turn what is read here into Rust; nothing here knows Rust.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INTEGERS = {"byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong"}
SCALARS = INTEGERS | {"bool", "float", "double"}
FIELD_RULE = re.compile(r"present|nonzero|nonempty|set|len=\d+|\d+\.\.\d+|asc")
TABLE_RULE = re.compile(r"check")


class SchemaError(Exception):
    """The schema holds something that the generators do not understand."""


@dataclass(frozen=True)
class Field:
    """One member of a table or struct; ``slot`` is its vtable offset (a union's is its type's)."""

    name: str
    type: str
    vector: bool
    optional: bool
    required: bool
    rules: tuple[str, ...]
    slot: int

    def has(self, rule: str) -> bool:
        """Whether the field carries this rule."""
        return rule in self.rules

    def parameter(self, prefix: str) -> int | None:
        """The number in a rule such as ``len=32``, or None without that rule."""
        for rule in self.rules:
            if rule.startswith(prefix):
                return int(rule[len(prefix) :])
        return None

    def range(self) -> tuple[int, int] | None:
        """The inclusive bounds of a rule such as ``1..100``, or None without one."""
        for rule in self.rules:
            if ".." in rule:
                low, high = rule.split("..")
                return int(low), int(high)
        return None


@dataclass(frozen=True)
class Record:
    """A table or an inline struct."""

    name: str
    fields: tuple[Field, ...]
    doc: tuple[str, ...]
    checked: bool


@dataclass(frozen=True)
class Choice:
    """An enum or a union: names in wire order (enum values from 0, union tags from 1)."""

    name: str
    members: tuple[str, ...]
    doc: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """Everything the schema files declare, in the order of the files and within them."""

    enums: dict[str, Choice]
    structs: dict[str, Record]
    unions: dict[str, Choice]
    tables: dict[str, Record]
    roots: dict[str, str]
    order: tuple[str, ...]

    def empty(self, table: str) -> bool:
        """Whether the table has no field, so that its presence is all it says."""
        return not self.tables[table].fields

    def reachable(self, name: str, *, through_vectors: bool = True) -> set[str]:
        """The names of all types that a value of type ``name`` can hold."""
        seen: set[str] = set()
        pending = [name]
        while pending:
            for inner in self.direct(pending.pop(), through_vectors=through_vectors):
                if inner not in seen:
                    seen.add(inner)
                    pending.append(inner)
        return seen

    def direct(self, name: str, *, through_vectors: bool = True) -> Iterator[str]:
        """The types that type ``name`` mentions itself."""
        if name in self.unions:
            yield from self.unions[name].members
        record = self.tables.get(name) or self.structs.get(name)
        if record:
            for field in record.fields:
                if through_vectors or not field.vector:
                    yield field.type


DECLARATION = re.compile(
    r"(?P<doc>(?:^[ \t]*///[^\n]*\n)*)"
    r"^(?P<kind>table|struct|enum|union)\s+(?P<name>\w+)\s*(?::\s*\w+\s*)?\{"
    r"(?:\}|(?P<opening>[ \t]*//[^\n]*)?\n(?P<body>.*?)^\})",
    re.M | re.S,
)
FIELD = re.compile(
    r"^\s*(?P<name>\w+)\s*:\s*(?P<open>\[)?\s*(?P<type>\w+)\s*\]?\s*"
    r"(?P<default>=\s*null)?\s*(?P<required>\(\s*required\s*\))?\s*;\s*(?://(?P<comment>.*))?$"
)


def read(directory: Path) -> Schema:
    """The schema of all .fbs files in ``directory``. SchemaError when one cannot be understood."""
    schema = Schema({}, {}, {}, {}, {}, ())
    bodies: list[tuple[Path, re.Match[str]]] = []
    for path in sorted(directory.glob("*.fbs")):
        text = path.read_text(encoding="utf-8")
        bodies += [(path, match) for match in DECLARATION.finditer(text)]
        root = re.search(r"^root_type\s+(\w+)\s*;", text, re.M)
        identifier = re.search(r'^file_identifier\s+"(....)"\s*;', text, re.M)
        if root and identifier:
            schema.roots[root.group(1)] = identifier.group(1)
    unions = {match["name"] for _, match in bodies if match["kind"] == "union"}
    for path, match in bodies:
        name, kind = match["name"], match["kind"]
        doc = tuple(line.strip()[3:].strip() for line in match["doc"].splitlines())
        if kind in ("enum", "union"):
            plain = re.sub(r"//[^\n]*", "", match["body"] or "")
            members = tuple(member.strip() for member in plain.split(",") if member.strip())
            (schema.enums if kind == "enum" else schema.unions)[name] = Choice(name, members, doc)
        else:
            fields = tuple(_fields(path, name, match["body"] or "", unions))
            rules = _rules(path, name, match["opening"] or "", TABLE_RULE)
            record = Record(name, fields, doc, "check" in rules)
            (schema.tables if kind == "table" else schema.structs)[name] = record
    order = tuple(match["name"] for _, match in bodies)
    return Schema(schema.enums, schema.structs, schema.unions, schema.tables, schema.roots, order)


def _fields(path: Path, record: str, body: str, unions: set[str]) -> Iterator[Field]:
    slot = 4
    for line in body.splitlines():
        if not line.strip() or line.strip().startswith("//"):
            continue
        match = FIELD.match(line)
        if not match:
            raise SchemaError(f"{path}: {record}: cannot read the field {line.strip()!r}")
        yield Field(
            match["name"],
            match["type"],
            match["open"] is not None,
            match["default"] is not None,
            match["required"] is not None,
            _rules(path, f"{record}.{match['name']}", match["comment"] or "", FIELD_RULE),
            slot,
        )
        # A union occupies two slots: its type, then its value.
        slot += 4 if match["type"] in unions else 2


def _rules(path: Path, place: str, comment: str, known: re.Pattern[str]) -> tuple[str, ...]:
    rules = tuple(re.findall(r"\{([^}]*)\}", comment))
    for rule in rules:
        if not known.fullmatch(rule):
            raise SchemaError(f"{path}: {place}: unknown rule {{{rule}}}")
    return rules


def snake(name: str) -> str:
    """``DomainInfo`` as ``domain_info``, the way flatc spells it."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
