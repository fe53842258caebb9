"""What must hold after a run, whatever was cut: by what the host was told, and by what the node counted.

Owns the judgement, rule by rule. Must not drive anything but the node's control endpoint, to read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from nervix_ffi import SubmissionResult, SubmissionUncertainty
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE
from .host import BATCHES, Held, Host, Story, opens_it
from .places import frames

#: What a session may not open while it holds a transaction, and what it opens again before it attaches one (D-5).
CLOCKS, SUBSCRIPTIONS = "AttachDomainClockRequest", "SubscribeRequest"

#: How many statements each command of the transaction appends, and where: the accepted operations before it (X-2).
APPENDS = [(1, 0), (2, 1)]
COMMITTED_AT = 3


def check(host: Host, sizes: list[int]) -> None:
    """Judges a run. ``sizes`` are those of the streams of its batches."""
    node, story = host.node, host.story
    counts = leave_nothing(node)
    received = received_batches(host, sizes)
    processed = [number for batch in received for number in host.ids(batch)]
    executed_once(host, counts)
    transaction_is_whole(host, counts)
    submissions_are_true(host, received)
    deliveries_are_settled_once(host, processed)
    gaps_are_told(host)
    rows_are_continuous(host, processed)
    order_of_restoration(host)
    assert counts["forbidden_in_transaction"] == {}, counts["forbidden_in_transaction"]
    assert counts["batches"]["forbidden_resends"] == 0
    # Nobody half-closes, which would revert a transaction.
    assert counts["sessions"]["ended"]["end_stream"] == 0
    # Every frame can be read, no identity comes twice, no batch is cancelled, and none goes beyond the credit (F-6, C-5, P-7, P-4).
    assert counts["violations"] == {}
    sessions = {entry["session"] for entry in host.journal.entries}
    # One to begin with and one after each fault, and another one where that is not with the leader.
    assert len(sessions) <= 2 * (1 + len(story.made)), f"{len(sessions)} sessions"


def leave_nothing(node: LoopbackNode) -> dict[str, Any]:
    """Nothing is open at the end."""
    names = [
        "sessions",
        "connections",
        "subscriptions",
        "clocks",
        "producers",
        "consumers",
        "parked_reads",
        "outstanding_batches",
        "held",
        "blocked_publications",
    ]
    return node.wait(timeout=PATIENCE, **dict.fromkeys(names, 0))


def requests(host: Host, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The requests that the node received, in order."""
    return (one for one in frames(host.journal.entries) if one["direction"] == "in" and kind in (None, one["kind"]))


def executed_once(host: Host, counts: dict[str, Any]) -> None:
    """Each command has one reference, took effect once, and was recovered where nobody knew (E-2, E-3, D-4, N-4)."""
    known = set()
    for command in host.story.commands:
        assert command.outcome is not None
        assert command.outcome.completed, command
        assert len(set(command.references)) == 1, command
        reference = command.references[0]
        known.add(reference)
        times = counts["executed"].get(reference, 0)
        # A read may be asked again, and answered again.
        assert times >= 1 if command.query.startswith("SHOW") else times == 1, (command, times)
    sent: dict[str, set[int | None]] = defaultdict(set)
    for request in requests(host, "CommandRequest"):
        sent[request["reference"]].add(request["position"])
    assert set(sent) == known
    for reference, positions in sent.items():
        assert len(positions) == 1, f"{reference} was sent at {positions}"
    for kind, name in [
        ("SCHEMA", "outside"),
        ("SCHEMA", "made"),
        ("RELAY", "made_rows"),
        ("RELAY", "more_rows"),
        ("RELAY", "after"),
    ]:
        host.node.control("execute", domain=host.domain, statement=f"SHOW CREATE {kind} {name};")


