"""SEQUOIA: the program of a Q-network finds what trying all feasible combinations finds, and nothing else is done.

Not shown: large instances, other couplings.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from learning.control.buffers.buffer import make_batch
from learning.control.losses.action_programs import draw_feasible, feasible, feasible_greedy, make_limits
from learning.control.networks.build import Networks
from learning.control.networks.combination_values import CombinationValues, find_bounds
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.coupled_bandits import ALONE, LEFT, TOGETHER, coupled_bandit
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/sequoia.yaml").stages
ARMS = 6
SPACES = Spaces(ARMS, 2, agents=ARMS)
LIMITS = {name: STAGES["joint"].loss.options[name] for name in ("weights", "most")}
FEASIBLE = [
    np.array(action)
    for action in product((0, 1), repeat=ARMS)
    if sum(action) <= 2 and np.dot(action, (2, 2, 1, 1, 2, 1)) <= 3
]
"""Every combination that the recipe's limits allow."""


def make(stage="joint", *, hidden=(16,), seed=0, **options):
    """The algorithm of a stage of the recipe."""
    use = STAGES[stage].loss
    changed = type(use).model_validate({**use.model_dump(exclude_unset=True), **options})
    torch.manual_seed(seed)
    return bind(changed, "loss")(Networks(SPACES, NetworkSettings(hidden_sizes=list(hidden))))


def try_all(actor, shown):
    """The feasible combination with the highest value, and the value."""
    with torch.no_grad():
        value = actor.compute_value(shown.expand(len(FEASIBLE), -1), torch.from_numpy(np.stack(FEASIBLE)))
    return FEASIBLE[int(value.argmax())].tolist(), float(value.max())


@pytest.mark.parametrize("hidden", [(12,), (8, 8)])
def test_the_program_finds_what_trying_all_combinations_finds(hidden):
    rng = torch.Generator().manual_seed(1)
    for seed in range(20 if len(hidden) == 2 else 4):
        actor = make(hidden=hidden, seed=seed).actor
        for parameter in actor.network.parameters():
            parameter.data.mul_(2.0)
        shown = torch.randint(2, (1, ARMS), generator=rng).float()
        action = actor.find_best(shown)
        best, value = try_all(actor, shown)
        assert actor.compute_value(shown, action).item() == pytest.approx(value, abs=1e-5)
        assert action[0].tolist() == best


