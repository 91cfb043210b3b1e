"""A canary: a share of the clients gets a challenger's responses until feedback decides between it and the champion."""

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from flows.champions.promotion import check_promotable, promote_step
from flows.serving.canary_gate import CanaryGate, Look, is_due, look
from flows.serving.current import Current, Limits, Served, load
from flows.serving.feedback import ARMS, FALLBACK, Arm, FeedbackFile
from flows.serving.models import Chosen, choose
from lineage.audit import log as audit_log
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.registry.registered import ALIAS
from schemas.base import JsonObject
from schemas.errors import PlanError, PosttrainError

State = Literal["running", "passed", "promoted", "stopped"]
STATES: tuple[State, ...] = ("running", "passed", "promoted", "stopped")
FAILURES_IN_A_ROW = 10
"""Responses in a row that the challenger may fail to give before the canary stops without waiting for feedback."""
POINTS = 2**64


@dataclass(frozen=True)
class CanaryOptions:
    """What the command line says about a canary."""

    share: float
    challenger: Chosen
    gate: CanaryGate
    evaluation: str | None
    """Step or key of an evaluation whose gates the challenger passed, by which a canary that passes promotes it."""


@dataclass(frozen=True)
class Route:
    """Which model answers a client's request."""

    arm: Arm
    client: str
    """The client as a hash."""


