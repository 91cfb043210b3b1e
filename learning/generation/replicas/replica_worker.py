"""What runs in a rollout worker: a policy loaded from its folder, an engine over it, and the service that clients ask.

An engine that generates step by step runs in a `RolloutService`; one that can only be called, as a client of a server
elsewhere, in `Calls`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learning.generation.engines.making import build_engine
from learning.generation.services.rescoring import compute_likelihoods
from learning.generation.services.rollout_service import RolloutService, Service
from learning.generation.weights.local import PolicyReceiver, read_weights
from learning.models.forwards import apply_compute_options
from learning.models.policy import Policy, load_policy
from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling
from schemas.training import Training
from schemas.use import EngineUse


class Calls:
    """A service over an engine that samples a whole batch per call: what is queued is sampled when it is asked for."""

    def __init__(self, engine: EngineProtocol, take: Callable[[Any], None], policy: Policy) -> None:
        self.engine, self.take, self.policy = engine, take, policy
        self.queued: list[tuple[int, Request, Sampling]] = []
        self.tokens, self.calls = 0, 0

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests."""
        self.queued += [(ticket, request, sampling) for ticket, request in requests]

    def collect(self, wait_s: float = 0.0) -> list[tuple[int, Generation]]:
        """Completions of all that is queued with the first one's sampling; the engine takes the time it takes."""
        if not self.queued:
            time.sleep(wait_s)
            return []
        sampling = self.queued[0][2]
        now = [(ticket, request) for ticket, request, other in self.queued if other == sampling]
        self.queued = [one for one in self.queued if one[2] != sampling]
        made = self.engine.generate([request for _, request in now], sampling)
        self.calls += 1
        self.tokens += sum(len(one.token_ids) for of in made for one in of)
        return [
            (ticket, replace(one, sample=request.first + i))
            for (ticket, request), of in zip(now, made, strict=True)
            for i, one in enumerate(of)
        ]

    def suspend(self) -> list[tuple[int, Generation]]:
        """What is queued was never begun."""
        queued, self.queued = self.queued, []
        return [
            (ticket, Generation([], [], "suspended", sample=request.first + i))
            for ticket, request, _ in queued
            for i in range(request.n)
        ]

    def load(self, receipt: Any) -> None:
        """Take the weights of a receipt; nothing is under way between two calls."""
        self.take(receipt)

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """By the weights that are in place now."""
        return compute_likelihoods(self.policy.model, pairs, temperature)

    def stats(self) -> dict[str, float]:
        """Tokens and calls so far."""
        return {"tokens": self.tokens, "calls": self.calls}


def serve(use: EngineUse, folder: str, dtype: str, training: Training | None = None) -> Service:
    """The service of a worker: the policy of a folder, the engine that a recipe names, new weights by file.

    The policy computes as the one that `training` trains.
    """
    torch.use_deterministic_algorithms(True)
    policy = load_policy(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu", dtype=dtype)
    policy.model.requires_grad_(False)
    if training is not None:
        apply_compute_options(policy.model, training)
    engine = build_engine(use, policy)
    take = PolicyReceiver(policy, engine, read_weights).load
    if isinstance(engine, FlyingEngine):
        return RolloutService(engine, take, policy).start()
    return Calls(engine, take, policy)
