"""What goes wrong: a fault a second, chosen by the seed alone, and undone after a while."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from nervix_ffi.testing import LoopbackError, LoopbackNode

from .books import Books
from .graph import BEAT, DOMAIN, INGESTOR

#: Seconds between two faults.
PACE = 1.0
#: Armed faults that nothing met, and requests that are held, are let go after this many faults.
CLEARING = 8

HOW: list[dict[str, Any]] = [
    {"how": "close"},
    {"how": "abort"},
    {"how": "reset", "code": 8},
    {"how": "reset", "code": 2},
    {"how": "goaway", "code": 0},
    {"how": "goaway", "code": 11},
    {"how": "status", "code": 14},
    {"how": "status", "code": 0},
]

REQUESTS = [
    "CommandRequest",
    "SubscribeRequest",
    "UnsubscribeRequest",
    "AttachTransactionRequest",
    "AttachDomainClockRequest",
    "DetachDomainClockRequest",
    "OpenIngestorRequest",
    "SubmitBatchRequest",
    "CloseIngestorRequest",
    "OpenEmitterRequest",
    "ReadEmitterBatchRequest",
    "SettleEmitterBatchRequest",
    "CloseEmitterRequest",
    "CancelRequest",
]

FRAMES = [
    "CommandOutcome",
    "SubscribeOutcome",
    "UnsubscribeOutcome",
    "AttachOutcome",
    "DomainClockAttachOutcome",
    "OpenIngestorOutcome",
    "SubmissionOutcome",
    "OpenEmitterOutcome",
    "ReadEmitterBatchOutcome",
    "SettleEmitterBatchOutcome",
    "CancelOutcome",
    "SubscriptionRows",
    "LeadershipObserved",
    "DomainsObserved",
    "DomainClockObserved",
    "DomainClockTicked",
    "ProducerAdmissionChanged",
]

CORRUPTIONS = [
    "identifier",
    "root_offset",
    "vtable",
    "union_tag",
    "union_none",
    "enum",
    "required",
    "utf8",
    "oversize",
    "truncated",
    "short",
]

BAD_PARTS = [
    "other_request",
    "other_total",
    "total_above_limit",
    "first_offset",
    "offset_gap",
    "empty_chunk",
    "overrun",
    "malformed",
]

#: Answers in place of a request's own that are no lie, with or without the request being carried out.
NOT_DONE: list[tuple[str, str]] = [
    ("SubmitBatchRequest", "Busy"),
    ("SubmitBatchRequest", "Suspended"),
    ("SettleEmitterBatchRequest", "StaleReference"),
    ("ReadEmitterBatchRequest", "EmitterConsumerEnded"),
    ("AttachDomainClockRequest", "RequestFailed"),
    ("DetachDomainClockRequest", "RequestFailed"),
    ("OpenIngestorRequest", "EndpointUnavailable"),
    ("OpenEmitterRequest", "EndpointUnavailable"),
]
PERHAPS_DONE: list[tuple[str, str]] = [
    ("SubmitBatchRequest", "AckTimedOut"),
    ("SubmitBatchRequest", "Rejected"),
    ("SubmitBatchRequest", "Interrupted"),
    ("SubmitBatchRequest", "OwnerLost"),
]


class Faults:
    """The thread that makes things go wrong."""

    def __init__(self, node: LoopbackNode, books: Books, seed: int) -> None:
        self._node = node
        self._books = books
        self._dice = random.Random(f"faults {seed}")
        self._names = list(node.nodes)
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._kinds: list[Callable[[], str]] = [
            self._cut,
            self._cut,
            self._cut_at_a_frame,
            self._cut_at_a_frame,
            self._cut_at_a_frame,
            self._end,
            self._move_leader,
            self._move_leader,
            self._no_leader,
            self._stop_a_node,
            self._refuse_connections,
            self._unavailable,
            self._delay,
            self._delay,
            self._hold,
            self._drop_a_reply,
            self._drop_a_reply,
            self._reject,
            self._refuse_subscriptions,
            self._unknown_outcome,
            self._redirect_to_nobody,
            self._wrong_reference,
            self._answer,
            self._answer,
            self._suspend,
            self._end_an_endpoint,
            self._describe_otherwise,
            self._corrupt,
            self._corrupt,
            self._parts,
            self._silence,
            self._freeze,
            self._restart_the_clock,
            self._transaction,
        ]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the faults, and undoes what is not undone."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            due = time.monotonic()
            for number in range(1, 1 << 62):
                due += PACE
                while (wait := due - time.monotonic()) > 0:
                    if self._over.wait(min(wait, 0.05)):
                        return
                    self._undo_what_is_due(time.monotonic())
                if number % CLEARING == 0:
                    self._ask("clear")
                self._books.fault(self._dice.choice(self._kinds)())
        except BaseException as failure:
            self._books.wrong(f"the faults ended: {failure!r}")
        finally:
            self._undo_what_is_due(float("inf"))
            self._ask("clear")

    def _undo_what_is_due(self, now: float) -> None:
        due = [undo for at, undo in self._undo if at <= now]
        self._undo = [(at, undo) for at, undo in self._undo if at > now]
        for undo in due:
            undo()

    def _later(self, action: str, /, most: float = 3.0, **body: Any) -> None:
        self._undo.append((time.monotonic() + self._dice.uniform(0.2, most), lambda: self._ask(action, **body)))

    def _ask(self, action: str, /, **body: object) -> None:
        self._node.control(action, **body)

    # ---- each returns its name

    def _cut(self) -> str:
        scope = self._dice.choice([{}, {"node": self._dice.choice(self._names)}])
        self._ask("cut", **self._dice.choice(HOW), **scope)
        return "cut"

    def _cut_at_a_frame(self) -> str:
        direction = self._dice.choice(["in", "out"])
        kind = self._dice.choice(REQUESTS if direction == "in" else FRAMES)
        when, how, nth = self._dice.choice(["before", "after"]), self._dice.choice(HOW), self._dice.randint(1, 4)
        self._ask("cut", direction=direction, kind=kind, when=when, nth=nth, **how)
        return f"cut {when} a frame"

    def _end(self) -> str:
        reason = self._dice.choice(["ServerShuttingDown", "ProtocolViolated", "LeaderRedirect"])
        leader = {"leader": self._dice.choice(self._names)} if reason == "LeaderRedirect" else {}
        self._ask("end", reason=reason, **leader)
        return "end"

    def _move_leader(self) -> str:
        self._ask("leader", leader=self._dice.choice(self._names))
        return "leader moves"

    def _no_leader(self) -> str:
        self._ask("leader", leader=None)
        self._later("leader", most=2.0, leader=self._dice.choice(self._names))
        return "no leader"

    def _stop_a_node(self) -> str:
        name = self._dice.choice(self._names)
        self._ask("node", node=name, state="stopped")
        self._later("node", node=name, state="running")
        # A leader that stopped leads again when it comes back to none.
        if self._dice.random() < 0.5:
            self._ask("leader", leader=self._dice.choice([other for other in self._names if other != name]))
        return "node stops"

    def _refuse_connections(self) -> str:
        mode, everywhere = self._dice.choice(["refuse", "stall"]), self._dice.random() < 0.3
        scope: dict[str, Any] = {} if everywhere else {"node": self._dice.choice(self._names)}
        self._ask("accept", mode=mode, **scope)
        self._later("accept", mode="accept", **scope)
        self._ask("cut", how="abort", **scope)
        return "connections refused" if mode == "refuse" else "connections stalled"

    def _unavailable(self) -> str:
        self._ask("auth", answer="unavailable", count=self._dice.randint(1, 3))
        self._ask("cut", how="abort")
        return "unavailable"

    def _delay(self) -> str:
        kind, when = self._dice.choice(REQUESTS[:-1]), self._dice.choice(["before", "after"])
        self._ask("delay", kind=kind, when=when, millis=self._dice.randint(1, 800), count=self._dice.randint(1, 4))
        return "delay"

    def _hold(self) -> str:
        kind, when = self._dice.choice(REQUESTS[:-1]), self._dice.choice(["before", "after"])
        self._ask("delay", kind=kind, when=when, count=self._dice.randint(1, 2))
        self._later("release")
        return "held until released"

    def _drop_a_reply(self) -> str:
        self._ask("drop_reply", kind=self._dice.choice(REQUESTS[:-1]))
        return "reply dropped"

    def _reject(self) -> str:
        reason = self._dice.choice(["TooManyRequestsInFlight", "ServerBusy", "ReplyTooLarge"])
        kind = "CommandRequest" if reason == "ReplyTooLarge" else self._dice.choice(["CommandRequest", "SubscribeRequest"])
        self._ask("reject", kind=kind, reason=reason, count=self._dice.randint(1, 2))
        return "rejected"

    def _refuse_subscriptions(self) -> str:
        self._ask("refuse_subscribe", count=self._dice.randint(1, 2))
        self._ask("cut", how="abort")
        return "subscription refused"

    def _unknown_outcome(self) -> str:
        cause = self._dice.choice(["LeadershipLost", "StillApplying", "NotYetAuthoritative"])
        count, execute = self._dice.randint(1, 3), self._dice.random() < 0.5
        self._ask("disposition", disposition="OutcomeUnknown", cause=cause, execute=execute, count=count)
        return "outcome unknown"

    def _redirect_to_nobody(self) -> str:
        where = self._dice.choice(
            [{}, {"leader": "elsewhere", "grpc_uri": ""}, {"leader": "elsewhere", "grpc_uri": "http://127.0.0.1:1"}]
        )
        self._ask("disposition", disposition="LeaderRedirect", count=self._dice.randint(1, 2), **where)
        return "redirect to nobody"

    def _wrong_reference(self) -> str:
        self._ask("wrong_reference", reference="0199aaaa-0000-7000-8000-000000000000")
        return "wrong reference"

    def _answer(self) -> str:
        execute = self._dice.random() < 0.5
        kind, answer = self._dice.choice(NOT_DONE + 2 * PERHAPS_DONE)
        body = {"execute": execute} if (kind, answer) in PERHAPS_DONE else {}
        self._ask("answer", **{"kind": kind, "with": answer, "count": self._dice.randint(1, 2), **body})
        return "answer forced"

    def _suspend(self) -> str:
        self._ask("suspend", domain=DOMAIN, ingestor=INGESTOR)
        self._later("resume", most=1.0, domain=DOMAIN, ingestor=INGESTOR)
        return "ingestor suspended"

    def _end_an_endpoint(self) -> str:
        if self._dice.random() < 0.5:
            self._ask("end_consumer")
            return "consumers ended"
        self._ask("end_producer", reason=self._dice.choice(["Relocated", "OwnerLost"]))
        return "producers ended"

    def _describe_otherwise(self) -> str:
        kind = self._dice.choice(["OpenIngestorRequest", "OpenEmitterRequest"])
        self._ask("describe_otherwise", kind=kind, change=self._dice.choice(["Generation", "Contract", "AckTimeout"]))
        self._ask("cut", how="abort")
        return "endpoint described otherwise"

    def _corrupt(self) -> str:
        self._ask("corrupt", what=self._dice.choice(CORRUPTIONS), kind=self._dice.choice(FRAMES))
        return "frame corrupted"

    def _parts(self) -> str:
        if self._dice.random() < 0.5:
            self._ask("parts", bytes=self._dice.randint(1, 40), notices=True, count=3)
            return "reply in parts"
        self._ask("parts", bad=self._dice.choice(BAD_PARTS))
        return "reply in bad parts"

    def _silence(self) -> str:
        scope = self._dice.choice([{}, {"node": self._dice.choice(self._names)}])
        self._ask("silence", **scope)
        self._later("silence", most=6.0, silent=False, **scope)
        return "connections silent"

    def _freeze(self) -> str:
        os.kill(self._node.pid, signal.SIGSTOP)
        try:
            time.sleep(self._dice.uniform(0.1, 2.0))
        finally:
            os.kill(self._node.pid, signal.SIGCONT)
        return "everything frozen"

    def _restart_the_clock(self) -> str:
        if self._dice.random() < 0.5:
            self._ask("clock_installed", domain=BEAT, installed=False)
            self._later("clock_installed", most=1.0, domain=BEAT, installed=True)
            return "clock not installed"
        self._ask("execute", domain=BEAT, statement="STOP;")
        self._ask("execute", domain=BEAT, statement="START;")
        return "clock started anew"

    def _transaction(self) -> str:
        action = self._dice.choice(["detach", "detach", "expire", "take_over"])
        try:
            self._ask("transaction", action=action)
        except LoopbackError:
            return "no transaction to disturb"
        return f"transaction: {action}"
