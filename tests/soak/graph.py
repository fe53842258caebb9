"""The graph that the soak runs on."""

from __future__ import annotations

DOMAIN = "lab"
#: A paced domain, whose clock is followed.
BEAT = "beat"
INGESTOR = "held"
EMITTER = "out"
RELAY = "readings"
FIELDS = "id U64, note STRING OPTIONAL"

#: ``held`` leads to ``out``, whose consumers decide over its batches. What is not settled comes again after 3 s.
GRAPH = f"""
CREATE UNPACED DOMAIN {DOMAIN};
USE {DOMAIN};
CREATE SCHEMA row ({FIELDS});
CREATE RELAY watched SCHEMA row UNBRANCHED;
CREATE INGESTOR {INGESTOR} FROM CLIENT SCHEMA row MODE ACK PARALLEL MAX 64 ACK TIMEOUT 12s
  RETRY POLICY BACKOFF 10ms MAX 100ms ON QUIESCE SUSPEND TIMESTAMP NOW
  TO watched INHERIT ALL FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
CREATE EMITTER {EMITTER} FROM watched TO CLIENT SCHEMA row MODE ACK PARALLEL MAX 64 ACK TIMEOUT 3s
  RETRY POLICY BACKOFF 10ms MAX 100ms INHERIT ALL
  BATCH MAX MESSAGES 16 MAX SIZE 64KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
CREATE SCHEMA reading (id U32, value I64 OPTIONAL, note STRING);
CREATE RELAY {RELAY} SCHEMA reading UNBRANCHED;
START;
CREATE PACED DOMAIN {BEAT} WITH PERIOD 50ms SKEW 10ms;
USE {BEAT};
START;
"""


def note(row: int) -> str | None:
    """What the row with this id says."""
    return None if row % 5 == 0 else f"row {row}"
