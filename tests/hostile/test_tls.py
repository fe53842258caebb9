"""Sessions over TLS: whom a host trusts, what becomes of a server that is not trusted, and that nothing leads away from TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

import nervix_ffi
from nervix_ffi.testing import LoopbackError, LoopbackNode

from ..support import DOMAIN, GRAPH, PATIENCE, Running, connect, counts, executed, next_event, publish, read_ids, wait

CREDENTIALS = {"username": "ada", "password": "correct-horse-battery"}


class Authority:
    """A certificate authority in a folder: `file` vouches for it, and `node` starts nodes that it vouches for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._ca = trustme.CA()
        self._folder = folder
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str, **validity: datetime) -> tuple[Path, Path]:
        """The files of a certificate chain and of its key."""
        issued = self._ca.issue_cert(*names, **validity)
        chain, key = self._folder / "chain.pem", self._folder / "key.pem"
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return chain, key

    def node(self, nodes: int = 1, *, names: tuple[str, ...] = ("127.0.0.1",), **options: Any) -> LoopbackNode:
        """Nodes with the graph that serve over TLS."""
        validity = {name: options.pop(name) for name in ("not_before", "not_after") if name in options}
        chain, key = self.issue(*names, **validity)
        options = {"load": GRAPH, "user": CREDENTIALS["username"], "password": CREDENTIALS["password"], **options}
        return LoopbackNode(nodes, tls_cert=chain, tls_key=key, **options)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """Another one."""
    return Authority(tmp_path / "theirs")


@pytest.fixture
def secure(ours: Authority) -> Iterator[LoopbackNode]:
    with ours.node() as one:
        yield one


def untold(failure: BaseException) -> None:
    """The message is one line and holds no credential."""
    assert CREDENTIALS["password"] not in str(failure)
    assert "\n" not in str(failure)


def heard_nothing(node: LoopbackNode) -> None:
    """The node was called, and no call, let alone a credential, reached it."""
    found = wait(node, connections={"exactly": 0}, connections_opened=1)
    assert found["sessions"]["opened"] == 0
    assert found["calls"]["unauthenticated"] == 0


# ---- a server that is trusted


