"""GBRL: a tree for each update, fitted to gradients, with splits that policy and values share.

Not shown: its speed on a GPU, the broad comparison.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Categorical

from learning.control.buffers.buffer import make_batch
from learning.control.losses.boosted_policy import BoostedLoss, add_tree
from learning.control.networks.boosted_trees import TreeEnsemble, fit_tree, list_splits
from learning.control.networks.build import Networks
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.worlds.contexts import contexts
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/gbrl.yaml").stages
SHOWN = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
GRADIENTS = torch.tensor([[-1.0], [-1.0], [2.0], [2.0]])


def test_one_update_goes_half_the_way_down_the_mean_gradients():
    """Observations (0, 0, 1, 1), gradients (−1, −1, 2, 2), depth 1, rate .5: F(0) = .5, F(1) = −1."""
    trees = TreeEnsemble(1)
    assert trees(SHOWN).flatten().tolist() == [0, 0, 0, 0]
    for number in (1, 2, 3):
        add_tree(trees, SHOWN, GRADIENTS, 1, 16, [0.5])
        assert len(trees) == number
        assert trees(SHOWN).flatten().tolist() == [0.5 * number, 0.5 * number, -number, -number]


def test_value_leaves_have_the_policys_split_and_a_rate_of_their_own():
    """The value's gradients alone would be split at 2.5; the policy's, which are larger, are split at .5."""
    shown = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    both = torch.tensor([[-8.0, 1.0], [8.0, 1.0], [8.0, 1.0], [8.0, 5.0]])
    assert fit_tree(shown.numpy(), both[:, 1:].numpy(), 1, 16).threshold_D.tolist() == [2.5]
    trees = TreeEnsemble(2)
    tree = add_tree(trees, shown, both, 1, 16, [0.5, 0.1])
    assert tree.threshold_D.tolist() == [0.5]
    expected = [[4.0, -0.1], *[[-4.0, -0.1 * 7 / 3]] * 3]
    assert torch.allclose(trees(shown), torch.tensor(expected))


def test_splits_by_equality_separate_the_contexts():
    """Three one-hot categories and three gradients: two levels tell all apart, each asking for one category."""
    shown, gradient = torch.eye(3), torch.tensor([[-1.0], [0.0], [3.0]])
    tree = fit_tree(shown.numpy(), gradient.numpy(), 2, 16)
    assert tree.threshold_D.tolist() == [0.5, 0.5]
    trees = TreeEnsemble(1)
    add_tree(trees, shown, gradient, 2, 16, [1.0])
    assert trees(shown).flatten().tolist() == [1.0, 0.0, -3.0]
    one = fit_tree(shown.numpy(), gradient.numpy(), 1, 16)
    assert one.feature_D.tolist() == [2]
    assert one.leaf_LK.flatten().tolist() == [-0.5, 3.0]


def test_each_level_has_the_best_split_of_all():
    """The first level is the split of the largest Σ n |mean|² among all, tried one by one; empty leaves are 0."""
    rng = np.random.default_rng(0)
    shown, gradient = rng.integers(5, size=(40, 3)).astype(float), rng.normal(size=(40, 2))
    features, thresholds = list_splits(shown, 16)

    def score(feature, threshold):
        parts = [gradient[shown[:, feature] > threshold], gradient[shown[:, feature] <= threshold]]
        return sum(len(part) * (part.mean(0) ** 2).sum() for part in parts)

    tree = fit_tree(shown, gradient, 3, 16)
    scores = [score(*split) for split in zip(features, thresholds, strict=True)]
    assert score(tree.feature_D[0], tree.threshold_D[0]) == pytest.approx(max(scores))
    place = (shown[:, tree.feature_D] > tree.threshold_D) @ np.array([4, 2, 1])
    for leaf in range(8):
        expected = gradient[place == leaf].mean(0) if (place == leaf).any() else np.zeros(2)
        assert tree.leaf_LK[leaf] == pytest.approx(expected)
    same = fit_tree(np.ones((4, 2)), gradient[:4], 2, 16)
    assert same.leaf_LK[0] == pytest.approx(gradient[:4].mean(0))
    assert same.threshold_D.tolist() == [np.inf, np.inf]


def test_many_values_have_few_splits_evenly_in_rank():
    features, thresholds = list_splits(np.column_stack([np.arange(100.0), np.tile([0.0, 1.0], 50)]), 5)
    assert features.tolist() == [0] * 5 + [1]
    assert thresholds.tolist() == [0.5, 24.5, 49.5, 74.5, 98.5, 0.5]


def make(stage="trees", **options):
    """The algorithm of a stage of the recipe, for categories."""
    use = STAGES[stage].loss
    changed = type(use).model_validate({**use.model_dump(exclude_unset=True), **options})
    return bind(changed, "loss")(Networks(Spaces(3, 2), NetworkSettings()))


def roll():
    """A rollout of two worlds with six steps of one choice each."""
    rng = np.random.default_rng(0)
    shown = torch.eye(3)[torch.from_numpy(rng.integers(3, size=(2, 6)))]
    columns = {
        "observation": shown,
        "next_observation": shown,
        "action": torch.from_numpy(rng.integers(2, size=(2, 6))),
    }
    ended = torch.ones(2, 6, 1, dtype=torch.bool)
    reward = torch.from_numpy(rng.normal(size=(2, 6, 1))).float()
    return make_batch({**columns, "reward": reward, "terminated": ended, "truncated": ~ended})


def test_gradients_are_those_of_the_clipped_loss_for_each_step():
    """In float64 by hand: a step outside the clip has no gradient of its objective, the value's is c · 2 (V − R)."""
    loss = BoostedLoss(None, 2, clip_epsilon=0.2, entropy_coef=0.01, critic_coef=0.5)
    torch.manual_seed(0)
    output = torch.randn(6, 3)
    batch = TensorDict(
        {
            "action": torch.tensor([0, 1, 0, 1, 0, 1]),
            "advantage": torch.randn(6, 1),
            "value_target": torch.randn(6, 1),
            "action_log_prob": output[:, :2].log_softmax(-1)[:, 0] + torch.tensor([0.0, 0.1, 0.5, -0.5, 0.3, -0.1]),
            "observation": torch.zeros(6, 1),
        },
        [6],
    )
    found, terms = loss.compute_gradients(batch, output)
    exact = output.double().requires_grad_()
    policy = Categorical(logits=exact[:, :2])
    ratio = (policy.log_prob(batch["action"]) - batch["action_log_prob"].double()).exp()
    advantage = batch["advantage"][:, 0].double()
    advantage = (advantage - advantage.mean()) / advantage.std()
    objective = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    value = 0.5 * (exact[:, 2] - batch["value_target"][:, 0].double()).square()
    (expected,) = torch.autograd.grad((objective + value - 0.01 * policy.entropy()).sum(), exact)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-4)
    assert terms["loss_critic"] == pytest.approx(value.mean().item(), rel=1e-4)


