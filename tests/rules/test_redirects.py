"""Following the leader of a three-node cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, Running, connect, counts, executed, next_event, publish, read_ids, reopened, sent, wait

CREATE = "CREATE SCHEMA made (id U32);"


def names(cluster: LoopbackNode) -> list[str]:
    """The nodes' names, the leader's first."""
    return list(cluster.nodes)


@pytest.fixture
def follower(cluster: LoopbackNode) -> Iterator[nervix_ffi.Session]:
    """A session that was opened with a follower."""
    with connect(cluster, cluster.followers[0]) as session:
        yield session


@pytest.mark.rule("D-1", "E-6")
def test_a_command_to_a_follower_is_carried_out_by_the_leader(cluster: LoopbackNode, follower: nervix_ffi.Session) -> None:
    outcome = follower.execute(CREATE, timeout=PATIENCE)
    assert outcome.completed
    assert executed(cluster, outcome.reference) == 1
    assert sent(cluster, "CommandRequest") == 2
    # The session stays with the leader: the next command needs no redirect.
    follower.execute("CREATE SCHEMA more (id U32);", timeout=PATIENCE)
    assert sent(cluster, "CommandRequest") == 3
    assert counts(cluster)["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("D-1")
def test_a_follower_serves_reads_by_itself(cluster: LoopbackNode, follower: nervix_ffi.Session) -> None:
    assert "CREATE RELAY readings" in follower.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).message
    assert counts(cluster)["sessions"]["opened"] == 1


@pytest.mark.rule("X-9")
def test_a_read_is_what_the_node_says_now_and_nothing_is_remembered(cluster: LoopbackNode, follower: nervix_ffi.Session) -> None:
    """Each run asks again, and tells what that node has applied by then; only an execution that ran has its outcome fixed."""
    with follower.prepare("SHOW CREATE SCHEMA reading;") as execution:
        before = execution.run(timeout=PATIENCE)
        cluster.control("execute", domain="lab", statement="ALTER SCHEMA reading ADD extra STRING OPTIONAL;")
        after = follower.execute("SHOW CREATE SCHEMA reading;", timeout=PATIENCE)
        assert "extra" not in before.message
        assert "extra" in after.message
    assert sent(cluster, "CommandRequest") >= 2


@pytest.mark.rule("D-1", "E-2")
def test_a_leader_that_moves_is_followed(cluster: LoopbackNode) -> None:
    order = names(cluster)
    with connect(cluster, cluster.leader) as session:
        for turn, leader in enumerate([*order[1:], order[0]]):
            cluster.control("leader", leader=leader)
            outcome = session.execute(f"CREATE SCHEMA turn{turn} (id U32);", timeout=PATIENCE)
            assert outcome.completed
            assert executed(cluster, outcome.reference) == 1


@pytest.mark.rule("D-1", "E-2", "E-3")
def test_a_leader_that_moves_while_a_command_is_under_way_does_not_make_it_happen_twice(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.leader) as session:
        cluster.control("delay", when="after")
        call = Running(lambda: session.execute(CREATE, timeout=PATIENCE))
        wait(cluster, held=1)
        cluster.control("leader", leader=names(cluster)[1])
        cluster.control("cut", how="abort")
        cluster.control("release")
        outcome = call.result()
        assert outcome.completed
        assert executed(cluster, outcome.reference) == 1


@pytest.mark.rule("D-2", "E-6")
def test_a_cluster_without_a_leader_is_waited_for(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.leader) as session:
        cluster.control("leader", leader=None)
        call = Running(lambda: session.execute(CREATE, timeout=PATIENCE))
        wait(cluster, frames={"in": {"CommandRequest": 3}})
        cluster.control("leader", leader=names(cluster)[2])
        outcome = call.result()
        assert outcome.completed
        assert executed(cluster, outcome.reference) == 1


@pytest.mark.rule("D-2", "D-4")
def test_a_command_that_no_leader_takes_in_time_is_reported_and_can_be_run_again(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.leader, retry_timeout=1.0) as session:
        cluster.control("leader", leader=None)
        with session.prepare(CREATE) as execution:
            with pytest.raises(nervix_ffi.UncertainError) as caught:
                execution.run(timeout=PATIENCE)
            assert caught.value.reference == execution.reference
            cluster.control("leader", leader=names(cluster)[0])
            assert execution.run(timeout=PATIENCE).completed
            assert executed(cluster, execution.reference) == 1


@pytest.mark.rule("D-2")
def test_a_redirect_without_an_endpoint_is_not_guessed(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.leader) as session:
        cluster.control("disposition", disposition="LeaderRedirect", leader="elsewhere", grpc_uri="", count=2)
        assert session.execute(CREATE, timeout=PATIENCE).completed
        assert sent(cluster, "CommandRequest") == 3
        assert counts(cluster)["connections"]["refused"] == 0


@pytest.mark.rule("D-1", "T-2")
@pytest.mark.parametrize("address", ["http://127.0.0.1:1/path", "ftp://127.0.0.1:1", "http://user@127.0.0.1:1", "nonsense"])
def test_a_redirect_to_what_is_no_origin_is_not_followed(cluster: LoopbackNode, address: str) -> None:
    with connect(cluster, cluster.leader) as session:
        cluster.control("disposition", disposition="LeaderRedirect", leader="elsewhere", grpc_uri=address)
        assert session.execute(CREATE, timeout=PATIENCE).completed


@pytest.mark.rule("D-3")
def test_endpoints_learned_on_the_way_are_tried_when_the_session_is_lost(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.followers[0]) as session:
        session.execute(CREATE, timeout=PATIENCE)
        # The leader goes, and the second follower leads: the first one is still known, and says where.
        cluster.control("node", node=names(cluster)[0], state="stopped")
        cluster.control("leader", leader=names(cluster)[2])
        outcome = session.execute("CREATE SCHEMA more (id U32);", timeout=PATIENCE)
        assert outcome.completed
        assert executed(cluster, outcome.reference) == 1


@pytest.mark.rule("D-3")
def test_seeds_are_tried_when_the_session_is_lost(cluster: LoopbackNode) -> None:
    first, second, _ = names(cluster)
    with connect(cluster, cluster.leader, seeds=[cluster.nodes[second]]) as session:
        cluster.control("node", node=first, state="stopped")
        cluster.control("leader", leader=second)
        assert session.execute(CREATE, timeout=PATIENCE).completed


@pytest.mark.rule("D-3")
def test_seeds_are_tried_when_the_named_server_does_not_answer(cluster: LoopbackNode) -> None:
    cluster.control("node", node=names(cluster)[0], state="stopped")
    cluster.control("leader", leader=names(cluster)[1])
    with connect(cluster, cluster.uri, seeds=cluster.uris[1:]) as session:
        assert session.execute(CREATE, timeout=PATIENCE).completed


@pytest.mark.rule("D-1", "D-5", "S-7")
def test_a_redirect_moves_subscriptions_and_reports_the_gap(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.followers[0]) as session, session.subscribe("readings", name="kept") as kept:
        publish(cluster, 1)
        assert read_ids(kept, 1) == [1]
        session.execute(CREATE, timeout=PATIENCE)
        gap = next_event(kept)
        assert isinstance(gap, nervix_ffi.Interrupted)
        reopened(cluster)
        publish(cluster, 2)
        event = next_event(kept)
        assert isinstance(event, nervix_ffi.Rows)
        assert event.generation != kept.generation
        assert event.column("id").to_list() == [2]


@pytest.mark.rule("D-5", "S-7", "E-2")
def test_subscriptions_are_sent_before_the_command_that_waits(cluster: LoopbackNode) -> None:
    with connect(cluster, cluster.leader) as session:
        subscriptions = [session.subscribe("readings") for _ in range(3)]
        cluster.control("cut", direction="in", when="before", kind="CommandRequest", how="abort")
        # The outcome of the repeated command is withheld, and only that: the subscriptions are open by then.
        cluster.control("delay", when="before", nth=1)
        call = Running(lambda: session.execute(CREATE, timeout=PATIENCE))
        wait(cluster, held=1, subscriptions={"exactly": 3}, frames={"in": {"SubscribeRequest": 6}})
        cluster.control("release")
        assert call.result().completed
        for subscription in subscriptions:
            assert isinstance(next_event(subscription), nervix_ffi.Interrupted)
