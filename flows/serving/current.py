"""What is served at the moment, and how it changes when the champion does."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flows.serving.models import Chosen, choose, files_of
from flows.serving.worker import Worker
from learning.generation.engines.slot_check import explain_slot_misfit
from learning.models.policy import Policy, load_policy
from lineage.champions import standing
from lineage.layout import Layout
from lineage.registered import ALIAS
from schemas.errors import PlanError, PosttrainError, StepError

LOOK = 5.0
"""Seconds between looks at the alias."""


@dataclass(frozen=True)
class Limits:
    """How much at once."""

    max_slots: int
    max_length: int | None
    """Tokens of prompt and completion; None: the model's, at most 4096."""


@dataclass(frozen=True)
class Served:
    """A loaded model and its engine."""

    chosen: Chosen
    worker: Worker
    since: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.chosen.name

    @property
    def fingerprint(self) -> str:
        """Which weights answer: changes when they do."""
        return f"posttrain-{self.chosen.digest[:12]}" if self.chosen.digest else "posttrain"

    def card(self) -> dict[str, Any]:
        """As /v1/models shows it."""
        return {
            "id": self.name, "object": "model", "created": self.since, "owned_by": "posttrain",
            "root": self.chosen.said, "max_model_len": self.worker.max_length, "digest": self.chosen.digest,
        }  # fmt: skip


class Current:
    """The model that new requests get; those under way end with the one that they began with."""

    def __init__(self, served: Served):
        self.served = served
        self.ending = threading.Event()

    def follow(self, layout: Layout, limits: Limits, device: str, dtype: str, say: Callable[[str], None]) -> None:
        """Watch the alias in a thread of its own, and change over when it moves."""
        watch = threading.Thread(target=self._watch, args=(layout, limits, device, dtype, say), daemon=True)
        watch.start()

    def close(self) -> None:
        """Stop watching, and the engine when nothing is under way."""
        self.ending.set()
        self.served.worker.close()

    def _watch(self, layout: Layout, limits: Limits, device: str, dtype: str, say: Callable[[str], None]) -> None:
        last: str | None = None
        while not self.ending.wait(LOOK):
            try:
                new, alarm = self._newer(layout)
                if new is not None:
                    before, self.served = self.served, load(new, limits, device, dtype)
                    before.worker.close()
                    say(f"now serving {new.said}")
            except (PosttrainError, OSError, RuntimeError) as error:  # no MLflow, no memory: the old one goes on
                alarm = f"still serving {self.served.chosen.said}: {error}"
            if alarm not in (None, last):
                say(str(alarm))
            last = alarm

    def _newer(self, layout: Layout) -> tuple[Chosen | None, str | None]:
        """The champion of the audit log, where it is another than the one that is served, and an alarm, if any."""
        here = standing(layout, str(self.served.chosen.alias))
        if here.champion is None:
            raise PlanError(f"the audit log knows no champion of {here.name} any more; see: posttrain champions")
        alarm = f"ALARM {'; '.join(here.alarms)}; see: posttrain champions {here.name}" if here.alarms else None
        if here.champion.digest == self.served.chosen.digest:
            return None, alarm
        return choose(f"mlflow:{here.name}@{ALIAS}", layout, self.served.name), alarm


def load(chosen: Chosen, limits: Limits, device: str, dtype: str) -> Served:
    """Load a model and start its engine. Raises StepError when it cannot be.

    That is: it does not load, its files changed meanwhile, or attention over slots is not exact for it.
    """
    policy = load_policy(chosen.folder, device=device, dtype=dtype)
    _own_weights(policy)
    if chosen.files and files_of(chosen.folder) != chosen.files:
        raise StepError(f"{chosen.said}: its files changed after they were verified; start again")
    if limits.max_length is not None and limits.max_length > policy.max_length:
        raise StepError(f"--max-length {limits.max_length}: {chosen.name} was made for {policy.max_length} tokens")
    if reason := explain_slot_misfit(policy.model):
        raise StepError(f"{chosen.name}: engine torch cannot serve it exactly ({reason}); give --engine vllm")
    longest = limits.max_length or min(policy.max_length, 4096)
    return Served(chosen, Worker(policy, max_slots=limits.max_slots, max_length=longest))


def _own_weights(policy: Policy) -> None:
    """Copy weights that are the file's own pages in memory: who writes to the file later would change what answers."""
    for weight in policy.model.state_dict(keep_vars=True).values():
        if weight.device.type == "cpu":
            weight.data = weight.data.clone()