def test_each_update_adds_one_tree_of_the_same_depth_for_policy_and_values():
    algorithm = make(passes=3, tree_batch_size=4, depth=2)
    metrics = algorithm.fit_newest(roll(), None, np.random.default_rng(0))
    (trees,) = (module for module in algorithm.actor.modules() if isinstance(module, TreeEnsemble))
    assert metrics["trees"] == len(trees) == 9
    assert trees.get_buffer("feature_TD").shape == (9, 2)
    assert trees.get_buffer("leaf_TLK").shape == (9, 4, 3)
    with pytest.raises(StepError, match="remove `data`"):
        algorithm.fit_newest(roll(), {}, np.random.default_rng(0))


def test_the_first_tree_is_a_step_of_the_recipes_rates_down_the_gradients():
    """With one pass over all steps, outputs change by −rate · mean gradient of each category; values start at 0."""
    algorithm = make(passes=1, tree_batch_size=12)
    batch = roll()
    algorithm.fit_newest(batch, None, np.random.default_rng(0))
    (trees,) = (module for module in algorithm.actor.modules() if isinstance(module, TreeEnsemble))
    place = batch["observation"].reshape(-1, 3).argmax(1)
    reward = batch["next", "reward"].flatten()
    value = trees(torch.eye(3))[:, 2]
    expected = [0.05 * reward[place == category].mean().item() for category in range(3)]
    assert value.tolist() == pytest.approx(expected, abs=1e-6)
    advantage = (reward - reward.mean()) / reward.std()
    taken = torch.nn.functional.one_hot(batch["action"].flatten(), 2)
    step = 0.1 * advantage[:, None] * (taken - 0.5)
    policy = trees(torch.eye(3))[:, :2].detach()
    wanted = [step[place == category].mean(0).tolist() for category in range(3)]
    assert policy.numpy() == pytest.approx(np.array(wanted), abs=1e-5)


