"""Write tests/LEDGER.md: every rule of the client manual, with the tests that name it or the reason it has none.

    python tools/ledger.py            rewrite the page
    python tools/ledger.py --check    exit 1 when the page is stale, or a rule has neither a test nor a reason

The rules are in tools/rules.json. A Python test names its rules with `@pytest.mark.rule("F-3", "F-4")` on a function or
class, or in a module's `pytestmark`; a Rust test with a comment `// rule: F-3, F-4` above it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "tools" / "rules.json"
PAGE = ROOT / "tests" / "LEDGER.md"

HEAD = """\
# The rule ledger

Every rule of the client manual, in our words, with the tests that exercise it or the reason it has none.
Made by `python tools/ledger.py`; do not edit.
"""

_RUST_MARK = re.compile(r"^\s*//\s*rule:\s*(.+?)\s*$")
_RUST_FN = re.compile(r"^\s*(?:pub\s+)?(?:async\s+)?fn\s+(\w+)")


class Rule(NamedTuple):
    """One rule: its identity, what it says in short, and why it is not followed (empty when it must have a test)."""

    id: str
    about: str
    why: str
    section: str


class Found(NamedTuple):
    """One test and a rule it names."""

    rule: str
    test: str


def load_rules(path: Path = RULES) -> list[Rule]:
    """Read the rules in the order of the manual."""
    return [
        Rule(rule["id"], rule["about"], rule.get("why", ""), section["section"])
        for section in json.loads(path.read_text(encoding="utf-8"))
        for rule in section["rules"]
    ]


def _marked(node: ast.expr) -> Iterator[str]:
    """The rules that an expression names, when it is `pytest.mark.rule(...)` or a list of marks."""
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _marked(element)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "rule"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    ):
        for argument in node.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                raise SystemExit(f"ledger: a rule mark on line {node.lineno} names something that is not a literal")
            yield argument.value


def python_tests(path: Path, name: str) -> Iterator[Found]:
    """The marked tests of one Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    everywhere = [
        rule
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        for rule in _marked(node.value)
    ]

    def walk(body: list[ast.stmt], inherited: list[str], prefix: str) -> Iterator[Found]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                own = [rule for mark in node.decorator_list for rule in _marked(mark)]
                yield from walk(node.body, inherited + own, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                own = [rule for mark in node.decorator_list for rule in _marked(mark)]
                for rule in dict.fromkeys(inherited + own):
                    yield Found(rule, f"{name}::{prefix}{node.name}")

    yield from walk(tree.body, everywhere, "")


def rust_tests(path: Path, name: str) -> Iterator[Found]:
    """The marked tests of one Rust file."""
    waiting: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if mark := _RUST_MARK.match(line):
            waiting += [rule for rule in re.split(r"[,\s]+", mark.group(1)) if rule]
        elif waiting and (function := _RUST_FN.match(line)):
            for rule in dict.fromkeys(waiting):
                yield Found(rule, f"{name}::{function.group(1)}")
            waiting = []


def collect(root: Path = ROOT) -> dict[str, list[str]]:
    """The tests of the repository by the rule they name."""
    tests: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        for found in python_tests(path, path.relative_to(root).as_posix()):
            tests.setdefault(found.rule, []).append(found.test)
    for path in sorted((root / "core").rglob("*.rs")):
        relative = path.relative_to(root)
        if relative.parts[1] != "target":
            for found in rust_tests(path, relative.as_posix()):
                tests.setdefault(found.rule, []).append(found.test)
    return tests


def page(rules: list[Rule], tests: dict[str, list[str]]) -> str:
    """The whole ledger as Markdown."""
    tested = sum(1 for rule in rules if tests.get(rule.id))
    lines = [HEAD, f"{len(rules)} rules: {tested} with tests, {len(rules) - tested} without."]
    section = None
    for rule in rules:
        if rule.section != section:
            section = rule.section
            lines += ["", f"## {section}", ""]
        lines.append(f"* **{rule.id}** {rule.about}")
        named = tests.get(rule.id, [])
        if not named:
            lines.append(f"  * no test: {rule.why or 'MISSING'}")
        elif rule.why:
            # What is tested then is that it stays so.
            lines.append(f"  * {rule.why}")
        lines += [f"  * `{test}`" for test in named]
    return "\n".join(lines) + "\n"


def problems(rules: list[Rule], tests: dict[str, list[str]]) -> list[str]:
    """What is wrong with the marks themselves: unknown rules, and rules with neither a test nor a reason."""
    known = {rule.id for rule in rules}
    found = [
        f"{test} names {rule}, which is no rule" for rule, named in sorted(tests.items()) if rule not in known for test in named
    ]
    found += [f"{rule.id} has neither a test nor a reason" for rule in rules if not rule.why and not tests.get(rule.id)]
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write or check tests/LEDGER.md.")
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    arguments = parser.parse_args()
    rules, tests = load_rules(), collect()
    text = page(rules, tests)
    wrong = problems(rules, tests)
    for line in wrong:
        print(f"ledger: {line}", file=sys.stderr)
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("ledger: tests/LEDGER.md is stale; run python tools/ledger.py", file=sys.stderr)
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
