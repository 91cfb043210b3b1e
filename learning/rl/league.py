"""A league: past versions of a stage's policy, one of which plays a role in each iteration.

Versions are files beside the checkpoints, so that any number of them costs no memory. Which one plays depends on the
seed, the iteration and the record of games alone, so that a resumed stage draws the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from learning.lookup import Bound
from learning.models.checkpoint import load_latest, save_checkpoint
from learning.rl.monitoring import Metrics
from learning.samples.conversation import list_conversations
from learning.samples.sample import Sample
from learning.sampling.sampler import stream
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.roles import MAIN, LeagueSpec

Weights = Mapping[str, torch.Tensor]
"""Parameters of a policy by name."""


@dataclass
class League:
    """The past versions of a policy, with the record of the trained policy against each."""

    name: str
    """The policy that they play as."""
    folder: Path
    spec: LeagueSpec
    weights: Bound
    saved: list[int] = field(default_factory=list)
    """Iterations that had passed when each version was kept, oldest first."""
    won: list[float] = field(default_factory=list)
    """Episodes that the trained policy won against each version; a draw is half a win."""
    played: list[int] = field(default_factory=list)
    current: int = 0
    """Place of the version that plays in this iteration."""

    def keep(self, step: int, parameters: Weights) -> None:
        """Add a version, as the weights are after `step` iterations; with `max_versions` the oldest no longer plays."""
        save_checkpoint(self._find_folder(step), step, parameters, None)
        self.saved.append(step)
        self.won.append(0.0)
        self.played.append(0)
        if self.spec.max_versions is not None:
            for record in (self.saved, self.won, self.played):
                del record[: -self.spec.max_versions]

    def keep_if_due(self, step: int, parameters: Weights) -> None:
        """Add a version after iteration `step` (0-based) if one is due."""
        if (step + 1) % self.spec.save_steps == 0:
            self.keep(step + 1, parameters)

    def draw(self, seed: int, step: int) -> Weights:
        """Choose the version that plays in iteration `step` (0-based), and return its weights."""
        probability_K = self.compute_probabilities(step)
        rng = np.random.default_rng(stream(seed, step, *self.name.encode()))
        self.current = int(rng.choice(len(probability_K), p=probability_K))
        version = self.saved[self.current]
        latest = load_latest(self._find_folder(version))
        if latest is None:
            raise StepError(
                f"policies.{self.name}.league: the version of iteration {version} is missing or damaged; run the stage "
                "with --fresh"
            )
        return latest[1]

    def compute_probabilities(self, step: int) -> np.ndarray:
        """Return the probability of each version in iteration `step`, (K,). Raise StepError for unusable weights."""
        played_K = np.array(self.played, dtype=float)
        won_K = np.where(played_K > 0, np.array(self.won) / np.maximum(played_K, 1), 0.5)
        supplies = {"age_K": step - np.array(self.saved, dtype=float), "won_K": won_K, "played_K": played_K}
        weight_K = np.asarray(self.weights.ask(step, supplies), dtype=float)
        size = len(self.saved)
        if weight_K.shape != (size,) or not np.isfinite(weight_K).all() or weight_K.min() < 0 or not weight_K.sum() > 0:
            raise StepError(
                f"policies.{self.name}.league.weights: {self.weights.name} returned {weight_K.tolist()} for {size} "
                "versions; return one finite weight of at least 0 for each, not all 0"
            )
        return weight_K / weight_K.sum()

    def record(self, samples: Sequence[Sample]) -> Metrics:
        """Count who won the episodes of this iteration; return the metrics of the league.

        The trained policy wins an episode in which its roles earn more, on average, than those of the past version.
        """
        results: list[float] = []
        for conversation in list_conversations(samples).values():
            own, other = (
                [s.reward for s in conversation if s.policy == policy and s.reward is not None]
                for policy in (MAIN, self.name)
            )
            if own and other:
                difference = fmean(own) - fmean(other)
                results.append(0.5 if difference == 0 else float(difference > 0))
        self.won[self.current] += sum(results)
        self.played[self.current] += len(results)
        metrics = {"version": float(self.saved[self.current]), "versions": float(len(self.saved))}
        metrics |= {"won": fmean(results)} if results else {}
        return {f"league/{self.name}/{name}": value for name, value in metrics.items()}

    def to_json(self) -> JsonObject:
        """Return the record of games."""
        return {"saved": self.saved, "won": self.won, "played": self.played}

    def load(self, values: JsonObject) -> None:
        """Restore what `to_json` returned."""
        self.saved, self.won, self.played = (list(values[name]) for name in ("saved", "won", "played"))

    def _find_folder(self, step: int) -> Path:
        return self.folder / f"version-{step:08d}"
