"""Statements that are requests of their own, and what is refused before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Disposition
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, connect, counts, sent


def requests(node: LoopbackNode) -> dict[str, Any]:
    """Every request the node saw, by kind."""
    found: dict[str, Any] = counts(node)["frames"]["in"]
    return found


@pytest.mark.rule("L-2", "L-1")
def test_use_sends_nothing_and_selects_the_domain_of_later_commands(node: LoopbackNode) -> None:
    with connect(node, domain=None) as session:
        before = requests(node)
        outcome = session.execute("use lab; // from here on", timeout=PATIENCE)
        assert outcome.completed
        assert outcome.decided_locally
        assert outcome.origin is None
        assert requests(node) == before
        assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed


@pytest.mark.rule("L-1")
def test_a_command_without_a_selected_domain_names_none(node: LoopbackNode) -> None:
    with connect(node, domain=None) as session:
        with pytest.raises(nervix_ffi.CommandFailed):
            session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE)
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


@pytest.mark.rule("L-1", "E-2")
def test_a_prepared_command_keeps_the_domain_of_its_preparation(session: nervix_ffi.Session) -> None:
    session.execute("CREATE UNPACED DOMAIN other;", timeout=PATIENCE)
    with session.prepare("SHOW CREATE RELAY readings;") as execution:
        session.execute("USE other;", timeout=PATIENCE)
        assert execution.run(timeout=PATIENCE).completed
    with pytest.raises(nervix_ffi.CommandFailed):
        session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE)


@pytest.mark.rule("L-2")
def test_list_domains_is_a_request_of_its_own(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    outcome = session.execute("list  domains", timeout=PATIENCE)
    assert outcome.completed
    assert "lab" in outcome.message
    assert requests(node) == {"ListDomainsRequest": 1}


@pytest.mark.rule("L-2", "S-1")
def test_subscriptions_are_requests_of_their_own(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    opened = session.execute("/// comment\ncreate subscription s to readings where note != ';';", timeout=PATIENCE)
    assert opened.subscription is not None
    assert opened.subscription.name == "s"
    session.execute("Delete Subscription s", timeout=PATIENCE)
    assert requests(node) == {"SubscribeRequest": 1, "UnsubscribeRequest": 1}


MIXED = [
    "USE lab; SHOW CREATE RELAY readings;",
    "SHOW CREATE RELAY readings; USE lab;",
    "LIST DOMAINS; LIST DOMAINS;",
    "CREATE SUBSCRIPTION a TO readings; CREATE SUBSCRIPTION b TO readings;",
    "DELETE SUBSCRIPTION a; USE lab;",
    "CREATE SCHEMA a (id U32); CREATE SCHEMA b (id U32);",
    "ATTACH DOMAIN CLOCK; DETACH DOMAIN CLOCK;",
    "UPLOAD RESOURCE r VERSION '/tmp/r'; USE lab;",
    "BACKUP CLUSTER TO '/tmp/b'; LIST DOMAINS;",
    "LIST DOMAINS; RESTORE CLUSTER FROM '/tmp/b';",
    "SHOW TRANSACTIONS; SHOW CLUSTER STATUS;",
    "SHOW CLUSTER STATUS; DESCRIBE TRANSACTION;",
    "CREATE SCHEMA a (id U32); // one\nCREATE SCHEMA b (id U32)",
]


@pytest.mark.rule("L-2")
@pytest.mark.parametrize("text", MIXED)
def test_statements_that_must_travel_alone_are_refused_before_anything_is_sent(
    node: LoopbackNode, session: nervix_ffi.Session, text: str
) -> None:
    before = requests(node)
    outcome = session.execute(text, timeout=PATIENCE, check=False)
    assert outcome.disposition == Disposition.FAILED
    assert outcome.decided_locally
    assert outcome.message
    assert requests(node) == before
    with pytest.raises(nervix_ffi.CommandFailed):
        session.execute(text, timeout=PATIENCE)


@pytest.mark.rule("L-2")
@pytest.mark.parametrize(
    "text",
    [
        "SHOW CLUSTER STATUS",
        "SHOW CLUSTER STATUS;;;",
        " ; SHOW CLUSTER STATUS ; // USE lab;\n ;",
        "// LIST DOMAINS;\nSHOW CLUSTER STATUS;",
    ],
)
def test_empty_statements_and_comments_do_not_count(node: LoopbackNode, session: nervix_ffi.Session, text: str) -> None:
    assert session.execute(text, timeout=PATIENCE).completed
    assert requests(node) == {"CommandRequest": 1}


@pytest.mark.rule("L-2")
def test_a_semicolon_inside_quotes_ends_no_statement(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    session.execute("CREATE SUBSCRIPTION q TO readings WHERE note = 'it''s; USE lab; // no comment';", timeout=PATIENCE)
    assert requests(node) == {"SubscribeRequest": 1}


@pytest.mark.rule("CF-1")
def test_what_this_client_does_not_build_yet_is_not_sent_as_a_command(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    for text in ("UPLOAD RESOURCE r VERSION '/tmp/r';", "BACKUP CLUSTER TO '/tmp/none';", "RESTORE CLUSTER FROM '/tmp/none';"):
        before = sent(node, "CommandRequest")
        with pytest.raises(nervix_ffi.Error):
            session.execute(text, timeout=PATIENCE)
        assert sent(node, "CommandRequest") == before
