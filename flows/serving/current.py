"""What is served at the moment, and how it changes when the champion does."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flows.serving.models import Chosen, choose
from flows.serving.worker import Worker
from learning.models.policy import load_policy
from lineage.champions import ALIAS, champion
from lineage.layout import Layout
from schemas.errors import PosttrainError, StepError

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
        told = ""
        while not self.ending.wait(LOOK):
            try:
                if (new := self._newer(layout)) is not None:
                    before, self.served = self.served, load(new, limits, device, dtype)
                    before.worker.close()
                    say(f"now serving {new.said}")
                told = ""
            except (PosttrainError, OSError, RuntimeError) as error:  # no MLflow, no memory: the old one goes on
                if str(error) != told:
                    told = str(error)
                    say(f"still serving {self.served.chosen.said}: {told}")

    def _newer(self, layout: Layout) -> Chosen | None:
        """The champion, where it is another than the one that is served."""
        now = champion(layout, str(self.served.chosen.alias))
        if now is None or now.digest == self.served.chosen.digest:
            return None
        return choose(f"mlflow:{now.name}@{ALIAS}", layout, self.served.name)


def load(chosen: Chosen, limits: Limits, device: str, dtype: str) -> Served:
    """Load a model and start its engine. Raises StepError when it cannot be loaded."""
    policy = load_policy(chosen.folder, device=device, dtype=dtype)
    if limits.max_length is not None and limits.max_length > policy.max_length:
        raise StepError(f"--max-length {limits.max_length}: {chosen.name} was made for {policy.max_length} tokens")
    longest = limits.max_length or min(policy.max_length, 4096)
    return Served(chosen, Worker(policy, max_slots=limits.max_slots, max_length=longest))
