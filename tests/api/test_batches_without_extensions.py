"""Batches in and out are the same through a library that has none of the extensions."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import pickle, sys
    import nervix_ffi, pyarrow as pa
    from nervix_ffi import *
    from nervix_ffi.testing import LoopbackNode
    from nervix_ffi._pyarrow import arrow_schema
    GRAPH = '''
    CREATE UNPACED DOMAIN lab; USE lab;
    CREATE SCHEMA wide (id U32, small I8, large U64, f32v F32, f64v F64, flag BOOL, text STRING OPTIONAL, raw BYTES OPTIONAL,
      at DATETIME, tags VEC<STRING>, grid ARRAY<I16, 2, 2> OPTIONAL, spans VEC<ARRAY<DATETIME, 2>> OPTIONAL, flags VEC<BOOL>);
    CREATE RELAY wides SCHEMA wide UNBRANCHED;
    CREATE INGESTOR wide_in FROM CLIENT SCHEMA wide MODE ACK PARALLEL MAX 8 ACK TIMEOUT 30s RETRY POLICY BACKOFF 10ms MAX 1s
      ON QUIESCE SUSPEND TIMESTAMP NOW TO wides INHERIT ALL FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
    CREATE EMITTER wide_out FROM wides TO CLIENT SCHEMA wide MODE ACK PARALLEL MAX 8 ACK TIMEOUT 30s
      RETRY POLICY BACKOFF 10ms MAX 1s INHERIT ALL BATCH MAX MESSAGES 64 MAX SIZE 1MiB FLUSH IMMEDIATE
      ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
    START;
    '''
    FIELDS = ("id U32, small I8, large U64, f32v F32, f64v F64, flag BOOL, text STRING OPTIONAL, raw BYTES OPTIONAL, at DATETIME, "
              "tags VEC<STRING>, grid ARRAY<I16, 2, 2> OPTIONAL, spans VEC<ARRAY<DATETIME, 2>> OPTIONAL, flags VEC<BOOL>")
    ROWS = [
        dict(id=1, small=-128, large=2**64 - 1, f32v=1.5, f64v=-0.0, flag=True, text=None, raw=b"\\x00\\xff", at=-1,
             tags=["h\\u00e9", ""], grid=[[1, -2], [3, 4]], spans=None, flags=[True, False]),
        dict(id=2, small=127, large=0, f32v=-0.0, f64v=5e-324, flag=False, text="a\\0b", raw=None, at=2**63 - 1, tags=[],
             grid=None, spans=[[1, 2], [3, 4]], flags=[]),
        dict(id=3, small=0, large=1, f32v=0.0, f64v=0.1, flag=True, text="", raw=b"", at=0, tags=["x"],
             grid=[[5, 6], [7, 8]], spans=[], flags=[False]),
    ]
    extended = "arrow_batches" in library().extensions
    assert extended == (sys.argv[2] == "full")
    seen = []
    with LoopbackNode(load=GRAPH) as node, connect(node.uri, domain="lab", timeout=30) as session:
        producer = session.open_producer("wide_in", FIELDS, timeout=30)
        consumer = session.open_consumer("wide_out", FIELDS, timeout=30)
        arrow = pa.RecordBatch.from_pylist(ROWS, schema=arrow_schema(producer.schema.fields))
        sliced = pa.table(pa.concat_batches([arrow, arrow, arrow])).slice(2, 3)
        other = {"text": pa.large_string(), "tags": pa.large_list(pa.large_string())}
        fields = [pa.field(field.name, other.get(field.name, field.type)) for field in arrow.schema]
        loose = pa.RecordBatch.from_pylist(ROWS, schema=pa.schema(fields))
        for data, rows in ((ROWS, ROWS), (arrow, ROWS), (loose, ROWS), (sliced, [ROWS[2], ROWS[0], ROWS[1]]), (arrow.slice(1, 0), [])):
            batch = producer.batch(data)
            seen.append(bytes(batch.ipc))
            assert pa.ipc.open_stream(batch.ipc).read_all().to_batches() == ([batch.to_arrow()] if rows else []) or not rows
            assert batch.rows() == rows, batch.rows()
            whole = batch.to_arrow()
            whole.validate(full=True)
            assert whole.schema.equals(arrow.schema, check_metadata=True)
            assert whole.equals(data) if data is arrow else True
            assert pa.record_batch(batch).equals(whole)
            seen.append([whole.to_pydict(), [batch.column(name).states.tolist() for name in batch.schema.names]])
            if rows:
                submission = producer.submit(data, timeout=30)
                with consumer.next(timeout=30) as delivery:
                    assert delivery.rows() == rows and delivery.to_arrow().equals(whole)
                    assert delivery.to_arrow().schema.equals(arrow.schema, check_metadata=True)
                    delivery.ack(timeout=30)
                assert submission.result(timeout=30).completed
        column = producer.batch(ROWS).column("spans")
        assert column.level_offsets(0).tolist() == [0, 0, 2, 2] and column.values.tolist() == [1, 2, 3, 4]
        assert column[1] == [[1, 2], [3, 4]] and column.to_list() == [None, [[1, 2], [3, 4]], []]
        for level in (1, 2):
            try:
                column.level_offsets(level)
            except TypeMismatchError as failure:
                assert "no VEC" in str(failure)
        tags = producer.batch(ROWS).column("tags")
        assert tags.data.tobytes() == "h\\u00e9x".encode() and tags.offsets.tolist() == [0, 3, 3, 4]
    with open(sys.argv[1], "wb") as result:
        pickle.dump(seen, result)
"""


def test_batches_are_the_same_without_extensions(plain_library: Path, tmp_path: Path) -> None:
    results = []
    for name, environment in (("full", {}), ("plain", {"NERVIX_CLIENT_LIBRARY": str(plain_library)})):
        path, result = tmp_path / f"{name}.py", tmp_path / name
        path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path), str(result), name],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        results.append(result.read_bytes())
    assert results[0] == results[1]