@pytest.mark.rule("T-2", "T-4", "D-1", "D-5", "X-7")
def test_a_whole_session_over_tls_with_redirects_and_cuts(ours: Authority) -> None:
    with ours.node(3) as cluster:
        assert all(uri.startswith("https://127.0.0.1:") for uri in cluster.uris)
        follower = cluster.followers[0]
        with connect(cluster, follower, ca_file=ours.file, **CREDENTIALS) as session:
            # The follower redirects to the leader, whose address is https too.
            made = session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
            assert executed(cluster, made.reference) == 1
            subscription = session.subscribe("readings")
            publish(cluster, 1, 2, 3)
            assert read_ids(subscription, 3) == [1, 2, 3]
            # A reply and rows of many TLS records.
            node_rows = [{"id": number, "value": None, "note": "x" * 50_000} for number in range(4, 10)]
            cluster.control("publish", domain=DOMAIN, relay="readings", rows=node_rows)
            assert read_ids(subscription, 6) == list(range(4, 10))
            for how in ("close", "abort", "goaway"):
                before = counts(cluster)["sessions"]["opened"]
                cluster.control(
                    "cut",
                    how=how,
                    direction="in",
                    kind="CommandRequest",
                    when="after",
                    **({"code": 0} if how == "goaway" else {}),
                )
                outcome = session.execute(f"CREATE SCHEMA after_{how} (id U32);", timeout=PATIENCE)
                assert executed(cluster, outcome.reference) == 1
                assert isinstance(next_event(subscription), nervix_ffi.Interrupted)
                wait(cluster, subscriptions={"exactly": 1}, sessions_opened=before + 1)
            cluster.control("leader", leader="node-3")
            moved = session.execute("CREATE SCHEMA moved (id U32);", timeout=PATIENCE)
            assert executed(cluster, moved.reference) == 1
        found = wait(cluster, sessions={"exactly": 0}, connections={"exactly": 0})
        assert {entry["user"] for entry in found["sessions"]["list"]} == {CREDENTIALS["username"]}
        assert found["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("T-2")
def test_the_certificate_is_held_to_the_name_in_the_address(ours: Authority) -> None:
    with ours.node(names=("localhost",)) as node:
        port = urlsplit(node.uri).port
        with connect(node, f"https://localhost:{port}", ca_file=ours.file, **CREDENTIALS) as session:
            node.control("cut", how="abort")
            # The address behind the name is no name of the certificate's, and is not what a reconnection checks.
            assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
        assert counts(node)["sessions"]["opened"] == 2
        with pytest.raises(nervix_ffi.ConnectError, match="another name"):
            connect(node, ca_file=ours.file, **CREDENTIALS)
        assert counts(node)["sessions"]["opened"] == 2


@pytest.mark.rule("T-2")
def test_a_file_may_hold_several_authorities_and_other_things(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    bundle = tmp_path / "bündle ✓.pem"
    _, key = theirs.issue("127.0.0.1")
    text = b"# authorities of ours\n" + theirs.file.read_bytes() + key.read_bytes() + ours.file.read_bytes()
    bundle.write_bytes(text)
    with ours.node() as node:
        for path in (bundle, str(bundle), bytes(bundle)):
            with connect(node, ca_file=path, **CREDENTIALS) as session:
                bundle.unlink()
                # It was read once: the session goes on, and comes back, without it.
                node.control("cut", how="abort")
                assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
                bundle.write_bytes(text)


@pytest.mark.rule("T-2")
def test_without_a_file_the_system_decides_and_with_one_it_does_not(
    ours: Authority, theirs: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with ours.node() as node:
        monkeypatch.setenv("SSL_CERT_FILE", str(ours.file))
        with connect(node, **CREDENTIALS):
            pass
        before = counts(node)["sessions"]["opened"]
        with pytest.raises(nervix_ffi.ConnectError, match="CA file"):
            connect(node, ca_file=theirs.file, **CREDENTIALS)
        monkeypatch.setenv("SSL_CERT_FILE", str(theirs.file))
        with pytest.raises(nervix_ffi.ConnectError, match="no authority that the system trusts"):
            connect(node, **CREDENTIALS)
        assert counts(node)["sessions"]["opened"] == before
        with connect(node, ca_file=ours.file, **CREDENTIALS):
            pass


# ---- a server that is not


def past(days: int) -> datetime:
    return datetime.now(timezone.utc) - timedelta(days=days)


BAD: dict[str, tuple[Callable[[Authority, Authority], LoopbackNode], str]] = {
    "another authority": (lambda ours, theirs: theirs.node(), "none of the authorities"),
    "another address": (lambda ours, theirs: ours.node(names=("127.0.0.2",)), "another name"),
    "a name and no address": (lambda ours, theirs: ours.node(names=("localhost", "*.1")), "another name"),
    "expired": (lambda ours, theirs: ours.node(not_before=past(20), not_after=past(10)), "expired"),
    "not valid yet": (lambda ours, theirs: ours.node(not_before=past(-10), not_after=past(-20)), "not valid yet"),
}


@pytest.mark.rule("T-2", "T-4")
@pytest.mark.parametrize("name", BAD)
def test_a_certificate_that_is_not_good_ends_connecting_and_is_told(name: str, ours: Authority, theirs: Authority) -> None:
    start, word = BAD[name]
    with start(ours, theirs) as node:
        with pytest.raises(nervix_ffi.ConnectError, match=word) as caught:
            connect(node, ca_file=ours.file, **CREDENTIALS)
        untold(caught.value)
        assert node.uri in str(caught.value)
        heard_nothing(node)


@pytest.mark.rule("T-2")
def test_the_next_server_is_tried_after_one_that_is_not_trusted(secure: LoopbackNode, ours: Authority, theirs: Authority) -> None:
    with (
        theirs.node() as imposter,
        connect(imposter, seeds=[secure.uri], ca_file=ours.file, **CREDENTIALS) as session,
    ):
        assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed
        heard_nothing(imposter)


@pytest.mark.rule("T-2", "T-4", "E-3", "D-6")
def test_a_session_does_not_come_back_to_an_imposter(ours: Authority, theirs: Authority) -> None:
    """The server goes away, and another one without its authority takes its port."""
    with ours.node() as node:
        uri, port = node.uri, urlsplit(node.uri).port
        session = connect(node, ca_file=ours.file, retry_timeout=1.0, **CREDENTIALS)
        execution = session.prepare("CREATE SCHEMA made (id U32);")
    with session, theirs.node(options=["--listen", f"127.0.0.1:{port}"]) as imposter:
        assert imposter.uri == uri
        with pytest.raises(nervix_ffi.ConnectError, match="none of the authorities") as caught:
            execution.run(timeout=PATIENCE)
        assert caught.value.reference == execution.reference
        untold(caught.value)
        heard_nothing(imposter)
        imposter.stop()
        # The right one is back, and the session with it.
        with ours.node(options=["--listen", f"127.0.0.1:{port}"]) as back:
            assert execution.run(timeout=PATIENCE).completed
            assert executed(back, execution.reference) == 1


# ---- files


def unusable(folder: Path, ours: Authority) -> dict[str, Path]:
    pem = ours.file.read_text(encoding="ascii")
    lines = pem.splitlines(keepends=True)
    contents: dict[str, bytes] = {
        "empty": b"",
        "text": b"trust me\n",
        "noise": bytes(range(256)) * 40,
        "cut": "".join(lines[: len(lines) // 2]).encode(),
        "no base64": "".join([lines[0], "!" + lines[1][1:], *lines[2:]]).encode(),
        "no certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "good and bad": pem.encode() + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "key alone": ours.issue("127.0.0.1")[1].read_bytes(),
        "too long": b"#" * (9 << 20),
    }
    paths = {"missing": folder / "missing.pem", "folder": folder}
    for name, content in contents.items():
        paths[name] = folder / f"{name}.pem"
        paths[name].write_bytes(content)
    return paths


@pytest.mark.rule("T-2")
def test_a_file_that_cannot_be_used_is_named_before_anything_is_sent(
    secure: LoopbackNode, ours: Authority, tmp_path: Path
) -> None:
    for name, path in unusable(tmp_path, ours).items():
        with pytest.raises(nervix_ffi.InvalidArgumentError) as caught:
            connect(secure, ca_file=path, **CREDENTIALS)
        assert str(path) in str(caught.value), name
        untold(caught.value)
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        connect(secure, ca_file="", **CREDENTIALS)
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        connect(secure, ca_file="a\0b", **CREDENTIALS)
    with pytest.raises(TypeError):
        connect(secure, ca_file=3, **CREDENTIALS)
    # An http server has no use for it, and a file that cannot be used is told all the same.
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        nervix_ffi.connect("http://127.0.0.1:1", ca_file=tmp_path / "missing.pem")
    assert counts(secure)["connections"]["opened"] == 0


def test_a_library_without_the_extension_says_so(plain_library: Path, ours: Authority, run_python: Callable[..., Any]) -> None:
    script = f"""
import nervix_ffi
assert "ca_file" not in nervix_ffi.library().extensions
try:
    nervix_ffi.connect("https://127.0.0.1:1", ca_file={str(ours.file)!r})
except nervix_ffi.UnsupportedError as failure:
    assert "ca_file" in str(failure) and nervix_ffi.library().path in str(failure), failure
else:
    raise SystemExit("it connected")
"""
    done = run_python(script, NERVIX_CLIENT_LIBRARY=str(plain_library))
    assert (done.returncode, done.stderr) == (0, "")
    assert "ca_file" in nervix_ffi.library().extensions


# ---- TLS and none


@pytest.mark.rule("T-2", "T-8")
def test_tls_to_a_plain_port_is_told(node: LoopbackNode, ours: Authority) -> None:
    uri = node.uri.replace("http://", "https://")
    with pytest.raises(nervix_ffi.ConnectError, match="does not speak TLS") as caught:
        connect(node, uri, ca_file=ours.file, **CREDENTIALS)
    untold(caught.value)
    assert wait(node, connections={"exactly": 0})["sessions"]["opened"] == 0


@pytest.mark.rule("T-2", "T-8")
def test_no_tls_to_a_tls_port_is_told(secure: LoopbackNode) -> None:
    uri = secure.uri.replace("https://", "http://")
    with pytest.raises(nervix_ffi.ConnectError, match="speaks TLS") as caught:
        connect(secure, uri, **CREDENTIALS)
    untold(caught.value)
    heard_nothing(secure)


@pytest.mark.rule("T-2", "T-8")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_port_that_speaks_something_else_is_told(scheme: str, ours: Authority) -> None:
    """A greeting of another protocol, and HTTP/1."""
    for greeting, words in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", {"http": "HTTP/1", "https": "TLS"}),
        (b"220 mail ready\r\n", {"http": "HTTP/2|connection", "https": "TLS"}),
        (b"", {"http": "connection", "https": "TLS"}),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def greet(listener: socket.socket = listener, greeting: bytes = greeting) -> bytes:
                peer, _ = listener.accept()
                with peer:
                    heard = peer.recv(65536)
                    peer.sendall(greeting)
                    peer.shutdown(socket.SHUT_WR)
                    while more := peer.recv(65536):
                        heard += more
                return heard

            greeted = Running(greet)
            uri = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(nervix_ffi.ConnectError, match=words[scheme]):
                nervix_ffi.connect(uri, ca_file=ours.file, timeout=PATIENCE, **CREDENTIALS)
            # No request, and no credentials with it, went to somebody who speaks something else.
            heard = greeted.result()
            assert scheme == "https" or len(heard) < 128, heard


@pytest.mark.rule("T-8", "D-4")
def test_a_peer_that_never_answers_the_handshake_is_given_up(ours: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(nervix_ffi.DeadlineError):
            nervix_ffi.connect(uri, ca_file=ours.file, timeout=0.3)
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            # The connection is closed, not left behind.
            while peer.recv(65536):
                pass


# ---- nothing leads from TLS to none


@pytest.mark.rule("T-2", "D-1", "D-2", "D-3")
def test_a_session_over_tls_is_never_led_to_http(secure: LoopbackNode, node: LoopbackNode, ours: Authority) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        connect(secure, seeds=[node.uri], ca_file=ours.file, **CREDENTIALS)
    with connect(secure, ca_file=ours.file, **CREDENTIALS) as session:
        secure.control("disposition", disposition="LeaderRedirect", leader="elsewhere", grpc_uri=node.uri, count=2)
        first = session.execute("CREATE SCHEMA first (id U32);", timeout=PATIENCE)
        secure.control("end", reason="LeaderRedirect", leader="elsewhere", grpc_uri=node.uri)
        second = session.execute("CREATE SCHEMA second (id U32);", timeout=PATIENCE)
        secure.control("cut", how="abort")
        # Nor when nobody over TLS is there.
        secure.control("node", node="node-1", state="stopped")
        with pytest.raises(nervix_ffi.DeadlineError):
            session.execute("CREATE SCHEMA third (id U32);", timeout=1.0)
        secure.control("node", node="node-1", state="running")
        third = session.execute("CREATE SCHEMA fourth (id U32);", timeout=PATIENCE)
        for outcome in (first, second, third):
            assert executed(secure, outcome.reference) == 1
    assert counts(node)["connections"]["opened"] == 0


@pytest.mark.rule("T-2", "D-1")
def test_a_session_without_tls_may_be_led_to_tls_and_then_holds_to_the_file(
    secure: LoopbackNode, node: LoopbackNode, ours: Authority, theirs: Authority
) -> None:
    redirect = {"disposition": "LeaderRedirect", "leader": "elsewhere", "grpc_uri": secure.uri}
    with connect(node, ca_file=ours.file, **CREDENTIALS) as session:
        node.control("disposition", **redirect)
        outcome = session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
        assert executed(secure, outcome.reference) == 1
        assert executed(node, outcome.reference) == 0
    before = counts(secure)["sessions"]["opened"]
    with connect(node, ca_file=theirs.file, retry_timeout=0.5, **CREDENTIALS) as session:
        node.control("disposition", **redirect, count=1000)
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            session.execute("CREATE SCHEMA other (id U32);", timeout=PATIENCE)
        assert "none of the authorities" in str(caught.value)
        untold(caught.value)
    assert counts(secure)["sessions"]["opened"] == before


# ---- the node


def test_the_node_says_what_is_wrong_with_its_certificate(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    chain, key = ours.issue("127.0.0.1")
    other = tmp_path / "other.pem"
    other.write_text("no PEM\n", encoding="ascii")
    _, strange = theirs.issue("127.0.0.1")
    for options, word in (
        ({"tls_cert": chain}, "come together"),
        ({"tls_cert": chain, "tls_key": other}, "other.pem"),
        ({"tls_cert": other, "tls_key": key}, "other.pem"),
        ({"tls_cert": tmp_path / "none.pem", "tls_key": key}, "none.pem"),
        ({"tls_cert": chain, "tls_key": strange}, "chain.pem"),
    ):
        with pytest.raises(LoopbackError, match=word):
            LoopbackNode(**options)  # type: ignore[arg-type]
