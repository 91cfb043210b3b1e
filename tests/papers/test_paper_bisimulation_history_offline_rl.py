"""Bisimulation of histories: the loss of a pair, what it does to the encoder, and what it is for a belief's encoding.

Not shown: the bound on samples, language models.
"""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.modules import MLP

from learning.control.buffers.buffer import make_batch
from learning.control.losses.bisimulation import bisimulation, compare_pairs, encode
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.histories import FORWARD, LEFT, RIGHT, Maze, Remembering, t_maze, walk_and_turn
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/bisimulation-history-offline-rl.yaml").stages
LENGTH, MIDDLE, SYMBOLS, STEPS = 4, 2, 4, 5
SIZE = 2 + SYMBOLS + LENGTH + 1
"""Numbers of one observation."""
SAME = torch.zeros(2, dtype=torch.int64)
OTHER = torch.tensor([1, 0])


def test_the_loss_of_a_pair():
    """Distances .5, 1 and 1: (.5 − 1 − .9)² is 1.96, of both orders of the pair."""
    now, later, reward = torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([2.0, 1.0])
    assert compare_pairs(now, later, reward, SAME, OTHER, 0.9).tolist() == pytest.approx([1.96, 1.96])
    far = compare_pairs(torch.tensor([[1.0, -0.9], [0.0, 0.0]]), later, reward, SAME, OTHER, 0.9)
    assert far.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_pairs_with_different_actions_and_steps_with_themselves_do_not_count():
    now, later, reward = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3)
    action, other = torch.tensor([0, 1, 1]), torch.tensor([1, 2, 2])
    found = compare_pairs(now, later, reward, action, other, 0.9)
    assert len(found) == 1
    expected = (now[1] - now[2]).abs().sum() - (reward[1] - reward[2]).abs() - 0.9 * (later[1] - later[2]).abs().sum()
    assert found.item() == pytest.approx(expected.square().item(), rel=1e-5)


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["encoded"].loss, "loss")(
        Networks(Spaces(STEPS * SIZE, 3), NetworkSettings(hidden_sizes=[32, 8]))
    )


def make_histories():
    """Two histories of a sign in the last cell before the fork, which differ in symbols alone, and go on alike."""
    world = Remembering(Maze(LENGTH, SYMBOLS, 0, 12), STEPS)
    pairs = []
    for seed in (0, 1, 2, 3, 4, 5, 6, 7):
        world.reset(seed=seed)
        before = [world.step(FORWARD)[0] for _ in range(LENGTH - 1)][-1]
        pairs.append((world.world.sign, before, world.step(FORWARD)[0]))
    one, two = [pair for pair in pairs if pair[0] == 0][:2]
    columns = {"observation": np.stack([one[1], two[1]]), "next_observation": np.stack([one[2], one[2]])}
    made = {name: torch.from_numpy(column) for name, column in columns.items()}
    none = torch.zeros(2, 1, dtype=torch.bool)
    return make_batch({**made, "action": SAME, "reward": torch.zeros(2, 1), "terminated": none, "truncated": none})


def ask(batch, algorithm):
    """The recipe's term on a batch whose steps are in the opposite order."""
    bound = bind(STAGES["encoded"].loss_terms["bisimulation"], "loss_terms.bisimulation")
    torch.manual_seed(next(seed for seed in range(99) if torch.randperm(2, generator=seeded(seed)).tolist() == [1, 0]))
    return bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def measure_distance(batch, algorithm):
    with torch.no_grad():
        one, two = encode(algorithm.actor, batch["observation"])
    return (one - two).abs().sum().item()


