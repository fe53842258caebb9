"""The pytest plugin offers a node and loads nothing until it is asked for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_fixture_is_a_running_node(tmp_path: Path, root: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import sys\n"
        "def test_lazy():\n"
        "    assert 'nervix_ffi' not in sys.modules\n"
        "def test_node(loopback_node):\n"
        "    import nervix_ffi\n"
        "    with nervix_ffi.connect(loopback_node.uri, timeout=30) as session:\n"
        "        assert session.execute('LIST DOMAINS;').completed\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_nervix", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
