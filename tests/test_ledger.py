"""The ledger page is current, and its list of rules is the manual's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
MANUAL = ROOT.parent / "shared" / "spec" / "manual.txt"


def ledger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "tools" / "ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def manual_rules(text: str) -> set[str]:
    """The identities of every rule that the manual's text holds."""
    found: set[str] = set()
    section = ""
    promises = machines = musts = 0
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z ,']+", line) and not line.endswith("."):
            section = line
        if rule := re.match(r"• ([A-Z]-\d+a?)\. ", line):
            name = rule.group(1)
            if section == "Emitter Consumers":
                name = "EC" + name[1:]
            elif section == "Restore Streams":
                name = "RP" + name[1:]
            found.add(name)
        elif section == "Restore Streams" and "decode the required start_version in each DomainInfo" in line:
            # A demand on every client, among those on one that restores.
            found.add("RP-4a")
        elif section == "What A Client Must Not Promise" and line.startswith("• "):
            promises += 1
            found.add(f"N-{promises}")
        elif section == "Required State Machines" and re.match(r"A (request|session|transaction|subscription|producer)\b", line):
            machines += 1
            found.add(f"SM-{machines}")
        elif section == "Conformance Language":
            # The paragraph that defines the key words is not itself a demand.
            if "MUST NOT send a request" in line or "MUST be generated from" in line:
                musts += 1
                found.add(f"CF-{musts}")
        elif section == "Subscription Clock Lifetime" and line and line != section:
            found.add("CL-1")
        elif section == "Commands And Execution Identity" and line.startswith("An unknown outcome"):
            found.add("E-8a")
    return found


def test_the_page_is_current_and_every_rule_has_a_test_or_a_reason() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "ledger.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not MANUAL.exists(), reason="the manual's text is not beside this repository")
def test_the_list_of_rules_is_the_manuals() -> None:
    names = [rule.id for rule in ledger().load_rules()]
    assert len(names) == len(set(names))
    assert set(names) == manual_rules(MANUAL.read_text(encoding="utf-8"))


def test_marks_are_found_in_both_languages(tmp_path: Path) -> None:
    module = ledger()
    python = tmp_path / "test_x.py"
    python.write_text(
        "import pytest\npytestmark = [pytest.mark.rule('F-1')]\n"
        "@pytest.mark.rule('F-2', 'F-3')\ndef test_a(): ...\n"
        "class TestB:\n    @pytest.mark.rule('F-4')\n    def test_c(self): ...\n"
    )
    assert [tuple(found) for found in module.python_tests(python, "t")] == [
        ("F-1", "t::test_a"),
        ("F-2", "t::test_a"),
        ("F-3", "t::test_a"),
        ("F-1", "t::TestB::test_c"),
        ("F-4", "t::TestB::test_c"),
    ]
    rust = tmp_path / "x.rs"
    rust.write_text("    // rule: C-1, C-2\n    #[test]\n    fn counts() {}\n    #[test]\n    fn other() {}\n")
    assert [tuple(found) for found in module.rust_tests(rust, "r")] == [("C-1", "r::counts"), ("C-2", "r::counts")]
