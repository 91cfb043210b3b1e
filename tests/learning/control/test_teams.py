"""Teams: worlds of PettingZoo as one world, mixers and losses against formulas written again, games with known ends."""

import numpy as np
import pytest
import torch
from pettingzoo import ParallelEnv
from tensordict import TensorDict
from torch.nn.functional import elu, mse_loss, one_hot

from learning.control.buffers.rollouts import add_previous_policy
from learning.control.losses import team_losses
from learning.control.networks.build import Networks
from learning.control.policies.policy import act
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.stepping.teams import Team, join_agents
from learning.control.stepping.worlds import Worlds
from learning.control.worlds import team_games
from schemas.control import NetworkSettings
from schemas.errors import StepError
from tests.control_worlds import corridor

SPACES = Spaces(8, 3, agents=2)
G, A, B = 2, 3, 20


def make(name, **options):
    torch.manual_seed(0)
    algorithm = getattr(team_losses, name)(Networks(SPACES, NetworkSettings(hidden_sizes=[6])), **options)
    for target in (p for n, p in algorithm.loss.named_buffers() if n.startswith("target_") and p.is_floating_point()):
        target.add_(torch.randn(target.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return algorithm


def make_batch(*shape):
    g = torch.Generator().manual_seed(2)
    done = torch.rand(*shape, 1, generator=g) < 0.3
    following = {"observation": torch.randn(*shape, 8, generator=g), "reward": torch.randn(*shape, 1, generator=g)}
    following |= {"terminated": done, "done": done}
    action = torch.randint(A, (*shape, G), generator=g)
    shown = torch.randn(*shape, 8, generator=g)
    return TensorDict({"observation": shown, "action": action, "next": TensorDict(following, shape)}, shape)


def values(state, prefix, shown, central=False):
    """Outputs (…, G, n) of one network for each agent, of one hidden layer with `act`."""
    parts = shown.unflatten(-1, (G, -1))
    made = []
    for agent in range(G):
        x = shown if central else parts[..., agent, :]
        layers = [(state[f"{prefix}{layer}.weight"][agent], state[f"{prefix}{layer}.bias"][agent]) for layer in (0, 2)]
        hidden = torch.relu(x @ layers[0][0].T + layers[0][1])
        made.append(hidden @ layers[1][0].T + layers[1][1])
    return torch.stack(made, -2)


def find_prefix(state, beginning):
    (name,) = [name for name in state if name.startswith(beginning) and name.endswith("0.weight")]
    return name.removesuffix("0.weight")


def mix_by_hand(state, beginning, chosen, shown):
    """QMIX's mixer: two layers with weights from the state, which are not negative."""

    def layer(name, x):
        (weight,) = [v for k, v in state.items() if k.startswith(beginning) and k.endswith(f"{name}.weight")]
        (bias,) = [v for k, v in state.items() if k.startswith(beginning) and k.endswith(f"{name}.bias")]
        return x @ weight.T + bias

    first = layer("hyper_w_1", shown).abs().unflatten(-1, (G, -1))
    hidden = elu((chosen[..., None] * first).sum(-2) + layer("hyper_b_1", shown))
    bias = layer("V.2", torch.relu(layer("V.0", shown)))[:, 0]
    return (hidden * layer("hyper_w_final", shown).abs()).sum(-1) + bias


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_the_teams_value_is_learned_as_a_mixture_of_its_agents_values(name):
    algorithm, batch = make(name, gamma=0.9), make_batch(B)
    state = {n: t for n, t in algorithm.loss.state_dict().items() if isinstance(t, torch.Tensor)}

    def mix(target, chosen, shown):
        if name == "vdn":
            return chosen.sum(-1)
        return mix_by_hand(state, f"{'target_' if target else ''}mixer_network_params", chosen, shown)

    now = values(state, find_prefix(state, "local_value_network_params"), batch["observation"])
    taken = now.gather(-1, batch["action"][..., None])[..., 0]
    following = batch["next"]
    later = values(state, find_prefix(state, "target_local_value_network_params"), following["observation"])
    best = mix(True, later.max(-1).values, following["observation"])
    y = following["reward"][:, 0] + 0.9 * ~following["terminated"][:, 0] * best
    expected = mse_loss(mix(False, taken, batch["observation"]), y)
    assert algorithm.loss(batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    chosen = act(algorithm.actor, batch["observation"].numpy(), explore=False)
    assert chosen.tolist() == now.argmax(-1).tolist(), "each agent takes its own best choice, by what it sees"


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_agents_are_clipped_one_by_one_and_critics_see_one_or_all(name):
    algorithm, batch = make(name, gamma=0.9, lmbda=0.8, entropy_coef=0.1, critic_coef=0.7), make_batch(4, 5)
    batch["next", "done"][:, -1] = True
    state = {n: t for n, t in algorithm.loss.state_dict().items() if isinstance(t, torch.Tensor)}
    critic = find_prefix(state, "critic_network")
    before = values(state, find_prefix(state, "actor_network"), batch["observation"]).log_softmax(-1)
    with torch.no_grad():
        add_previous_policy(algorithm.actor, batch)
        algorithm.advantage(batch)
    value, after = (
        values(state, critic, steps["observation"], name == "mappo")[..., 0] for steps in (batch, batch["next"])
    )
    advantage, running = torch.zeros(4, 5, G), torch.zeros(4, G)
    for t in reversed(range(5)):
        ended, done = (batch["next", key][:, t].float() for key in ("terminated", "done"))
        delta = batch["next", "reward"][:, t] + 0.9 * (1 - ended) * after[:, t] - value[:, t]
        running = delta + 0.9 * 0.8 * (1 - done) * running
        advantage[:, t] = running
    assert batch["advantage"][..., 0] == pytest.approx(advantage.numpy(), abs=1e-5)
    with torch.no_grad():
        for parameter in algorithm.actor.parameters():
            parameter.mul_(1.5)
    state = {n: t for n, t in algorithm.loss.state_dict().items() if isinstance(t, torch.Tensor)}
    flat = batch.reshape(-1)
    now = values(state, find_prefix(state, "actor_network"), flat["observation"]).log_softmax(-1)
    old = before.reshape(20, G, A).gather(-1, flat["action"][..., None])[..., 0]
    ratio = (now.gather(-1, flat["action"][..., None])[..., 0] - old).exp()
    a = advantage.reshape(20, G)
    a = (a - a.mean(0)) / a.std(0)
    terms = algorithm.loss(flat)
    expected = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    assert not torch.equal(ratio, ratio.clamp(0.8, 1.2))
    assert terms["loss_objective"].item() == pytest.approx(expected.item(), abs=1e-5)
    critic_error = mse_loss(value.reshape(20, G), (advantage + value).reshape(20, G))
    assert terms["loss_critic"].item() == pytest.approx(0.7 * critic_error.item(), rel=1e-4)
    entropy = -(now.exp() * now).sum(-1)
    assert terms["loss_entropy"].item() == pytest.approx(-0.1 * entropy.mean().item(), rel=1e-4)


@pytest.mark.parametrize(("name", "choice"), [("vdn", 0), ("qmix", 1)])
def test_sums_of_values_miss_the_best_of_the_two_step_game_and_monotonic_mixtures_do_not(name, choice):
    """Rashid et al. 2018: by least squares, sums show 6.5 for the pair that earns 8, less than the safe 7."""
    spaces = read_spaces(Team(team_games.two_step()))
    assert (spaces.agents, spaces.actions, spaces.observations) == (2, 2, 6)
    rows = [(0, a, b, 0, 1 + a, False) for a in (0, 1) for b in (0, 1)]
    rows += [(1, a, b, 7, 1, True) for a in (0, 1) for b in (0, 1)]
    rows += [(2, a, b, (0, 1, 8)[a + b], 2, True) for a in (0, 1) for b in (0, 1)]
    before, first, second, reward, after, ended = torch.tensor([[float(x) for x in row] for row in rows]).T
    shown, following = (one_hot(column.long(), 3).repeat(1, 2).float() for column in (before, after))
    done = ended.bool()[:, None]
    later = TensorDict({"observation": following, "reward": reward[:, None], "terminated": done, "done": done}, [12])
    action = torch.stack([first, second], -1).long()
    batch = TensorDict({"observation": shown, "action": action, "next": later}, [12])
    torch.manual_seed(1)
    networks = Networks(spaces, NetworkSettings(hidden_sizes=[16]))
    algorithm = getattr(team_losses, name)(networks, gamma=1.0, tau=0.1)
    optimizer = torch.optim.Adam([p for p in algorithm.loss.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        algorithm.loss(batch)["loss"].backward()
        optimizer.step()
        algorithm.update_targets()
    states = np.tile(np.eye(3, dtype=np.float32), 2)
    taken = act(algorithm.actor, states, explore=False)
    assert taken[0, 0] == choice
    if name == "vdn":
        value = algorithm.actor(TensorDict({"observation": torch.from_numpy(states)}, [3]))["action_value"].detach()
        sums = value[2, 0][:, None] + value[2, 1]
        assert sums.numpy() == pytest.approx(np.array([[-1.5, 2.5], [2.5, 6.5]]), abs=0.1)
    else:
        assert taken[2].tolist() == [1, 1]


def test_games_pay_what_the_papers_say():
    world = Team(team_games.two_step())
    for first, table in ((0, team_games.SAFE), (1, team_games.TOGETHER)):
        for pair, reward in np.ndenumerate(np.array(table)):
            assert world.reset(seed=0)[0].tolist() == [1, 0, 0, 1, 0, 0]
            shown, earned, *ends, _ = world.step(np.array([first, 1]))
            assert (shown.argmax(), earned, ends) == (1 + first, 0, [False, False])
            assert world.step(np.array(pair))[1:4] == (reward, True, False)
    climbing = Team(team_games.climbing())
    climbing.reset()
    assert climbing.step(np.array([1, 0]))[1:4] == (-30, True, False)


class Relay(ParallelEnv):
    """Two agents who see their number and the step; `first` finishes before `second`, who is cut off."""

    possible_agents = ["first", "second"]
    metadata = {"name": "relay"}

    def observation_space(self, agent):
        from gymnasium.spaces import Box

        return Box(0, 9, (2,), np.float32)

    def action_space(self, agent):
        from gymnasium.spaces import Discrete

        return Discrete(3 if agent == "first" else self.choices)

    def __init__(self, choices=3):
        self.choices = choices

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return {name: np.array([n + 1, 0]) for n, name in enumerate(self.agents)}, {}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.steps += 1
        shown = {name: np.array([self.possible_agents.index(name) + 1, self.steps]) for name in self.agents}
        rewards = {name: float(action) for name, action in actions.items()}
        ended = {name: name == "first" for name in self.agents}
        cut = {name: name == "second" and self.steps == 2 for name in self.agents}
        self.agents = [name for name in self.agents if not (ended[name] or cut[name])]
        return shown, rewards, ended, cut, {}


def test_agents_that_have_finished_see_zeros_and_the_last_one_ends_the_episode():
    world = join_agents(Relay())
    assert world.reset(seed=1)[0].tolist() == [1, 0, 2, 0]
    shown, earned, ended, cut, _ = world.step(np.array([2, 1]))
    assert (shown.tolist(), earned, ended, cut) == ([1, 1, 2, 1], 1.5, False, False)
    shown, earned, ended, cut, _ = world.step(np.array([2, 1]))
    assert (shown.tolist(), earned, ended, cut) == ([0, 0, 2, 2], 0.5, False, True)
    with pytest.raises(StepError, match="as many choices"):
        join_agents(Relay(choices=2))
    plain = corridor()
    assert join_agents(plain) is plain


def test_a_team_is_stepped_saved_and_brought_back_like_other_worlds():
    worlds = Worlds(team_games.two_step, 2, 0, "test")
    steps = worlds.step(np.array([[1, 0], [0, 1]]))
    assert steps.next_observation.argmax(1).tolist() == [2, 1]
    tensors, state = worlds.save()
    again = Worlds(team_games.two_step, 2, 0, "test")
    again.restore(tensors, state)
    assert again.step(np.array([[1, 1], [1, 1]])).reward.tolist() == [8, 7]
    assert Spaces.load(worlds.spaces.dump()) == worlds.spaces
    assert "2 choices for each of 2 agents" in worlds.spaces.describe()