def test_histories_that_differ_in_what_means_nothing_are_drawn_together(algorithm):
    """Their target is 0: their loss is their distance squared, and both fall; without the term there is no gradient."""
    batch = make_histories()
    assert (batch["observation"][0] != batch["observation"][1]).any()
    before = measure_distance(batch, algorithm)
    assert ask(batch, algorithm).item() == pytest.approx(before**2, rel=1e-4)
    optimizer = torch.optim.SGD(algorithm.loss.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        ask(batch, algorithm).backward()
        optimizer.step()
    assert measure_distance(batch, algorithm) < 0.1 * before
    assert set(STAGES["plain"].loss_terms) == {"conservative"}
    algorithm.loss.zero_grad()
    weightless = 0.0 * ask(batch, algorithm)
    weightless.backward()
    assert all(p.grad is None or not p.grad.any() for p in algorithm.loss.parameters())


def test_what_follows_is_held_and_is_nothing_behind_an_end(algorithm):
    batch = make_histories()
    batch["next", "observation"] = torch.rand(2, STEPS * SIZE, generator=seeded(1))
    batch["next", "reward"] = torch.tensor([[1.0], [0.25]])
    with torch.no_grad():
        for parameter in algorithm.loss.target_value_network_params.values(True, True):
            parameter.mul_(1.5)
        now = encode(algorithm.actor, batch["observation"])
        with algorithm.loss.target_value_network_params.to_module(algorithm.loss.value_network):
            later = encode(algorithm.loss.value_network, batch["next", "observation"])
    apart, follow = ((one[0] - one[1]).abs().sum().item() for one in (now, later))
    assert ask(batch, algorithm).item() == pytest.approx((apart - 0.75 - 0.9 * follow) ** 2, rel=1e-4)
    batch["next", "terminated"] = torch.ones(2, 1, dtype=torch.bool)
    assert ask(batch, algorithm).item() == pytest.approx((apart - 0.75) ** 2, rel=1e-4)
    with pytest.raises(StepError, match="loss: dqn"):
        bisimulation(batch, None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The recipe's two halves of the data."""
    made = {}
    for name in ("entrances", "forks"):
        folder = tmp_path_factory.mktemp("bisimulation") / name
        folder.mkdir()
        collect.run(STAGES[name], Context({}, folder, folder / "checkpoints", seed=1))
        made[name] = folder / "outputs/transitions"
    return made


def test_no_episode_has_both_the_entrance_and_the_fork(data):
    parts = {name: read_transitions(path) for name, path in data.items()}
    cells = {name: part.observation[:, -(LENGTH + 1) :].argmax(1) for name, part in parts.items()}
    assert set(cells["entrances"]) == {0, 1, 2}
    assert set(cells["forks"]) == {2, 3, 4}
    assert not parts["entrances"].reward.any()
    assert parts["forks"].reward[cells["forks"] == LENGTH].mean() == pytest.approx(0.5, abs=0.12)
    walked = {name: set(part.action[cells[name] < LENGTH]) for name, part in parts.items()}
    assert walked == {"entrances": {FORWARD}, "forks": {FORWARD}}
    assert set(parts["forks"].action[cells["forks"] == LENGTH]) == {LEFT, RIGHT}


def write_belief(folder, *, scale=1.0):
    """A policy whose encoding is the belief's: ± ½ .9^d at d cells before the fork, + for left; times a scale."""
    settings = NetworkSettings(hidden_sizes=[2 * (LENGTH + 1), 1])
    algorithm = bind(STAGES["encoded"].loss, "loss")(Networks(Spaces(STEPS * SIZE, 3), settings))
    (layers,) = (module for module in algorithm.actor.modules() if isinstance(module, MLP))
    first, second = layers[0], layers[2]
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.zero_(), layer.bias.zero_()
        for sign in range(2):
            for cell in range(LENGTH + 1):
                unit = sign * (LENGTH + 1) + cell
                first.weight[unit, [step * SIZE + sign for step in range(STEPS)]] = 1.0
                first.weight[unit, (STEPS - 1) * SIZE + 2 + SYMBOLS + cell] = 1.0
                first.bias[unit] = -1.0
                second.weight[0, unit] = scale * (0.5 - sign) * 0.9 ** (LENGTH - cell)
        second.bias[0] = 1.0  # the unit is rectified, and distances do not see it
    folder.mkdir()
    spaces = Spaces(STEPS * SIZE, 3)
    ControlPolicy(spaces, settings, "make_choice_values", algorithm.actor).save(folder, algorithm.loss.state_dict())
    return folder, layers


def measure(folder, policy, path):
    context = Context({"policy": policy, "transitions": path}, folder, folder / "checkpoints", seed=1)
    folder.mkdir()
    return bind(STAGES["measured"].function)(context)


def test_the_measure_of_a_beliefs_encoding_is_zero(data, tmp_path):
    policy, layers = write_belief(tmp_path / "belief")
    part = read_transitions(data["forks"])
    with torch.no_grad():
        shown = torch.from_numpy(part.observation.copy())
        made = encode(layers, shown)[:, 0] - 1.0
    cell, sign = shown[:, -(LENGTH + 1) :].argmax(1), shown.reshape(-1, STEPS, SIZE)[:, :, 1].sum(1)
    assert made.tolist() == pytest.approx(((0.5 - sign) * 0.9 ** (LENGTH - cell)).tolist(), abs=1e-6)
    found = measure(tmp_path / "found", policy, data["forks"])
    corridor = measure(tmp_path / "corridor", policy, data["entrances"])
    assert found["bisimulation"] == pytest.approx(0.0, abs=1e-9)
    assert corridor["bisimulation"] == pytest.approx(0.0, abs=1e-9)
    assert found["spread"] > 0.4
    worse, _ = write_belief(tmp_path / "half", scale=0.5)
    assert measure(tmp_path / "worse", worse, data["forks"])["bisimulation"] > 0.01
    settings = NetworkSettings(hidden_sizes=[4])
    other = Networks(Spaces(STEPS * SIZE, 3), settings).make_stochastic_actor()
    (tmp_path / "drawn").mkdir()
    ControlPolicy(Spaces(STEPS * SIZE, 3), settings, "make_stochastic_actor", other).save(tmp_path / "drawn", {})
    with pytest.raises(StepError, match="values of choices"):
        measure(tmp_path / "none", tmp_path / "drawn", data["forks"])


def test_the_sign_is_shown_at_the_entrance_and_pays_at_the_fork():
    world = t_maze(length=3, symbols=2, entrance=1)
    for seed in range(6):
        shown, _ = world.reset(seed=seed)
        sign = int(shown[:2].argmax())
        assert shown[:2].sum() == 1
        assert world.step(LEFT)[1:4] == (0.0, False, False)  # turning in the corridor
        for cell in (2, 3):
            shown = world.step(FORWARD)[0]
            assert (shown[:2].sum(), shown[2:4].sum(), shown[4:].argmax()) == (0, 1, cell)
        assert world.step(FORWARD)[0][4:].argmax() == 3
        assert world.step(LEFT if seed % 2 else RIGHT)[1:3] == (float((sign == 0) == bool(seed % 2)), True)
    with pytest.raises(StepError, match="before the fork"):
        t_maze(length=3, entrance=3)


class Unsized(Maze):
    """A world whose observations have any length."""

    def __init__(self) -> None:
        super().__init__(2, 1, 0, 3)
        self.observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))


