"""SPA-RL: contributions of turns that add up to the reward of the episode are the rewards of PPO.

The estimator, its loss, its target and the operations of the advantage are those of the recipe, on episodes that are
laid out by hand. Not shown: that an agent learns more from them, which is measured.
"""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from learning.algorithm.composition import bind_algorithm
from learning.auxiliary_networks.heads import load_network
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView, of_rewards
from learning.rl.auxiliary_models import AuxiliaryModel
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.auxiliary import Auxiliary
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "spa-rl.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
ESTIMATOR, TRAINED, OUTCOME = STAGES["estimator"], STAGES["trained"], STAGES["outcome"]
ENDS = [False, True, True, False, False, True]
"""Of an episode with turns of two, one and three tokens."""


def episode(group, reward, first=10):
    """Turns of two, one and three sampled tokens; the second could not be carried out."""
    ids = [first, first + 1, 20, 21, 12, 22, 13, 14, 15]
    made = Sample({"id": str(group)}, group, "policy", [5, 6, 7], ids, [-1.0] * 9, "stop", "")
    made.turns = [Turn(2, 2, ok=True), Turn(1, 1, ok=False), Turn(3, 0, ok=True)]
    made.versions, made.scores, made.reward = [0] * 9, {"environment.earned": reward}, reward
    return made


def make_estimator(policy):
    return AuxiliaryModel("progress", ESTIMATOR.auxiliary_models["progress"], policy, ESTIMATOR, {}, 0)


def prepare(model, samples):
    return model.add_targets(model.add_values(forest(samples)), 0)


def bound(name):
    return bind_algorithm(STAGES[name], {port.path: Path("p") for port in LOADED.ports(name)})


def test_the_loss_is_of_the_sum_and_its_gradient_the_same_on_every_turn(tiny_policy):
    """Contributions of 0.2 each and a reward of 1: (0.6 − 1)² = 0.16, and −0.8 for each of three turns."""
    model = make_estimator(tiny_policy)
    model.network.head.bias.data.fill_(0.2)
    batch = prepare(model, [episode(0, 1.0)])
    values_T = ColumnView(batch)["progress_T"].tolist()
    assert values_T == pytest.approx([0.2 * end for end in ENDS])
    output = model.network(batch)
    assert output.values_XH.tolist() == [[pytest.approx(0.6)]]
    supplies = {"value_T": output.values_XH[:, 0], "value_old_T": output.values_XH[:, 0], "return_T": torch.ones(1)}
    loss = model.loss.ask(0, supplies).sum()
    (gradient,) = torch.autograd.grad(loss, model.network.head.bias)
    assert float(loss.detach()) == pytest.approx(0.16)
    assert gradient.tolist() == [pytest.approx(3 * -0.8)]
    model.update(batch, 0)
    assert model.metrics(batch)["progress/loss"] == pytest.approx(0.16)


def test_unequal_contributions_have_the_papers_loss_and_gradient(tiny_policy):
    """Contributions 0.2, 0.3, 0.1."""
    model = make_estimator(tiny_policy)
    contribution = torch.tensor([0.2, 0.3, 0.1], requires_grad=True)
    total = contribution.sum()[None]
    loss = model.loss.ask(0, {"value_T": total, "value_old_T": total.detach(), "return_T": torch.ones(1)}).sum()
    (gradient,) = torch.autograd.grad(loss, contribution)
    assert float(loss.detach()) == pytest.approx(0.16)
    assert gradient.tolist() == pytest.approx([-0.8] * 3)


def test_the_estimator_learns_contributions_that_add_up_to_the_reward(tiny_policy):
    """The first turn decides about the reward."""
    model = make_estimator(tiny_policy)
    samples = [episode(0, 1.0, first=10), episode(0, 0.0, first=30)]
    for _ in range(80):
        batch = prepare(model, samples)
        model.update(batch, 0)
    batch = prepare(model, samples)
    value_T = ColumnView(batch)["progress_T"]
    sums = [float(value_T[batch.path_T == path].sum()) for path in range(2)]
    assert sums == pytest.approx([1.0, 0.0], abs=0.15)
    assert [float(value) for value in batch.paths["aux:progress.0"]] == pytest.approx(sums, abs=1e-6)
    assert not value_T[~torch.tensor(ENDS * 2)].any()