def test_the_second_tree_is_fitted_where_the_first_one_led():
    """Two passes over all steps: the second tree's gradients are those at the outputs of the first."""
    batch, (one, two) = roll(), (make(passes=n, tree_batch_size=12) for n in (1, 2))
    one.fit_newest(batch, None, np.random.default_rng(0))
    two.fit_newest(roll(), None, np.random.default_rng(0))
    first, both = (
        next(module for module in made.actor.modules() if isinstance(module, TreeEnsemble)) for made in (one, two)
    )
    rows = batch.reshape(-1)
    gradient, _ = one.loss.compute_gradients(rows, first(rows["observation"]))
    add_tree(first, rows["observation"], gradient, 3, 16, [0.1, 0.1, 0.05])
    assert torch.allclose(both(torch.eye(3)), first(torch.eye(3)), atol=1e-6)


def run(name, folder, **changes):
    """Run a stage of the recipe."""
    stage = STAGES[name].model_copy(update=changes)
    context = Context({}, folder, folder / "checkpoints", seed=1)
    folder.mkdir()
    result = control.run(stage, context)
    return context.output("model"), result


def test_the_recipes_policy_learns_the_categories_and_is_read_again(tmp_path):
    folder, result = run("trees_of_categories", tmp_path / "run")
    policy = load_control_policy(folder)
    shown = np.eye(6, dtype=np.float32)
    table = np.array(STAGES["trees_of_categories"].env.options["table"])
    assert policy.act(shown, explore=False).tolist() == table.argmax(1).tolist()
    updates = 1024 // (8 * 16) * 4
    assert result.metrics["updates"] == 1024 // (8 * 16)
    (trees,) = (module for module in policy.actor.modules() if isinstance(module, TreeEnsemble))
    assert len(trees) == updates


def test_a_training_that_goes_on_has_all_trees_that_it_had(tmp_path):
    """The checkpoint of a stage holds the ensemble: continued, it ends with the same bits."""
    whole, _ = run("trees_of_categories", tmp_path / "whole", environment_steps=512)
    folder = tmp_path / "cut"
    half = STAGES["trees_of_categories"].model_copy(update={"environment_steps": 512, "save_steps": 256})
    context = Context({}, folder, folder / "checkpoints", seed=1)
    folder.mkdir()
    control.run(half, context)
    assert any((folder / "checkpoints").iterdir())
    again = Context({}, tmp_path / "again", folder / "checkpoints", seed=1)
    again.folder.mkdir()
    control.run(half, again)
    files = [path / "actor.safetensors" for path in (whole, again.output("model"))]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_bandit_pays_by_its_table():
    world = contexts(table=[[1, 0], [0, 5]])
    for seed in range(5):
        context, _ = world.reset(seed=seed)
        assert world.step(1)[1:3] == ((0.0, 5.0)[context], True)
    with pytest.raises(StepError, match="two at least"):
        contexts(table=[[1], [0]])
    box = Networks(Spaces(3, 1, (-1.0,), (1.0,)), NetworkSettings())
    with pytest.raises(StepError, match="needs choices"):
        bind(STAGES["trees"].loss, "loss")(box)


def test_trees_and_networks_take_as_many_steps():
    for trees, networks in (("trees", "networks"), ("trees_of_categories", "networks_of_categories")):
        ours, theirs = STAGES[trees], STAGES[networks]
        assert (ours.loss.use, theirs.loss.use) == ("boosted_ppo", "ppo")
        assert ours.env == theirs.env
        for key in ("environment_steps", "num_envs", "rollout_steps"):
            assert getattr(ours, key) == getattr(theirs, key)
    assert STAGES["report"].env.options["id"] == "CartPole-v1"
    assert STAGES["of_categories"].env == STAGES["trees_of_categories"].env
    assert STAGES["trees"].loss.options == {}