class Canary:
    """Routes clients, takes feedback, and decides. Its methods may be called from any thread."""

    def __init__(
        self,
        current: Current,
        challenger: Served,
        options: CanaryOptions,
        layout: Layout,
        say: Callable[[str], None],
        lock: FileLock,
    ):
        self.current, self.champion, self.challenger, self.lock = current, current.served, challenger, lock
        self.options, self.layout, self.say = options, layout, say
        self.name = str(current.served.chosen.alias)
        self.file = FeedbackFile(feedback_file(layout, self.champion.chosen, challenger.chosen), self._rules())
        self.looks = self.file.read_looks()
        self.state: State = "running"
        self.reason = ""
        self.answered: dict[tuple[str, str], int] = {}
        """Responses by arm and outcome (`ok`, `failed`) since this process started; an arm may be `fallback`."""
        self.failures = 0
        self.problem: str | None = None
        """Why feedback could not be recorded the last time; None if it could."""
        self.deciding = threading.Lock()

    def start(self) -> None:
        """Record the start; continue what was decided before a restart. Raise PlanError for a stopped canary."""
        decision = self.file.read_fact("decision")
        if decision and decision["state"] == "stopped":
            raise PlanError(f"this canary was stopped: {decision['reason']}; to start again move {self.file.file} away")
        audit_log.append(self.layout, "canary started", **self._facts(), share=self.options.share)
        if decision:
            self.state, self.reason = "passed", decision["reason"]
            self._promote()

    def close(self) -> None:
        """End the challenger's engine when no request is in progress."""
        self.challenger.worker.close()
        self.file.close()
        self.lock.release()

    @property
    def failure(self) -> str | None:
        """Return why an operator is needed, or None."""
        return self.problem

    @property
    def is_open(self) -> bool:
        """Return whether clients are routed to the challenger."""
        return self.state in ("running", "passed")

    def route(self, client: str) -> Route:
        """Return the model for a client: always the same one, and the challenger for `share` of all clients."""
        hashed = self.file.hash_client(client)
        if self.is_open and not self.challenger.worker.thread.is_alive():
            self.stop("the engine of the challenger has ended")
        is_chosen = int(hashed[:16], 16) / POINTS < self.options.share
        return Route("challenger" if is_chosen and self.is_open else "champion", hashed)

    def record(self, response: str, arm: str, client: str) -> None:
        """Record a response that a client is about to receive."""
        self.answered[arm, "ok"] = self.answered.get((arm, "ok"), 0) + 1
        if arm == "challenger":
            self.failures = 0
        self._write(lambda: self.file.record(response, arm, client))

    def fail(self, response: str, route: Route, error: Exception) -> None:
        """Count a response that a model failed to give as a score of 0."""
        if not self.is_open:
            return
        self.answered[route.arm, "failed"] = self.answered.get((route.arm, "failed"), 0) + 1
        self._write(lambda: self.file.fail(response, route.arm, route.client))
        if route.arm == "challenger":
            self.say(f"the challenger failed, and the champion answers: {type(error).__name__}: {error}")
            self.failures += not isinstance(error, TimeoutError)
            if self.failures >= FAILURES_IN_A_ROW:
                self.stop(f"the challenger failed {self.failures} times in a row: {type(error).__name__}: {error}")
        self._decide()

    def rate(self, response: str, score: float) -> bool | None:
        """Take feedback; return whether it counts, None if this canary gave no such response. Raise sqlite3.Error."""
        counts: list[bool | None] = []
        self._write(lambda: counts.append(self.file.rate(response, score)), raising=True)
        self._decide()
        return counts[0]

    def stop(self, reason: str) -> None:
        """End the canary: all clients get the champion. The decision and its reason are kept."""
        with self.deciding:
            if self.state in ("stopped", "promoted"):
                return
            self.state, self.reason = "stopped", reason
        self._keep_decision("canary stopped")

    def meet_champion(self, served: Served) -> None:
        """Take notice of a new champion, which ends the canary: its feedback compares with another one."""
        if served.chosen.digest == self.challenger.chosen.digest:
            with self.deciding:
                self.state = "promoted"
        elif served.chosen.digest != self.champion.chosen.digest:
            self.stop(f"the champion is now {served.chosen.description}")

    def describe(self) -> str:
        """Return who gets the challenger's responses, as one line."""
        if self.state == "promoted":
            return "the canary passed, and its challenger is the champion now"
        percent = 100 * self.options.share
        return f"canary {self.state}: {percent:.4g}% of the clients get {self.challenger.chosen.description}"

    def facts(self) -> JsonObject:
        """Return the state of the canary as JSON, for operators."""
        arms = {}
        for arm, served in zip(ARMS, (self.champion, self.challenger), strict=True):
            means = self.file.means(arm)
            arms[arm] = {
                "model": served.chosen.description,
                "digest": served.chosen.digest,
                "samples": len(means),
                "score": float(means.mean()) if len(means) else None,
                "responses": self.answered.get((arm, "ok"), 0),
                "failures": self.answered.get((arm, "failed"), 0),
            }
        return {
            "object": "canary",
            "state": self.state,
            "reason": self.reason,
            "share": self.options.share if self.is_open else 0.0,
            "gate": asdict(self.options.gate),
            "next_look_at": self.options.gate.min_samples * (len(self.looks) + 1),
            "looks": [each.facts() for each in self.looks],
            "fallbacks": self.answered.get((FALLBACK, "ok"), 0),
            **arms,
        }

    def _rules(self) -> JsonObject:
        return {
            "champion": self.champion.chosen.digest,
            "challenger": self.options.challenger.digest,
            **asdict(self.options.gate),
        }

    def _facts(self) -> JsonObject:
        return {"model": self.name, "challenger_key": self.options.challenger.key, **self._rules()}

    def _write(self, write: Callable[[], object], raising: bool = False) -> None:
        """Write feedback; requests are answered also while that fails, and the health check reports it."""
        try:
            write()
            self.problem = None
        except sqlite3.Error as error:
            if self.problem is None:
                self.say(f"feedback cannot be recorded in {self.file.file}: {error}")
            self.problem = "feedback cannot be recorded"
            if raising:
                raise

    def _decide(self) -> None:
        """Look at the feedback if there is enough for another look, and decide."""
        with self.deciding:
            counts = [self.file.samples(arm) for arm in ARMS]
            if self.state != "running" or not is_due(self.options.gate, len(self.looks), counts[0], counts[1]):
                return
            made = look(self.options.gate, len(self.looks) + 1, self.file.means(ARMS[0]), self.file.means(ARMS[1]))
            self._write(lambda: self.file.add_look(made))
            self.looks.append(made)
            if made.verdict == "open":
                self.say(f"canary: {made.describe()}, no decision yet")
                return
            self.state, self.reason = made.verdict, made.describe()
        self._keep_decision(f"canary {made.verdict}", made)
        if made.verdict == "passed":
            threading.Thread(target=self._promote, name="canary-promotion", daemon=True).start()

    def _keep_decision(self, action: str, made: Look | None = None) -> None:
        if self.state == "stopped":
            self.challenger.worker.close()
        evidence = {"look": made.facts()} if made else {}
        self._write(lambda: self.file.write_fact("decision", {"state": self.state, "reason": self.reason, **evidence}))
        self.say(f"{action}: {self.reason}")
        try:
            audit_log.append(self.layout, action, **self._facts(), reason=self.reason, **evidence)
        except (PosttrainError, OSError) as error:
            self.say(f"the decision about the canary is not in the audit log: {error}")

    def _promote(self) -> None:
        """Promote the challenger by its evaluation and this canary, and serve it to all clients."""
        key = str(self.options.challenger.key)
        if self.options.evaluation is None:
            self.say(f"to make the challenger champion: posttrain promote {key[:16]} --gate STEP --name {self.name}")
            return
        live: dict[str, object] = {"canary": {"reason": self.reason, **self._rules()}}
        try:
            self.say(promote_step(self.layout, key, self.options.evaluation, self.name, live=live).text)
            self.current.switch(choose(f"mlflow:{self.name}@{ALIAS}", self.layout, self.champion.name), self._own)
        except (PosttrainError, OSError, RuntimeError) as error:
            by_hand = f"posttrain promote {key[:16]} --gate {self.options.evaluation} --name {self.name}"
            reason = f"the canary passed, and the challenger was not promoted: {error}"
            self.say(f"{reason}; a restart tries again; by hand: {by_hand}")

    def _own(self, new: Chosen) -> Served:
        raise PlanError(f"the champion is {new.description}, not the challenger")


