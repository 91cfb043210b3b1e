"""MAMQL: marginal values of joint critics, Boltzmann policies of them, and the inverse criterion on demonstrations.

Not shown: Overcooked, the highway, learning online.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import Buffer, make_batch
from learning.control.losses.marginal_critics import marginalise, recover_rewards, take_best
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions, write_transitions
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.gem_grids import COLLISION, GemGrid, fetch_own_gem
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/mamql.yaml").stages
JOINT = torch.tensor([[[1.0, 3.0], [2.0, 0.0]]])
"""An agent's values: rows are its own choices, columns the other's."""


def make(spaces=None, stage="marginal", **options):
    """The algorithm of a stage of the recipe, for other spaces."""
    use = STAGES[stage].loss
    changed = type(use).model_validate({**use.model_dump(exclude_unset=True), **options})
    torch.manual_seed(0)
    return bind(changed, "loss")(Networks(spaces or Spaces(2, 2, agents=2), NetworkSettings(hidden_sizes=[])))


def policies(*rows):
    return torch.tensor([rows])


def test_the_marginal_is_the_mean_over_the_others_policy():
    """(.25, .75): (2.5, .5); (1, 0): (1, 2), which has another best choice. The joint maximum (3, 2) keeps its."""
    own = (0.5, 0.5)
    assert marginalise(JOINT, policies(own, (0.25, 0.75)), 0)[0].tolist() == [2.5, 0.5]
    assert marginalise(JOINT, policies(own, (1.0, 0.0)), 0)[0].tolist() == [1.0, 2.0]
    assert take_best(JOINT, 0)[0].tolist() == [3.0, 2.0]
    assert marginalise(JOINT, policies((0.25, 0.75), own), 1)[0].tolist() == [1.75, 0.75]
    assert take_best(JOINT, 1)[0].tolist() == [2.0, 3.0]


def test_the_marginal_of_three_agents_weighs_every_pair_of_the_others():
    rng = np.random.default_rng(0)
    joint, policy = rng.normal(size=(4, 3, 3, 3)), rng.dirichlet(np.ones(3), size=(4, 3))
    found = marginalise(torch.from_numpy(joint), torch.from_numpy(policy), 1).numpy()
    assert found == pytest.approx(np.einsum("xabc,xa,xc->xb", joint, policy[:, 0], policy[:, 2]))


def set_networks(algorithm, joint, logits):
    """Make critics (G, A, A) and policies' logits (G, A) constants, and return the loss."""
    loss = algorithm.loss
    for network, values in ((loss.critic_network, joint), (loss.actor_network, logits)):
        parameters = dict(network.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.zero_()
                if name.endswith("bias"):
                    parameter.copy_(torch.as_tensor(values).reshape(parameter.shape))
    return loss


def step(action, *, ended=True):
    """One step of two agents who see one number each."""
    shown = torch.ones(1, 2)
    columns = {"observation": shown, "action": torch.tensor([action]), "reward": torch.full((1, 1), 99.0)}
    columns |= {"next_observation": shown, "terminated": torch.tensor([[ended]])}
    return make_batch({**columns, "truncated": torch.tensor([[False]])})


LOGITS = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
BOTH = torch.stack([JOINT[0], JOINT[0]])


def test_the_critic_of_the_recipe_takes_the_others_present_policy():
    loss = set_networks(make(), BOTH, LOGITS)
    own = loss.compute_values(step([0, 0]))
    assert own[0].flatten().tolist() == pytest.approx([2.5, 0.5, 1.5, 1.5])
    best = set_networks(make(stage="best"), BOTH, LOGITS)
    assert best.compute_values(step([0, 0]))[0].flatten().tolist() == [3.0, 2.0, 2.0, 3.0]


def test_policies_are_drawn_to_boltzmanns_of_the_marginals():
    """exp(2.5), exp(.5): (.881, .119). The cross-entropy's gradient is π less that; critics get none of it."""
    algorithm = make()
    loss = set_networks(algorithm, BOTH, LOGITS)
    term = loss(step([0, 0]))["loss_actor"]
    term.backward()
    gradient = {n: p.grad for n, p in loss.named_parameters() if p.grad is not None}
    assert all(name.startswith("actor_network") for name in gradient)
    (bias,) = (g for name, g in gradient.items() if name.endswith("bias"))
    assert bias.reshape(2, 2)[0].tolist() == pytest.approx([0.5 - 0.881, 0.5 - 0.119], abs=1e-3)
    assert bias.reshape(2, 2)[1].tolist() == pytest.approx([0.25 - 0.5, 0.75 - 0.5], abs=1e-3)


def test_the_criterion_is_that_of_inverse_soft_q_learning_for_each_agent():
    """r = Q̄(s, a) − γ V(s') of both agents' marginals at their own choices; the world's reward of 99 counts nowhere."""
    algorithm = make(gamma=0.9, alpha=2.0)
    loss = set_networks(algorithm, BOTH, LOGITS)
    soft = [np.log(np.exp(2.5) + np.exp(0.5)), np.log(2) + 1.5]
    for ended in (True, False):
        terms = loss(step([0, 1], ended=ended))
        continued = [0.0 if ended else 0.9 * value for value in soft]
        reward = [2.5 - continued[0], 1.5 - continued[1]]
        expected = sum(v - c - (r - r**2 / 8) for v, c, r in zip(soft, continued, reward, strict=True))
        assert terms["loss_critic"].item() == pytest.approx(expected, abs=1e-5)
    reward, _, _ = loss.recover(step([1, 0], ended=True))
    assert reward[0].tolist() == pytest.approx([0.5, 1.5])


def test_on_one_state_the_policies_match_the_frequencies_of_the_experts():
    algorithm = make()
    buffer = Buffer(400, Spaces(2, 2, agents=2))
    first, second = np.repeat([0, 1], [280, 120]), np.tile(np.repeat([0, 1], [2, 8]), 40)
    buffer.columns["observation"].fill_(1.0)
    buffer.columns["action"][:] = torch.from_numpy(np.stack([first, second], 1))
    buffer.columns["terminated"].fill_(True)
    buffer.added = 400
    batch = buffer.make_batch(torch.arange(400))
    optimizer = torch.optim.Adam(algorithm.loss.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        sum(algorithm.loss(batch).values()).backward()
        optimizer.step()
    policy = algorithm.actor.get_dist(batch.select("observation")).probs[0]
    assert policy.flatten().tolist() == pytest.approx([0.7, 0.3, 0.2, 0.8], abs=0.02)
    own = algorithm.loss.compute_values(batch)[0]
    assert own.softmax(-1).flatten().tolist() == pytest.approx(policy.flatten().tolist(), abs=0.02)


def test_too_many_agents_and_worlds_of_one_are_refused():
    with pytest.raises(StepError, match="too large"):
        make(Spaces(10, 6, agents=5))
    with pytest.raises(StepError, match="several agents"):
        make(Spaces(2, 2))
    with pytest.raises(StepError, match="several agents"):
        make(Spaces(2, 2), stage="cloned")


def place(first, second, gems):
    """A grid of three rows with agents and gems in some cells."""
    world = GemGrid(3, 5)
    world.reset(seed=0)
    world.place, world.gem = [first, second], list(gems)
    return world


def test_gems_are_worth_more_to_their_owners_and_collisions_cost_both():
    world = place(0, 8, (1, 5))
    _, rewards, ends, _, _ = world.step({"first": 4, "second": 1})
    assert (rewards, ends["first"]) == ({"first": 1.0, "second": 1.0}, True)
    world = place(0, 8, (5, 1))
    assert world.step({"first": 4, "second": 1})[1] == {"first": 0.3, "second": 0.3}
    world = place(0, 2, (7, 8))
    assert world.step({"first": 4, "second": 3})[1] == dict.fromkeys(("first", "second"), COLLISION)
    assert world.step({"first": 0, "second": 4})[1] == dict.fromkeys(("first", "second"), 0.0)
    assert world.place == [1, 2]
    seen = place(0, 8, (4, -1)).observe()
    assert seen["first"].reshape(4, 9).argmax(1)[:3].tolist() == [0, 8, 4]
    assert seen["second"].reshape(4, 9).sum(1).tolist() == [1, 1, 0, 1]


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mamql") / "data"
    stage = STAGES["demonstrations"].model_copy(update={"episodes": 30})
    context = Context({}, folder, folder / "checkpoints", seed=1)
    folder.mkdir()
    collect.run(stage, context)
    return folder / "outputs/transitions"


def test_the_experts_fetch_their_own_gems(demonstrations):
    """Without slips nearly every episode earns 1 for each agent; those of the recipe slip once in ten choices."""
    worlds = Worlds(bind(STAGES["report"].env, "env"), 1, 1, "test")
    ended = []
    while len(ended) < 10:
        ended += worlds.step(fetch_own_gem(worlds.observation)).ended
    assert np.mean([earned for _, earned, _ in ended]) > 0.9
    data = read_transitions(demonstrations)
    followed = (data.action == fetch_own_gem(data.observation)).mean()
    assert followed == pytest.approx(1 - 0.1 * 4 / 5, abs=0.04)


def test_rewards_are_regressed_on_what_agents_see_and_how_it_changes(demonstrations, tmp_path):
    """A critic that is a linear function of the cells has rewards that the regression finds exactly."""
    data = read_transitions(demonstrations)
    settings = NetworkSettings(hidden_sizes=[])
    torch.manual_seed(0)
    algorithm = bind(STAGES["marginal"].loss, "loss")(Networks(data.spaces, settings))
    (tmp_path / "policy").mkdir()
    ControlPolicy(data.spaces, settings, algorithm.actor_form, algorithm.actor).save(
        tmp_path / "policy", algorithm.loss.state_dict()
    )
    (tmp_path / "data").mkdir()
    buffer = Buffer(len(data), data.spaces)
    buffer.add(data)
    with torch.no_grad():
        reward_BG = algorithm.loss.recover(buffer.make_batch(torch.arange(len(data))))[0].double().numpy()
    write_transitions(tmp_path / "data", data)
    context = Context(
        {"policy": tmp_path / "policy", "transitions": tmp_path / "data"}, tmp_path, tmp_path / "checkpoints", seed=1
    )
    found = recover_rewards(context, ridge=0.5)
    weights = json.loads((context.output("result") / "rewards.json").read_text())["weights"]
    for n in range(2):
        before, after = (shown.reshape(len(data), 2, -1)[:, n] for shown in (data.observation, data.next_observation))
        features = np.concatenate([np.ones((len(data), 1)), before, after - before], 1).astype(float)
        w = np.array(weights[n])
        assert features.T @ (reward_BG[:, n] - features @ w) == pytest.approx(0.5 * w, abs=1e-6)
    assert found["steps"] == len(data)
    assert 0 < found["explained"] < 1
    assert -1 <= found["correlation"] <= 1


def test_the_arms_differ_in_the_others_or_the_whole_learner():
    marginal, best, cloned = (STAGES[name].model_dump() for name in ("marginal", "best", "cloned"))
    assert (marginal.pop("loss"), best.pop("loss")) == ({"use": "mamql"}, {"use": "mamql", "others": "best"})
    assert cloned.pop("loss") == {"use": "team_bc"}
    assert (marginal["algorithm"], best["algorithm"], cloned["algorithm"]) == (None, None, None)
    assert marginal == best == cloned
    assert marginal["data"] == ["demonstrations"]
    assert marginal["environment_steps"] == 0
    assert list(STAGES["report"].models) == ["cloned", "best", "marginal"]
    assert STAGES["rewards"].inputs == {"policy": "marginal", "transitions": "demonstrations"}
