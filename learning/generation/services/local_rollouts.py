"""Asynchronous generation in the trainer's process: a rollout service in a thread, with its own copy of the weights."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from learning.generation.services.rollout_service import Ended, RolloutService
from learning.lookup import build
from learning.models.policy import Policy
from learning.samples.engine_protocol import FlyingEngine, Request, Sampling
from schemas.errors import StepError
from schemas.use import EngineUse


class LocalRollouts:
    """A service whose engine samples with a copy of the policy, so that the trainer may change its own at any time."""

    def __init__(
        self, use: EngineUse, policy: Policy, around: Callable[[FlyingEngine], FlyingEngine] | None = None
    ) -> None:
        """Wrap the engine by `around`; raise StepError if the engine cannot generate step by step."""
        self.policy = policy
        self.copy = Policy(copy.deepcopy(policy.model).requires_grad_(False), policy.tokenizer, policy.max_length)
        engine: Any = build(use, self.copy)
        if not isinstance(engine, FlyingEngine):
            raise StepError(
                f"engine {use.use}: it cannot generate while the policy is trained (it has no `flight`); "
                "use `engine: torch` or `vllm`, or the rollout `synchronous`"
            )
        self.engine: Any = engine if around is None else around(engine)
        self.service = RolloutService(self.engine, self._take, self.copy)

    def start(self) -> None:
        """Start the thread; raise StepError if the engine's time is counted in decode steps."""
        if getattr(self.engine, "exact", False):
            raise StepError(
                "env: decode_seconds counts decode steps, but this rollout runs in real time; set its steps_per_update"
            )
        if self.service.thread is None:
            self.service.start()

    def turn(self) -> bool:
        """Decode one step; for use without the thread."""
        return self.service.turn()

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        self.service.submit(requests, sampling)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return the completions that have ended."""
        return self.service.collect(wait_s)

    def suspend(self) -> list[Ended]:
        """Take all completions out and return them."""
        return self.service.suspend()

    def sync(self, version: int, *, each: bool = False) -> None:
        """Copy the policy's current weights between two decode steps; return when they are in place.

        There is only one service, so `each` has no effect.
        """
        self.service.load(version)

    def stats(self) -> list[dict[str, float]]:
        """Return the service's statistics."""
        return [self.service.stats()]

    def close(self) -> None:
        """End the thread."""
        self.service.close()
        if hasattr(self.engine, "close"):
            self.engine.close()

    @torch.no_grad()
    def _take(self, version: int) -> None:
        current = dict(self.policy.model.named_parameters())
        for name, parameter in self.copy.model.named_parameters():
            parameter.copy_(current[name])
        self.engine.sync(version)