def feedback_file(layout: Layout, champion: Chosen, challenger: Chosen) -> Path:
    """Return the file of the feedback about two models."""
    return layout.state / "canaries" / f"{digest_of([champion.alias, champion.digest, challenger.digest])[:16]}.sqlite"


def check_canary(champion: Chosen, options: CanaryOptions, layout: Layout) -> None:
    """Raise PlanError or GateError for a canary that could not end well."""
    challenger = options.challenger
    if champion.alias is None:
        raise PlanError("--canary compares with a champion: posttrain serve mlflow:NAME@champion --canary 10%")
    if not challenger.digest or challenger.key is None:
        raise PlanError(
            f"--challenger {challenger.description}: give a model of this checkout: a step, a key or mlflow:NAME@N"
        )
    if challenger.digest == champion.digest:
        raise PlanError(f"--challenger {challenger.description} is the champion already")
    if options.evaluation is not None:
        check_promotable(layout, challenger.key, options.evaluation)


def open_canary(
    current: Current,
    options: CanaryOptions,
    layout: Layout,
    limits: Limits,
    device: str,
    dtype: str,
    say: Callable[[str], None],
) -> None:
    """Load the challenger and begin, or continue, its canary.

    Raise PlanError if another process runs it, or it was stopped.
    """
    options = replace(options, challenger=replace(options.challenger, name=current.served.name))
    layout.make_state()
    file = feedback_file(layout, current.served.chosen, options.challenger)
    file.parent.mkdir(exist_ok=True)
    lock = FileLock(f"{file}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise PlanError(f"another process runs this canary: {file} is locked") from error
    try:
        say(f"loading the challenger {options.challenger.description}")
        current.canary = Canary(current, load(options.challenger, limits, device, dtype), options, layout, say, lock)
        current.canary.start()
    except BaseException:
        lock.release()
        raise