def transaction_is_whole(host: Host, counts: dict[str, Any]) -> None:
    """One transaction was committed with exactly what was appended, at its positions; any other was reverted (X-1 to X-6)."""
    known = {one["id"]: one for one in host.node.transactions() if one["domain"] == host.domain}
    assert sorted(known) == sorted(host.story.transactions)
    told = [known[identity] for identity in host.story.transactions]
    assert [one["state"] for one in told] == ["REVERTED"] * (len(told) - 1) + ["COMMITTED"]
    begin = max(number for number, command in enumerate(host.story.commands) if command.query == "BEGIN;")
    appends = [host.story.commands[begin + 1], host.story.commands[begin + 2]]
    whole = [(command.references[0], statement) for command in appends for statement in command.query.split(";") if statement]
    assert [(one["reference"], one["statement"].rstrip(";").strip()) for one in told[-1]["operations"]] == [
        (reference, statement.strip()) for reference, statement in whole
    ]
    assert (told[-1]["accepted"], told[-1]["applied"]) == (COMMITTED_AT, COMMITTED_AT)
    positions = {request["reference"]: request["position"] for request in requests(host, "CommandRequest")}
    for command, (statements, position) in zip(appends, APPENDS):
        reference = command.references[0]
        assert reference is not None
        assert counts["applied"][reference] == statements
        assert positions[reference] == position
        assert command.outcome is not None
        assert command.outcome.admission is not None
        assert command.outcome.admission.operation == position + statements


def submissions_are_true(host: Host, received: dict[int, dict[str, Any]]) -> None:
    """Each submission has one outcome, which is true to what the node did (P-5, P-8, B-14, N-8)."""
    outcomes = host.story.submissions
    assert sorted(outcomes) == list(range(len(BATCHES)))
    delivered = {number for attempt in host.story.attempts for number in attempt.ids}
    for batch, outcome in outcomes.items():
        at_node = received.get(batch)
        assert at_node is None or at_node["received"] == 1
        if outcome.result == SubmissionResult.COMPLETED:
            assert at_node is not None
            assert at_node["outcomes"] == ["Completed"]
            assert set(host.ids(batch)) <= delivered
        elif outcome.result == SubmissionResult.NOT_ADMITTED:
            assert at_node is None or "Completed" not in at_node["outcomes"]
            assert not set(host.ids(batch)) & delivered
        else:
            assert outcome.result == SubmissionResult.OUTCOME_UNKNOWN
            assert outcome.uncertainty == SubmissionUncertainty.SESSION_LOST
            assert any(made.what == "cut" for made in host.story.made)


def received_batches(host: Host, sizes: list[int]) -> dict[int, dict[str, Any]]:
    """What the node received of this run's batches, told apart by their size, in the order of receipt."""
    new = host.node.batches()[host.batches_before :]
    received = {sizes.index(one["bytes"]): one for one in new}
    assert len(received) == len(new)
    return received


def deliveries_are_settled_once(host: Host, processed: list[int]) -> None:
    """What was not acknowledged came again, what was did not, and no row is lost (EC-4 to EC-6, B-15, B-16, N-6)."""
    given: dict[str, list[str]] = defaultdict(list)
    settled: dict[str, str] = {}
    acknowledged: set[str] = set()
    identity_of: dict[str, str] = {}
    for entry in host.journal.entries:
        if entry["what"] == "delivered":
            identity = entry["identity"]
            assert identity not in acknowledged, "a batch came again after it was acknowledged"
            given[identity].append(entry["reference"])
            identity_of[entry["reference"]] = identity
        elif entry["what"] == "settled" and entry["settlement"] == "Confirmed":
            assert entry["reference"] not in settled
            settled[entry["reference"]] = entry["decision"]
            if entry["decision"] == "Ack":
                acknowledged.add(identity_of[entry["reference"]])
    assert acknowledged == set(given)
    contents: dict[str, list[int]] = {}
    for attempt in host.story.attempts:
        assert contents.setdefault(attempt.identity, attempt.ids) == attempt.ids
        last = given[attempt.identity][-1] == attempt.reference
        decision = settled.get(attempt.reference)
        if attempt.told == "acknowledged":
            assert decision == "Ack"
        elif attempt.told == "given back":
            assert decision == "Retry"
        elif attempt.told == "perhaps acknowledged":
            assert decision in (None, "Ack")
        elif attempt.told == "perhaps given back":
            assert decision in (None, "Retry")
        else:
            assert decision is None
        assert last == (decision == "Ack")
    # Nothing was acknowledged that the host did not see.
    assert set(contents) == set(given)
    assert sorted(number for ids in contents.values() for number in ids) == sorted(processed)


