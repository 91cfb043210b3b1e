"""Messages about a run to the webhooks of its recipe (`notify:`), sent beside the run, which never waits for them."""

import json
import queue
import threading
import urllib.request
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from flows.execution.events import Event, StepEvent
from flows.execution.run_log import append_event
from flows.execution.states import describe_gate_ends, split_gates
from flows.processes.secret_values import resolve_references
from lineage.layout import Layout
from schemas.errors import PlanError, StepError
from schemas.notify import Occasion
from schemas.plan import Plan

SEND_LIMIT = 10.0
"""Seconds in which a webhook must answer."""
BLOCK = "prefect:"
PREFECT = "events of Prefect"
FAILED = ("gate failed:", "gate rejected:", "gate warned:", "gate branched:")
WAITS = "gate waits for approval:"


Emit = Callable[[Occasion, str], str]
"""Sends an event to Prefect's server; returns why that failed, empty if it did not."""


class Alerts:
    """A reporter that sends messages from a thread of its own; what could not be sent is in the run's events."""

    def __init__(self, plan: Plan, layout: Layout, run: str, emit: Emit | None = None):
        self.plan, self.layout, self.run, self.emit = plan, layout, run, emit
        self.messages: queue.SimpleQueue[tuple[Occasion, str] | None] = queue.SimpleQueue()
        self.waiting: set[str] = set()
        """Steps whose waiting gates were reported."""
        self.gates: dict[str, str] = {}
        """The latest text of each step's gates."""
        self.thread = threading.Thread(target=self._send_all, name="alerts", daemon=True)

    def __enter__(self) -> "Alerts":
        """Start the thread."""
        if self.plan.notify or self.emit:
            self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait until all messages were sent or failed, as long as each may take."""
        if self.thread.is_alive():
            self.messages.put(None)
            self.thread.join(2 * SEND_LIMIT * (len(self.plan.notify) + 1))

    def report(self, event: Event) -> None:
        """Queue the messages about an event."""
        if not self.plan.notify and not self.emit:
            return
        if event["type"] == "run" and event["state"] == "ended":
            ends = {0: "ended well", 1: "a step failed", 2: describe_gate_ends(self.gates.values()), 130: "was stopped"}
            self.messages.put(("end", ends.get(event.get("exit_code", 1), "failed")))
        elif event["type"] == "step":
            self.gates[event["step"]] = event.get("gates", "")
            for message in self._describe_gates(event):
                self.messages.put(message)

    def refuse_promotion(self, text: str) -> None:
        """Queue the message that a promotion was refused."""
        self.messages.put(("refused_promotion", text))

    def _describe_gates(self, event: StepEvent) -> Iterator[tuple[Occasion, str]]:
        step, parts = event["step"], split_gates(event.get("gates", ""))
        waits = event["state"] == "waiting" or any(part.startswith(WAITS) for part in parts)
        if waits and step not in self.waiting:
            self.waiting.add(step)
            yield "waiting_approval", f"{step} waits for approval; posttrain approve {self.run} {step}"
        if event["state"] != "waiting" and (failed := [part for part in parts if part.startswith(FAILED)]):
            yield "failed_gate", f"{step}: {'; '.join(failed)}"

    def _send_all(self) -> None:
        while (message := self.messages.get()) is not None:
            occasion, text = message
            if self.emit and occasion != "end":  # Prefect has events of its own for the ends of runs
                self._note(occasion, PREFECT, self.emit(occasion, text))
            for notify in self.plan.notify:
                if occasion in notify.on:
                    error = send_message(notify.to, f"{self.plan.recipe}, run {self.run}: {text}")
                    self._note(occasion, notify.to, error)

    def _note(self, occasion: Occasion, to: str, error: str) -> None:
        sent = {"type": "alert", "on": occasion, "to": to, "error": error}
        append_event(self.layout.run(self.run) / "events.jsonl", sent)


def verify_addresses(plan: Plan) -> None:
    """Raise PlanError if an environment variable that `notify` refers to is not set or holds no web address."""
    for notify in plan.notify:
        if notify.to.startswith(BLOCK):
            continue  # the server that holds it may not have been started yet
        try:
            _check_address(_find_address(notify.to))
        except (StepError, ValueError) as error:
            raise PlanError(f"notify: {error}") from error


def send_message(to: str, text: str) -> str:
    """Send a message to a webhook; return why that failed, empty if it did not. The address is never in the text."""
    try:
        address = _check_address(_find_address(to))
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SEND_LIMIT):
            return ""
    except Exception as error:  # of Prefect, of the network: the run goes on
        return f"{to}: {getattr(error, 'reason', None) or type(error).__name__}"


def _check_address(address: str) -> str:
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError("the address of the webhook must begin with https:// or http://")
    return address


def _find_address(to: str) -> str:
    if not to.startswith(BLOCK):
        return resolve_references(to)
    from prefect.blocks.core import Block  # seconds of import

    block: Any = Block.load(to.removeprefix(BLOCK))  # outside of an event loop the block, and no coroutine
    secret = block.get() if hasattr(block, "get") else block.url
    return secret.get_secret_value() if hasattr(secret, "get_secret_value") else str(secret)