def test_a_history_has_the_newest_observation_last_and_begins_with_zeros():
    worlds = Worlds(bind(STAGES["report"].env, "env"), 1, 1, "test")
    shown = worlds.observation.reshape(STEPS, SIZE)
    assert not shown[:-1].any()
    for _ in range(LENGTH):
        worlds.step(np.array([FORWARD]))
    history = worlds.observation.reshape(STEPS, SIZE)
    assert (history[0] == shown[-1]).all()
    assert history[:, -(LENGTH + 1) :].argmax(1).tolist() == [0, 1, 2, 3, 4]
    rng = np.random.default_rng(0)
    turned = walk_and_turn(np.tile(worlds.observation, (200, 1)), rng)
    assert set(turned) == {LEFT, RIGHT}
    with pytest.raises(StepError, match="no fixed size"):
        Remembering(Unsized(), 2)


def test_the_arms_differ_in_the_term_alone():
    encoded, plain = (STAGES[name].model_dump() for name in ("encoded", "plain"))
    term = encoded["loss_terms"].pop("bisimulation")
    assert (term["use"], term["gamma"], term["coef"]) == ("bisimulation", 0.9, 0.5)
    assert encoded == plain
    assert encoded["loss"]["gamma"] == 0.9 == STAGES["measured"].function.options["gamma"]
    assert encoded["data"] == ["entrances", "forks"]
    assert encoded["loss_terms"]["conservative"]["coef"] == 0.1
    measured, other = (STAGES[name].model_dump() for name in ("measured", "measured_plain"))
    assert (measured.pop("inputs")["policy"], other.pop("inputs")["policy"]) == ("encoded", "plain")
    assert measured == other
