"""One scripted host, cut off or redirected at every frame of its session: nothing lost, nothing twice, no gap untold.

The script (``tests/cuts/host.py``) runs once to count its frames of each kind in each direction, ticks aside, and then once for each
side of each frame. What holds after each run is in ``tests/cuts/invariants.py``. ``NERVIX_CUTS=all`` runs every variation of every
place; without it the variations beside the plain cut and the plain move are sampled from ``NERVIX_CUTS_SEED`` (0 by default).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Sequence

import pytest

from ..cuts.cluster import Cluster
from ..cuts.places import Fault, Place, away, cuts, moves, next_places, otherwise, places

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.rule(
        "C-5", "P-4", "P-7", "D-1", "D-4", "D-5", "D-6", "E-2", "E-3", "X-1", "X-2", "X-3", "X-4", "X-5", "X-6", "X-7"
    ),
    pytest.mark.rule("S-3", "S-7", "K-2", "K-5", "P-5", "P-8", "EC-4", "EC-5", "EC-6", "L-3", "SM-1", "SM-2", "SM-3"),
    pytest.mark.rule("SM-4", "SM-5", "B-1", "B-7", "B-9", "B-14", "B-15", "B-16", "N-1", "N-4", "N-6", "N-7", "N-8"),
]

WHOLE = os.environ.get("NERVIX_CUTS") == "all"
SEED = int(os.environ.get("NERVIX_CUTS_SEED", "0"))

#: How many places of a variation are tried, unless all are.
SAMPLE = 16

#: Of how many frames behind a cut one is chosen for the second.
RECOVERY = 24


def sample(faults: Sequence[Fault]) -> list[Fault]:
    """Some of the faults, or all of them when the whole is run."""
    return list(faults) if WHOLE else random.Random(SEED).sample(faults, SAMPLE)


def count(cluster: Cluster) -> list[Place]:
    """Both sides of every frame of the script, which has the same frames each time."""
    counted = cluster.census()
    assert cluster.census() == counted
    return places(counted)


def make_all(cluster: Cluster, faults: Iterable[Fault]) -> None:
    """Runs the script once for each fault, which must be made, and says how many there were."""
    started, made, uncertain = time.monotonic(), 0, 0
    for fault in faults:
        try:
            story = cluster.run(fault).story
            assert len(story.made) == 1, "the frame never came"
        except BaseException as failure:
            raise AssertionError(f"{fault}: {failure}") from failure
        made += 1
        uncertain += sum(command.uncertain for command in story.commands)
    took = time.monotonic() - started
    print(f"\n{made} faults at {made} places, {uncertain} commands uncertain and recovered, {took:.0f} s")


@pytest.mark.parametrize(("nodes", "follower"), [(1, False), (3, True)])
def test_a_cut_at_any_frame_loses_nothing(nodes: int, follower: bool) -> None:
    with Cluster(nodes, follower=follower) as cluster:
        make_all(cluster, cuts(count(cluster)))


def test_leadership_that_moves_at_any_frame_loses_nothing() -> None:
    with Cluster(3) as cluster:
        make_all(cluster, moves(count(cluster), list(cluster.node.nodes)[1]))


def test_leadership_that_moves_on_from_where_the_session_was_led_loses_nothing() -> None:
    with Cluster(3, follower=True) as cluster:
        make_all(cluster, sample(moves(count(cluster), list(cluster.node.nodes)[2])))


def every_way(places: list[Place]) -> list[Fault]:
    """The connection ended in other ways than a reset of it."""
    return otherwise(cuts(places), random.Random(SEED))


def nobody_there(places: list[Place]) -> list[Fault]:
    """Nobody to connect to until the host was told that it cannot go on."""
    return away(cuts(places))


@pytest.mark.parametrize("variation", [every_way, nobody_there])
def test_however_a_session_ends_nothing_is_lost(variation: Callable[[list[Place]], list[Fault]]) -> None:
    with Cluster(1) as cluster:
        make_all(cluster, sample(variation(count(cluster))))


@pytest.mark.parametrize(("nodes", "follower"), [(1, False), (3, True)])
def test_a_second_cut_while_the_first_is_recovered_from_loses_nothing(nodes: int, follower: bool) -> None:
    dice = random.Random(SEED)
    with Cluster(nodes, follower=follower) as cluster:
        found, second = count(cluster), 0
        for first in sample(cuts(found)):
            then = next_places(cluster.run(first).journal.entries, first.place, RECOVERY)
            if not then:
                continue
            fault = Fault(dice.choice(then))
            try:
                second += len(cluster.run(first, fault).story.made) == 2
            except BaseException as failure:
                raise AssertionError(f"{first}, {fault}: {failure}") from failure
        print(f"\n{second} cuts behind a cut")
        assert second
