"""The model that is currently served, and its replacement when the champion changes."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flows.serving.models import Chosen, choose, files_of
from flows.serving.worker import Worker
from learning.generation.engines.slot_attention import explain_slot_misfit
from learning.models.policy import Policy, load_policy
from lineage.layout import Layout
from lineage.registry.champions import read_standing
from lineage.registry.registered import ALIAS
from schemas.errors import PlanError, PosttrainError, StepError

if TYPE_CHECKING:
    from flows.serving.canary import Canary

LOOK = 5.0
"""Seconds between checks of the champion."""


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a batch."""

    max_slots: int
    max_length: int | None
    """Most tokens of prompt and completion; None: the model's maximum length, at most 4096."""


@dataclass(frozen=True)
class Served:
    """A loaded model and its engine."""

    chosen: Chosen
    worker: Worker
    since: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """Name that clients use for the model."""
        return self.chosen.name

    @property
    def fingerprint(self) -> str:
        """Identifier of the weights; it changes whenever they change."""
        return f"posttrain-{self.chosen.digest[:12]}" if self.chosen.digest else "posttrain"

    def card(self) -> dict[str, object]:
        """Return the entry of the model in /v1/models."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.since,
            "owned_by": "posttrain",
            "root": self.chosen.description,
            "max_model_len": self.worker.max_length,
            "digest": self.chosen.digest,
        }


class Current:
    """The model for new requests; requests in progress end with the model that they started with."""

    def __init__(self, served: Served):
        self.served = served
        self.canary: Canary | None = None
        self.switching = threading.Lock()
        self.ending = threading.Event()
        self.watch: threading.Thread | None = None
        self.is_following = True
        """Whether the last look at the champion succeeded."""

    @property
    def failure(self) -> str | None:
        """Return why the endpoint needs an operator; None if it works. Details are printed, not sent to clients."""
        if not self.served.worker.thread.is_alive():
            return "the engine has ended"
        if self.watch is not None and not (self.is_following and self.watch.is_alive()):
            return "the champion cannot be followed; the served model may be an earlier one"
        return None if self.canary is None else self.canary.failure

    def follow(self, layout: Layout, limits: Limits, device: str, dtype: str, say: Callable[[str], None]) -> None:
        """Watch the champion in a separate thread, and switch to a new one."""
        self.watch = threading.Thread(target=self._watch, args=(layout, limits, device, dtype, say), daemon=True)
        self.watch.start()

    def close(self) -> None:
        """Stop watching, and stop the engine when no request is in progress."""
        self.ending.set()
        if self.canary is not None:
            self.canary.close()
        self.served.worker.close()

    def switch(self, new: Chosen, load_model: Callable[[Chosen], Served]) -> None:
        """Serve a new champion, which `load_model` loads unless it is the challenger of the canary."""
        with self.switching:
            before, canary = self.served, self.canary
            if new.digest == before.chosen.digest:
                return
            challenger = canary.challenger if canary is not None and canary.is_open else None
            if challenger is not None and challenger.chosen.digest == new.digest:
                self.served = replace(challenger, chosen=new)
            else:
                self.served = load_model(new)
            if canary is not None:
                canary.meet_champion(self.served)
            before.worker.close()

    def _watch(self, layout: Layout, limits: Limits, device: str, dtype: str, say: Callable[[str], None]) -> None:
        last: str | None = None
        while not self.ending.wait(LOOK):
            try:
                new, alarm = self._newer(layout)
                if new is not None:
                    self.switch(new, lambda new: load(new, limits, device, dtype))
                    say(f"now serving {new.description}")
                self.is_following = True
            except (PosttrainError, OSError, RuntimeError) as error:  # no MLflow, no memory: the old model stays
                self.is_following = False
                alarm = f"still serving {self.served.chosen.description}: {error}"
            if alarm not in (None, last):
                say(str(alarm))
            last = alarm

    def _newer(self, layout: Layout) -> tuple[Chosen | None, str | None]:
        """Return the champion by the audit log if it is not the served model, and an alarm, if any."""
        here = read_standing(layout, str(self.served.chosen.alias))
        if here.champion is None:
            raise PlanError(f"the audit log no longer has a champion of {here.name}; see: posttrain champions")
        alarm = f"ALARM {'; '.join(here.alarms)}; see: posttrain champions {here.name}" if here.alarms else None
        if here.champion.digest == self.served.chosen.digest:
            return None, alarm
        return choose(f"mlflow:{here.name}@{ALIAS}", layout, self.served.name), alarm


def load(chosen: Chosen, limits: Limits, device: str, dtype: str) -> Served:
    """Return a loaded model with a running engine.

    Raise StepError if it does not load, its files changed meanwhile, or attention over slots is not exact for it.
    """
    policy = load_policy(chosen.folder, device=device, dtype=dtype)
    _own_weights(policy)
    if chosen.files and files_of(chosen.folder) != chosen.files:
        raise StepError(f"{chosen.description}: its files changed after they were verified; start again")
    if limits.max_length is not None and limits.max_length > policy.max_length:
        raise StepError(f"--max-length {limits.max_length}: {chosen.name} supports at most {policy.max_length} tokens")
    if reason := explain_slot_misfit(policy.model):
        raise StepError(f"{chosen.name}: engine torch cannot serve it exactly ({reason}); use --engine vllm")
    longest = limits.max_length or min(policy.max_length, 4096)
    return Served(chosen, Worker(policy, max_slots=limits.max_slots, max_length=longest))


def _own_weights(policy: Policy) -> None:
    """Copy weights that are memory-mapped from their file: a later write to the file would change the served model."""
    for weight in policy.model.state_dict(keep_vars=True).values():
        if weight.device.type == "cpu":
            weight.data = weight.data.clone()
