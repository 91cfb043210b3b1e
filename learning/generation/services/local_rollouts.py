"""Generation beside training in one process: a service in a thread, with weights of its own."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from learning.generation.engines.making import engine_of
from learning.generation.services.rollout_service import Ended, RolloutService
from learning.models.policy import Policy
from learning.samples.engine_protocol import FlyingEngine, Request, Sampling
from schemas.errors import StepError
from schemas.use import EngineUse


class LocalRollouts:
    """A service whose engine samples with a copy of the policy: the trainer may change its own at any time."""

    def __init__(
        self, use: EngineUse, policy: Policy, around: Callable[[FlyingEngine], FlyingEngine] | None = None
    ) -> None:
        """`around` makes of the engine the one that samples. Raises StepError where it cannot generate step by step."""
        self.policy = policy
        self.copy = Policy(copy.deepcopy(policy.model).requires_grad_(False), policy.tokenizer, policy.max_length)
        engine: Any = engine_of(use, self.copy)
        if not isinstance(engine, FlyingEngine):
            raise StepError(
                f"engine {use.use}: cannot go on while the policy is trained (it has no `flight`); "
                "take `engine: torch` or `vllm`, or a rollout function that samples all at once: `rollout: synchronous`"
            )
        self.engine: Any = engine if around is None else around(engine)
        self.service = RolloutService(self.engine, self._take, self.copy)

    def start(self) -> None:
        """Go on by itself from now on. Raises StepError for an engine whose time is counted in decode steps."""
        if getattr(self.engine, "exact", False):
            raise StepError("env: decode_seconds counts decode steps, this drive real time: give it steps_per_update")
        if self.service.thread is None:
            self.service.start()

    def turn(self) -> bool:
        """One decode step, where it does not go on by itself."""
        return self.service.turn()

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        self.service.submit(requests, sampling)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Completions that ended."""
        return self.service.collect(wait_s)

    def suspend(self) -> list[Ended]:
        """Take everything out."""
        return self.service.suspend()

    def sync(self, version: int, *, each: bool = False) -> None:
        """Take the policy's weights as they are now, between two decode steps; returns when they are there.

        There is no other service that could go on meanwhile: `each` changes nothing.
        """
        self.service.load(version)

    def stats(self) -> list[dict[str, float]]:
        """What the service tells of itself."""
        return [self.service.stats()]

    def close(self) -> None:
        """End the thread."""
        self.service.close()
        if hasattr(self.engine, "close"):
            self.engine.close()

    @torch.no_grad()
    def _take(self, version: int) -> None:
        theirs = dict(self.policy.model.named_parameters())
        for name, mine in self.copy.model.named_parameters():
            mine.copy_(theirs[name])
        self.engine.sync(version)