def gaps_are_told(host: Host) -> None:
    """Whoever was held by a session that was lost was told so, and nobody else was (B-7, B-9, B-16, S-7, K-5)."""
    story = host.story
    cuts = [made for made in story.made if made.what == "cut"]
    for one in story.held.values():
        reopened = {
            request["session"]
            for request in requests(host)
            if opens_it(request, one, host.domain) and request["step"] > one.opened
        }
        least = sum(one in made.held for made in cuts)
        # On the edges of its life, and of another loss, it may or may not have been there.
        edges = sum(one.opened <= made.step <= (one.closing or made.step) for made in cuts) - least
        if one.kind == "transaction":
            assert one.gaps == 0
        elif one.kind == "subscription":
            # It moves with a gap, too; one that is lost again before it was open is in the same gap still.
            assert max(least, bool(reopened)) <= one.gaps <= len(reopened) + least + edges, (one, reopened, least, edges)
        else:
            assert least <= one.gaps <= least + edges, (one, least, edges)


def rows_are_continuous(host: Host, processed: list[int]) -> None:
    """Between two gaps no row is missing, none comes twice, and a gap begins another generation (S-3, S-5, S-7, N-1)."""
    for name, order in (("news", host.story.published), ("watched", processed)):
        place = {number: at for at, number in enumerate(order)}
        seen = host.story.rows[name]
        read = [one for one in seen if one is not None]
        assert [place[number] for _, number in read] == sorted({place[number] for _, number in read})
        for before, after in pairwise(seen):
            if before is not None and after is not None:
                assert after[0] == before[0]
                assert place[after[1]] == place[before[1]] + 1, f"{name}: {after} follows {before} without a gap"
        generations = [generation for generation, _ in read]
        assert generations == sorted(generations)
        for at, one in enumerate(seen):
            if one is None:
                earlier, later = generations_around(seen, at)
                assert not earlier & later, f"{name}: the generation did not change with the gap"
        if not host.story.made and None not in seen:
            assert [number for _, number in read] == order
    for one, other in pairwise(host.story.ticks):
        if one is not None and other is not None:
            assert other > one


def generations_around(seen: list[tuple[int, int] | None], gap: int) -> tuple[set[int], set[int]]:
    """The generations of the rows before and behind a gap."""
    before = {one[0] for one in seen[:gap] if one is not None}
    after = {one[0] for one in seen[gap:] if one is not None}
    return before, after


def order_of_restoration(host: Host) -> None:
    """On each session after the first: clocks, then subscriptions, then the transaction, and then commands (D-1, D-5, L-3)."""
    sessions: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for request in requests(host):
        sessions[request["session"]].append(request)
    begins = {command.references[0] for command in host.story.commands if command.query == "BEGIN;"}
    for number, (session, sent) in enumerate(sessions.items()):
        in_transaction = False
        for request in sent:
            if request["kind"] == "AttachTransactionRequest" or request.get("reference") in begins:
                in_transaction = True
            assert request.get("position") is None or in_transaction, f"session {session}: {request} before the attach"
        if number == 0:
            continue
        later = [at for at, one in enumerate(sent) if one["kind"] in ("CommandRequest", "AttachTransactionRequest")]
        if not later:
            continue
        first = later[0]
        held = [one for one in host.story.held.values() if one.during(sent[first]["step"])]
        assert_restored(host.story, host.domain, sent[:first], held)
        if any(one.kind == "transaction" for one in held):
            assert sent[first]["kind"] == "AttachTransactionRequest", f"session {session}: {sent[first]}"


def assert_restored(story: Story, domain: str, sent: list[dict[str, Any]], held: list[Held]) -> None:
    """What a session must have asked for before its first command."""
    restored = []
    for kind, wanted in (("clock", CLOCKS), ("subscription", SUBSCRIPTIONS)):
        for one in held:
            if one.kind == kind:
                places = [at for at, request in enumerate(sent) if request["kind"] == wanted and opens_it(request, one, domain)]
                assert places, f"{one.name} was not restored ahead of the first command: {[request['kind'] for request in sent]}"
                restored.append((kind, places[0]))
    clocks = [at for kind, at in restored if kind == "clock"]
    subscriptions = [at for kind, at in restored if kind == "subscription"]
    assert max(clocks, default=-1) < min(subscriptions, default=len(sent)), story.made
