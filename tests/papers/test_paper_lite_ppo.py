"""Part I: Tricks or Traps?: Lite PPO's advantages and mean over tokens give the paper's values; GRPO's differ.

Not shown: the ranking against DAPO at 4B and 8B.
"""

from itertools import product
from pathlib import Path

import pytest
import torch

from flows.planning.compile import compile_recipe
from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import single_turn
from learning.samples.engine_protocol import Generation
from lineage.layout import Layout
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "lite-ppo.yaml"
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def batch(lengths, rewards):
    made = single_turn([[1], [2]], [[Generation([7] * n, [-1.0] * n, "stop") for n in ns] for ns in lengths])
    return with_dropped(made.with_paths(reward=torch.tensor(rewards, dtype=torch.float64)), False)


def advantages(stage):
    algorithm = bind_algorithm(stage, {})
    return with_advantages(algorithm, batch([[1] * 4, [1] * 4], REWARDS), 0).sampled("advantage").tolist()


def test_the_batch_gives_the_deviation():
    stages = load_recipe(RECIPE, profile="tiny").stages
    # The sample deviation: five 1 and three 0 give √(8·⅝·⅜/7).
    spread = (8 * 0.625 * 0.375 / 7) ** 0.5
    want = [0.75 / spread, *[-0.25 / spread] * 3, 0.0, 0.0, 0.0, 0.0]
    assert advantages(stages["trained"]) == pytest.approx(want, abs=1e-5)
    by_group = next(s for name, s in stages.items() if name.startswith("ablation@spread=group"))
    assert advantages(by_group) == pytest.approx([1.5, *[-0.5] * 3, 0.0, 0.0, 0.0, 0.0], abs=1e-5)


def test_the_mean_is_over_tokens():
    stages = load_recipe(RECIPE, profile="tiny").stages
    by_mean = {s.loss_aggregation.use: s for name, s in stages.items() if name.startswith("ablation")}
    losses = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for stage, want in ((stages["trained"], 0.25), (by_mean["token_mean"], 0.25), (by_mean["sequence_mean"], 0.5)):
        algorithm = bind_algorithm(stage, {})
        made = batch([[1], [3]], [1.0, 0.0])
        weighted = with_weights(algorithm, with_advantages(algorithm, made, 0), 0, 8)
        assert float((weighted.sampled("w") * losses).sum()) == pytest.approx(want, abs=1e-15)


@pytest.mark.parametrize(("profile", "size"), [("tiny", 4), ("full", 16)])
def test_every_combination_of_tricks_is_a_run(profile, size, tmp_path):
    recipe = load_recipe(RECIPE, profile=profile)
    stages = {n: s for n, s in recipe.stages.items() if n.startswith("ablation@")}
    runs = [step for step in compile_recipe(recipe, Layout(tmp_path)).steps if step.name.startswith("ablation@")]
    assert sorted(step.name for step in runs) == sorted(stages)
    assert len({step.key for step in runs}) == size
    combinations = {
        (
            s.advantage[1].options["by"],
            s.loss_aggregation.use,
            s.policy_loss.options["epsilon_high"],
            s.mask_truncated_completions,
        )
        for s in stages.values()
    }
    assert len(stages) == len(combinations) == size
    if profile == "full":
        everything = product(("batch", "group"), ("token_mean", "sequence_mean"), (0.2, 0.28), (False, True))
        assert combinations == set(everything)
