"""Faults at random, from a seed: commands happen once, calls come back, and no gap between rows goes unreported."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Rows
from nervix_ffi.testing import LoopbackNode

from ..support import GRAPH, PATIENCE, Running, connect, counts, publish, wait

STEPS = 60

HOW = ["close", "abort", "reset", "goaway", "status"]


def disturb(node: LoopbackNode, dice: random.Random, nodes: list[str]) -> None:
    """Arm or do one thing that goes wrong."""
    kind = dice.choice(["CommandOutcome", "SubscribeOutcome", "SubscriptionRows", "LeadershipObserved", "DomainsObserved"])
    direction, when = dice.choice(["in", "out"]), dice.choice(["before", "after"])
    faults: list[tuple[str, dict[str, Any]]] = [
        ("cut", {"how": dice.choice(HOW)}),
        (
            "cut",
            {
                "how": dice.choice(HOW),
                "direction": direction,
                "when": when,
                "nth": dice.randint(1, 4),
            },
        ),
        ("corrupt", {"what": dice.choice(["identifier", "truncated", "union_tag", "required", "oversize"]), "kind": kind}),
        ("parts", {"bytes": dice.randint(1, 40), "notices": True, "count": 3}),
        ("parts", {"bad": dice.choice(["offset_gap", "other_total", "malformed", "other_request"])}),
        ("reject", {"reason": dice.choice(["TooManyRequestsInFlight", "ServerBusy"]), "count": dice.randint(1, 3)}),
        ("refuse_subscribe", {"count": dice.randint(1, 2)}),
        ("disposition", {"disposition": "OutcomeUnknown", "execute": dice.random() < 0.5}),
        ("wrong_reference", {}),
        ("auth", {"answer": "unavailable", "count": dice.randint(1, 3)}),
        ("delay", {"millis": dice.randint(1, 30), "when": dice.choice(["before", "after"])}),
        ("end", {"reason": dice.choice(["ServerShuttingDown", "ProtocolViolated"])}),
        ("leader", {"leader": dice.choice(nodes)}),
    ]
    action, body = dice.choice(faults)
    node.control(action, **body)


def follow(subscription: nervix_ffi.Subscription, last: int, stopped: threading.Event) -> list[int]:
    """Read until row `last` came. Two rows in a row that are not neighbours fail the test, unless a gap was told between."""
    seen: list[int] = []
    gap = True
    while not seen or seen[-1] != last:
        event = subscription.next(timeout=PATIENCE)
        if not isinstance(event, Rows):
            assert not isinstance(event, nervix_ffi.Ended)
            gap = True
            continue
        for number in event.column("id").to_list():
            assert isinstance(number, int)
            assert gap or number == seen[-1] + 1, f"{number} follows {seen[-1]} without a gap"
            assert not seen or number > seen[-1]
            seen.append(number)
            gap = False
    stopped.set()
    return seen


@pytest.mark.rule("E-2", "E-3", "S-5", "S-7", "D-6", "F-8", "SM-2", "SM-4", "N-1")
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_nothing_happens_twice_and_no_gap_is_silent(seed: int, nodes: int) -> None:
    dice = random.Random(seed)
    with LoopbackNode(nodes, load=GRAPH) as node:
        names = list(node.nodes)
        with connect(node, seeds=node.uris[1:]) as session:
            subscription = session.subscribe("readings", name="kept", delivery="BLOCKING")
            stopped = threading.Event()
            reader = Running(lambda: follow(subscription, STEPS, stopped))
            references = []
            for step in range(STEPS):
                disturb(node, dice, names)
                publish(node, step)
                outcome = session.execute(f"CREATE SCHEMA made{step} (id U32);", timeout=PATIENCE)
                assert outcome.completed
                references.append(outcome.reference)
            node.control("clear")
            # The last row is published until it is read: the subscription may just now be between two sessions.
            while not stopped.wait(0.05):
                wait(node, subscriptions=1)
                publish(node, STEPS)
            assert reader.result()[-1] == STEPS
        found = counts(node)
        assert [found["executed"][reference] for reference in references] == [1] * STEPS
        assert found["sessions"]["ended"]["end_stream"] == 0
