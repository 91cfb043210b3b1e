"""Which prompts a step samples, with which random streams, and how the completions are scored.

All of it is a function of the stage's seed and the step, so that a continued run needs no state.
Shapes: P paths.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from learning.algorithm import Algorithm
from learning.batch import Batch, single_turn
from learning.engines.protocol import EngineProtocol, Request, Sampling
from learning.lookup import Bound
from schemas.errors import StepError
from schemas.schedules import Number, value_at


def prompts_of_step(num_prompts: int, num_groups: int, seed: int, step: int) -> list[int]:
    """Indices of the prompts of a step: epochs of shuffled prompts, laid end to end."""
    places = [divmod(i, num_prompts) for i in range(step * num_groups, (step + 1) * num_groups)]
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(num_prompts) for epoch, _ in places}
    return [int(orders[epoch][place]) for epoch, place in places]


def group_seed(seed: int, step: int, group: int) -> int:
    """Random stream of one group: no two groups or steps share one."""
    return int(np.random.SeedSequence([seed, step, group]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def sample(
    engine: EngineProtocol, prompts: Sequence[list[int]], *, n: int, seed: int, step: int, sampling: Sampling
) -> Batch:
    """`n` completions of each prompt, as a batch with one group per prompt."""
    requests = [Request(ids, n, group_seed(seed, step, group)) for group, ids in enumerate(prompts)]
    return single_turn(prompts, engine.generate(requests, sampling))


def score(
    rewards: Sequence[Bound],
    weights: Sequence[Number],
    batch: Batch,
    rows: list[dict[str, Any]],
    completions: list[str],
    step: int,
) -> Batch:
    """Add the path columns `score:<name>` (raw; NaN: unscorable), `reward` (weighted sum) and `scorable`.

    `rows` and `completions` are per path. Raises StepError when a reward gives another number of scores.
    """
    total_P = torch.zeros(batch.num_paths, dtype=torch.float64)
    columns = {}
    for name, bound, weight in zip(names(rewards), rewards, weights, strict=True):
        scores = bound.at(step)(rows, completions)
        if len(scores) != len(completions):
            raise StepError(f"reward {name}: {len(scores)} scores for {len(completions)} completions")
        raw_P = torch.tensor([float("nan") if s is None else float(s) for s in scores], dtype=torch.float64)
        columns[f"score:{name}"] = raw_P
        total_P = total_P + value_at(weight, step) * raw_P
    return batch.with_paths(**columns, reward=total_P, scorable=total_P.isfinite())


def names(rewards: Sequence[Bound]) -> list[str]:
    """Name of each reward in scores and curves: its own, numbered from the second of the same name."""
    found: list[str] = []
    for bound in rewards:
        seen = sum(n == bound.name or n.startswith(f"{bound.name}#") for n in found)
        found.append(f"{bound.name}#{seen + 1}" if seen else bound.name)
    return found


def raw_scores(batch: Batch) -> dict[str, torch.Tensor]:
    """Raw scores by name of the reward."""
    return {k.removeprefix("score:"): v for k, v in batch.paths.items() if k.startswith("score:")}


def gate(algorithm: Algorithm, batch: Batch, step: int) -> Batch:
    """The paths that are trained on: scorable, and in a group that the filter keeps."""
    batch = batch.take(batch.paths["scorable"].nonzero()[:, 0].tolist())
    if algorithm.filter is None or not batch.num_paths:
        return batch
    keep_P = algorithm.filter.at(step)(raw_scores(batch), batch.paths["group"])
    return batch.take(keep_P.nonzero()[:, 0].tolist())
