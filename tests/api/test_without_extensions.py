"""A library of the interface that has none of the extensions serves all but what it cannot say."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.api.test_node import GRAPH, PLANTS


def test_rows_and_arrow_are_the_same_without_extensions_and_lists_say_what_they_need(plain_library: Path, tmp_path: Path) -> None:
    script = f"""
        import sys
        import nervix_ffi, pyarrow, pickle
        from nervix_ffi import *
        from nervix_ffi.testing import LoopbackNode
        extended = bool(library().extensions)
        with LoopbackNode(load={GRAPH!r}) as node, connect(node.uri, domain="garden", timeout=30) as session:
            outcome = session.execute("SHOW CREATE RELAY plants;")
            assert (outcome.origin is None, outcome.statements is None, outcome.already_existed is None) == (not extended,) * 3
            small, plants = session.subscribe("smalls", name="a"), session.subscribe("plants", name="b")
            node.publish("smalls", [{{"id": 1, "note": "h\\u00e9"}}, {{"id": 2, "note": ""}}], domain="garden")
            rows = small.next(timeout=30)
            batch = rows.to_arrow()
            batch.validate(full=True)
            read = [rows.rows(), pyarrow.record_batch(rows).to_pylist()]
            node.publish("plants", {PLANTS!r}, domain="garden")
            rows = plants.next(timeout=30)
            for call in (rows.rows, lambda: rows.column("tags"), rows.to_arrow, rows.__arrow_c_array__):
                try:
                    call()
                except UnsupportedError as failure:
                    assert not extended and "arrow extension" in str(failure), failure
                else:
                    assert extended
            scalars = [field.name for field in rows.schema.fields if not field.is_list]
            read += [[rows.column(name).to_list() for name in scalars], rows.key]
            from nervix_ffi._pyarrow import batch_of_columns
            alike = batch_of_columns([rows.column(name) for name in scalars])
            alike.validate(full=True)
            if extended:
                assert alike.equals(rows.to_arrow().select(scalars))
                assert alike.schema.equals(rows.to_arrow().select(scalars).schema.remove_metadata(), check_metadata=True)
            node.control("execute", domain="garden", statement="DROP RELAY smalls;")
            ended = small.next(timeout=30)
            assert (ended.reason is None, ended.message is None) == (not extended,) * 2
        pickle.dump((batch.schema.serialize().to_pybytes(), batch.to_pydict(), read), open(sys.argv[1], "wb"))
        """
    results = []
    for name, environment in (("full", {}), ("plain", {"NERVIX_CLIENT_LIBRARY": str(plain_library)})):
        path, result = tmp_path / f"{name}.py", tmp_path / name
        path.write_text(textwrap.dedent(script), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path), str(result)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        results.append(result.read_bytes())
    assert results[0] == results[1]
