"""What the tests of producers and consumers share: a graph, rows of it, and short ways to make the node misbehave."""

from __future__ import annotations

from typing import Any

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from .support import DOMAIN, PATIENCE
from .support import GRAPH as RELAYS

#: The fields of every endpoint of the graph.
FIELDS = "id U64, note STRING OPTIONAL"


def ingestor(name: str, relay: str, *, schema: str = "row", window: str = "PARALLEL MAX 64", tail: str = "") -> str:
    """The statement of a client ingestor."""
    return (
        f"CREATE INGESTOR {name} FROM CLIENT SCHEMA {schema} MODE ACK {window} ACK TIMEOUT 60s"
        " RETRY POLICY BACKOFF 10ms MAX 40ms ON QUIESCE SUSPEND TIMESTAMP NOW"
        f" TO {relay} INHERIT ALL {tail or 'FLUSH IMMEDIATE ON MESSAGE ERROR LOG'} ON GENERAL ERROR LOG;"
    )


def emitter(name: str, relay: str, *, schema: str = "row", window: str = "PARALLEL MAX 64", tail: str = "") -> str:
    """The statement of a client emitter, whose batches are those of the ingestor up to 16 rows."""
    return (
        f"CREATE EMITTER {name} FROM {relay} TO CLIENT SCHEMA {schema} MODE ACK {window} ACK TIMEOUT 20s"
        " RETRY POLICY BACKOFF 10ms MAX 40ms INHERIT ALL"
        f" {tail or 'BATCH MAX MESSAGES 16 MAX SIZE 64KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG'} ON GENERAL ERROR LOG;"
    )


#: ``quick`` leads nowhere, so that its batches complete at once; ``held`` leads to the emitter ``out``, which decides over them.
GRAPH = "\n".join(
    [
        "CREATE UNPACED DOMAIN lab;",
        "USE lab;",
        f"CREATE SCHEMA row ({FIELDS});",
        "CREATE RELAY quiet SCHEMA row UNBRANCHED;",
        "CREATE RELAY watched SCHEMA row UNBRANCHED;",
        ingestor("quick", "quiet"),
        ingestor("held", "watched"),
        emitter("out", "watched"),
        "START;",
        "",
    ]
)

#: This graph and that of the relays to subscribe to, in one domain.
BOTH = RELAYS.replace("START;\n", "") + GRAPH.replace("CREATE UNPACED DOMAIN lab;\n", "")


def rows(*ids: int) -> list[dict[str, Any]]:
    """Rows of the graph, told apart by their ids."""
    return [{"id": number, "note": f"row {number}"} for number in ids]


def ids(delivery: nervix_ffi.Delivery) -> list[Any]:
    """The ids of a delivery's rows."""
    return delivery.batch().column("id").to_list()


def producer(session: nervix_ffi.Session, name: str = "quick", **options: Any) -> nervix_ffi.Producer:
    """A producer of the graph."""
    return session.open_producer(name, FIELDS, domain=DOMAIN, timeout=PATIENCE, **options)


def consumer(session: nervix_ffi.Session, name: str = "out", **options: Any) -> nervix_ffi.Consumer:
    """A consumer of the graph."""
    return session.open_consumer(name, FIELDS, domain=DOMAIN, timeout=PATIENCE, **options)


def answer(node: LoopbackNode, kind: str, with_: str, **scope: object) -> None:
    """Have the next request of a kind answered as told."""
    node.control("answer", **{"kind": kind, "with": with_, **scope})


def execute(node: LoopbackNode, *statements: str, domain: str = DOMAIN) -> str:
    """Run statements as somebody else; the last message."""
    message = ""
    for statement in statements:
        message = str(node.control("execute", domain=domain, statement=statement)["message"])
    return message


def describe(node: LoopbackNode, what: str) -> dict[str, str]:
    """What DESCRIBE INGESTOR or DESCRIBE EMITTER says, by key."""
    lines = execute(node, f"DESCRIBE {what};").splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def resends(node: LoopbackNode) -> int:
    """How many batches came again that must not have."""
    number: int = node.counts()["batches"]["forbidden_resends"]
    return number
