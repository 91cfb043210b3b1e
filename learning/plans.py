"""What an iteration samples. A plan is given the problems (`rows`) and how much is wanted, and returns asks."""

from typing import Any

import numpy as np

from learning.trials import Ask


def uniform(rows: list[dict[str, Any]], num_groups: int, n: int, seed: int, step: int) -> list[Ask]:
    """Epochs of shuffled problems laid end to end, `n` completions of each."""
    return [Ask(rows[i], n) for i in prompts_of_step(len(rows), num_groups, seed, step)]


def prompts_of_step(num_prompts: int, num_groups: int, seed: int, step: int) -> list[int]:
    """Indices of the problems of a step."""
    places = [divmod(i, num_prompts) for i in range(step * num_groups, (step + 1) * num_groups)]
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(num_prompts) for epoch, _ in places}
    return [int(orders[epoch][place]) for epoch, place in places]