def set_pairs(actor):
    """Values of 10 for arms 2 and 3 together, and of 3 for each of arms 0 and 5."""
    first, last = (module for module in actor.network.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.zero_(), layer.bias.zero_()
        first.weight[0, ARMS + 2] = first.weight[0, ARMS + 3] = 1.0
        first.bias[0] = -1.0
        first.weight[1, ARMS + 0] = first.weight[2, ARMS + 5] = 1.0
        last.weight[0, :3] = torch.tensor([10.0, 3.0, 3.0])


def test_the_best_two_arms_by_themselves_are_worse_than_a_pair():
    """Treated alone arms 0 and 5 are worth 3 each and all others nothing; arms 2 and 3 together 10."""
    actor = make().actor
    set_pairs(actor)
    shown = torch.zeros(1, ARMS)
    with torch.no_grad():
        alone = actor.compute_value(shown.expand(ARMS, -1), torch.eye(ARMS))
        top_two = torch.zeros(1, ARMS)
        top_two[0, alone.topk(2).indices] = 1
        value_of_top, value = (float(actor.compute_value(shown, a)) for a in (top_two, actor.find_best(shown)))
    assert alone.tolist() == [3, 0, 0, 0, 0, 3]
    assert actor.find_best(shown)[0].tolist() == [0, 0, 1, 1, 0, 0]
    assert (value_of_top, value) == (6.0, 10.0)


def test_no_infeasible_combination_is_ever_chosen():
    """The best without limits is everything; of the two that are worth most, both cost too much."""
    actor = make(hidden=(8,)).actor
    first, last = (module for module in actor.network.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        first.weight.zero_(), first.bias.zero_(), last.weight.zero_()
        for arm, worth in enumerate((5.0, 5.0, 1.0, 1.0, 5.0, 1.0)):
            first.weight[arm, ARMS + arm], last.weight[0, arm] = 1.0, worth
    action = actor.find_best(torch.zeros(1, ARMS))[0].numpy()
    assert action.sum() == 2
    assert action @ np.array([2, 2, 1, 1, 2, 1]) == 3
    allowed = {tuple(one) for one in FEASIBLE}
    rng, limits = np.random.default_rng(0), make_limits(SPACES, **LIMITS)
    drawn = {tuple(draw_feasible(limits, rng)) for _ in range(500)}
    assert drawn == allowed
    shown = np.zeros((200, ARMS), np.float32)
    assert {tuple(one) for one in feasible(shown, SPACES, rng, **LIMITS)} <= allowed
    chosen = np.tile(FEASIBLE[3], (400, 1))
    explored = feasible_greedy(chosen, SPACES, rng, **LIMITS, epsilon=0.5)
    assert {tuple(one) for one in explored} <= allowed
    assert (explored == FEASIBLE[3]).all(1).mean() == pytest.approx(0.5 + 0.5 / len(FEASIBLE), abs=0.1)


def test_bounds_hold_for_every_combination():
    actor = make(hidden=(8, 8)).actor
    layers = actor.read_layers(torch.tensor([1.0, 0, 1, 0, 1, 1]))
    bounds = find_bounds(layers[:-1], ARMS)
    for action in product((0.0, 1.0), repeat=ARMS):
        x = np.array(action)
        for (weight, bias), (low, high) in zip(layers[:-1], bounds, strict=True):
            x = weight @ x + bias
            assert (low - 1e-9 <= x).all()
            assert (x <= high + 1e-9).all()
            x = x.clip(min=0)


def step(*, ended=False):
    shown, later = torch.zeros(1, ARMS), torch.ones(1, ARMS)
    columns = {"observation": shown, "action": torch.tensor([[0, 0, 1, 1, 0, 0]]), "reward": torch.full((1, 1), 0.5)}
    columns |= {"next_observation": later, "terminated": torch.tensor([[ended]])}
    return make_batch({**columns, "truncated": torch.tensor([[False]])})


def test_the_target_is_the_programs_maximum_of_the_target_network():
    """The trained network's value of the step is 10; the target network's best one is r + .95 of another pair's."""
    algorithm = make()
    loss = algorithm.loss
    set_pairs(loss.value_network)
    for parameter in loss.target_network.network.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(3))
    _, best = try_all(loss.target_network, torch.ones(1, ARMS))
    assert loss(step())["loss"].item() == pytest.approx((10 - 0.5 - 0.95 * best) ** 2, rel=1e-4)
    assert loss(step(ended=True))["loss"].item() == pytest.approx(9.5**2)
    loss(step())["loss"].backward()
    assert {n.split(".")[0] for n, p in loss.named_parameters() if p.grad is not None} == {"value_network"}


def test_the_target_follows_after_every_period_and_values_are_found_anew():
    loss = make(target_period=3).loss
    with torch.no_grad():
        before = loss.find_best_values(torch.ones(1, ARMS))
        set_pairs(loss.value_network)
        for _ in range(2):
            loss.update_target()
        assert loss.find_best_values(torch.ones(1, ARMS)).tolist() == before.tolist()
        loss.update_target()
    assert loss.find_best_values(torch.ones(1, ARMS)).tolist() == [10.0]
    with torch.no_grad():
        set_pairs(loss.target_network)
    loss.load_state_dict(make(seed=5).loss.state_dict())
    assert loss.find_best_values(torch.ones(1, ARMS)).tolist() != [10.0]


def test_values_of_single_arms_add_up():
    actor = make("per_arm").actor
    shown = torch.tensor([[1.0, 0, 1, 0, 1, 1]])
    with torch.no_grad():
        none = float(actor.compute_value(shown, torch.zeros(1, ARMS)))
        parts = [float(actor.compute_value(shown, torch.eye(ARMS)[n : n + 1])) - none for n in range(ARMS)]
        both = float(actor.compute_value(shown, torch.tensor([[1.0, 0, 1, 0, 0, 0]])))
    assert both == pytest.approx(none + parts[0] + parts[2], abs=1e-5)
    best, value = try_all(actor, shown)
    assert actor.find_best(shown)[0].tolist() == best
    assert value >= none


def test_a_saved_policy_keeps_its_limits(tmp_path):
    algorithm, settings = make(), NetworkSettings(hidden_sizes=[16])
    ControlPolicy(SPACES, settings, algorithm.actor_form, algorithm.actor).save(tmp_path, algorithm.loss.state_dict())
    loaded = load_control_policy(tmp_path)
    shown = np.random.default_rng(0).integers(2, size=(4, ARMS)).astype(np.float32)
    expected = algorithm.actor(TensorDict({"observation": torch.from_numpy(shown)}, [4]))["action"].tolist()
    assert loaded.act(shown, explore=False).tolist() == expected
    assert isinstance(loaded.actor, CombinationValues)


def test_what_does_not_fit_is_refused():
    for options, message in (
        ({"weights": [[1, 1]]}, "each with a number for each of 6 arms"),
        ({"most": [2]}, "1 numbers of `most`"),
        ({"most": [2, -1]}, "doing nothing must be allowed"),
    ):
        with pytest.raises(StepError, match=message):
            make(**options)
    with pytest.raises(StepError, match="rectified"):
        make(hidden=())


def test_partners_that_are_treated_together_become_good():
    """Chances of all six arms, of a bad and a good state, by 4,000 steps; what costs too much is not carried out."""
    for treated, kinds in (((2, 3), "LLTTLL"), ((2, 5), "LLALLA"), ((0, 1), "LLLLLL"), ((2, 3, 5), "LLLLLL")):
        chances = {"L": LEFT, "A": ALONE, "T": TOGETHER}
        world = coupled_bandit(limit=10**6)
        world.reset(seed=0)
        actions = {name: int(n in treated) for n, name in enumerate(world.possible_agents)}
        for state in (0, 1):
            good = np.zeros(ARMS)
            for _ in range(1000):
                world.is_good = np.full(ARMS, state)
                world.step(actions)
                good += world.is_good
            assert (good / 1000).tolist() == pytest.approx([chances[kind][state] for kind in kinds], abs=0.06)
    assert sum(world.step(actions)[1].values()) == world.is_good.sum()


def test_the_recipe_trains_a_policy_that_does_what_is_feasible(tmp_path):
    stage = STAGES["joint"].model_copy(update={"environment_steps": 15, "data": []})
    context = Context({}, tmp_path / "run", tmp_path / "run/checkpoints", seed=1)
    context.folder.mkdir()
    control.run(stage, context)
    policy = load_control_policy(context.output("model"))
    worlds = Worlds(bind(STAGES["report"].env), 1, 1, "test")
    allowed = {tuple(one) for one in FEASIBLE}
    for _ in range(5):
        action = policy.act(worlds.observation, explore=False)
        assert tuple(action[0]) in allowed
        worlds.step(action)


def test_the_arms_differ_in_the_form_of_the_values():
    joint, alone = (STAGES[name].model_dump() for name in ("joint", "per_arm"))
    assert alone["loss"].pop("values") == "per_arm"
    assert joint == alone
    assert joint["loss"]["use"] == "sequoia"
    assert joint["exploration"]["weights"] == joint["loss"]["weights"]
    assert joint["exploration"]["most"] == joint["loss"]["most"] == [2, 3]
    assert STAGES["random"].policy.options == LIMITS
    world = bind(STAGES["report"].env)()
    assert (world.most, world.capacity) == (2, 3)
    assert world.costs.tolist() == LIMITS["weights"][1]