def test_a_turn_earns_its_contribution_and_whether_it_was_carried_out(tiny_policy):
    """0.7, 0.3, 0.6 at the ends of turns; with the outcome alone 1 at the last token."""
    column_T = torch.zeros(6, dtype=torch.float64)
    column_T[torch.tensor(ENDS)] = torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64)
    batch = forest([episode(0, 1.0)]).with_tokens(**{"aux:progress": column_T})
    operations = [part for part in bound("trained").advantage if part.name == "contributions"]
    (operation,) = operations
    rewards = operation.ask(0, ColumnView(batch), of_rewards(batch), batch)
    assert rewards.values_X.tolist() == pytest.approx([0, 0.7, 0.3, 0, 0, 0.6])
    gae = next(part for part in bound("outcome").advantage if part.name == "gae")
    valued = batch.with_tokens(value=torch.zeros(6, dtype=torch.float64)).with_paths(value_end=torch.zeros(1))
    plain = gae.ask(0, ColumnView(valued), of_rewards(valued), valued).values_X.tolist()
    assert plain == pytest.approx([0.95 ** (5 - place) for place in range(6)])
    stepped = gae.ask(0, ColumnView(valued), rewards, valued).values_X.tolist()
    earned = [0, 0.7, 0.3, 0, 0, 0.6]
    expected = [sum(0.95 ** (late - place) * earned[late] for late in range(place, 6)) for place in range(6)]
    assert stepped == pytest.approx(expected)


def test_an_estimator_that_is_stored_gives_the_same_values(tiny_policy, tmp_path):
    model = make_estimator(tiny_policy)
    torch.nn.init.normal_(model.network.head.weight, generator=torch.Generator().manual_seed(0))
    batch = forest([episode(0, 1.0), episode(0, 0.0, first=30)])
    model.save(tiny_policy, tmp_path / "estimator")
    loaded, _ = load_network(tmp_path / "estimator")
    with torch.no_grad():
        torch.testing.assert_close(loaded(batch).values_XH, model.network(batch).values_XH)
        torch.testing.assert_close(loaded(batch).tokens[""], model.network(batch).tokens[""])


def test_a_network_that_is_only_read_keeps_its_defaults_in_a_plan():
    """A plan fills in the options of the default loss; that is no setting of the user's."""
    read = {"head": "turns", "model": "path:estimator"}
    assert Auxiliary.model_validate({**read, "loss": {"use": "squared", "clip": None}}).target is None
    with pytest.raises(ValidationError, match="`loss` has no effect without a `target`"):
        Auxiliary.model_validate({**read, "loss": {"use": "squared", "clip": 0.1}})


def test_the_order_of_the_stages():
    """The estimator is trained on the cold start's episodes, then read; the policy waits while it is trained."""
    block, read = ESTIMATOR.auxiliary_models["progress"], TRAINED.auxiliary_models["progress"]
    assert (block.warmup_steps, block.head, block.publish) == (ESTIMATOR.max_steps, "turns", True)
    assert (read.head, read.target) == ("turns", None)
    sources = {port.path: port.steps for port in LOADED.ports("trained")}
    assert sources["auxiliary_models.progress.model"] == ("estimator",)
    assert sources["model"] == ("cold_start",)
    trained, outcome = (stage.model_dump(exclude={"auxiliary_models"}) for stage in (TRAINED, OUTCOME))
    assert trained.pop("advantage")[1:] == outcome.pop("advantage")
    assert trained == outcome
    assert dict(STAGES["report"].models) == {"start": "cold_start", "trained": "trained", "outcome": "outcome"}
