"""The decision transformer: its forward in plain torch, its windows by hand, what it remembers."""

import math

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import Buffer
from learning.control.losses.decision_transformer import decision_transformer, find_episodes
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Steps
from schemas.control import NetworkSettings
from schemas.errors import StepError

BOX, CHOICES = Spaces(3, 2, (-2.0, 0.0), (2.0, 1.0), (2,)), Spaces(2, 3)


def make(spaces, hidden_sizes=(8, 8), **options):
    torch.manual_seed(0)
    settings = NetworkSettings(hidden_sizes=list(hidden_sizes), heads=2, context=3, longest_episode=12)
    algorithm = decision_transformer(Networks(spaces, settings), **options)
    with torch.no_grad():
        for parameter in algorithm.actor.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return algorithm


def keep(lengths, spaces=CHOICES, cut=()):
    """Episodes with these numbers of steps; those of `cut` were cut off. Rewards are 1, 2, 3, … all through."""
    rng, count = np.random.default_rng(3), sum(lengths)
    ends = np.cumsum(lengths) - 1
    ended = {
        name: np.isin(np.arange(count), chosen)
        for name, chosen in (("terminated", np.delete(ends, list(cut))), ("truncated", ends[list(cut)]))
    }
    action = rng.integers(spaces.actions, size=count) if spaces.is_discrete else rng.uniform(0, 1, (count, 2))
    kept, shown = Buffer(count, spaces), rng.normal(size=(count, spaces.observations))
    kept.add(Steps(shown, action, np.arange(1.0, count + 1), shown, ended["terminated"], ended["truncated"], ()))
    return kept


def forward(model, layers, heads, shown, action, to_go, step):
    """Actions of a window by the papers' formulas: GPT-2's blocks without positions, on (R, s, a) of each step."""
    p = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def embed(x, name):
        return x @ p[f"embed_{name}.weight"].T + p[f"embed_{name}.bias"] + p["embed_timestep.weight"][step]

    steps = len(shown)
    rows = [embed(x, name) for x, name in ((to_go[:, None], "return"), (shown, "state"), (action, "action"))]
    x = norm(torch.stack(rows, 1).reshape(3 * steps, -1), "embed_ln")
    x = x + p["encoder.wpe.weight"][0]
    later = torch.ones(3 * steps, 3 * steps).triu(1).bool()
    for layer in range(layers):
        at = f"encoder.h.{layer}"
        mixed = norm(x, f"{at}.ln_1") @ p[f"{at}.attn.c_attn.weight"] + p[f"{at}.attn.c_attn.bias"]
        heads_of = [part.reshape(3 * steps, heads, -1).transpose(0, 1) for part in mixed.chunk(3, -1)]
        query, key, value = heads_of
        score = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(later, -torch.inf)
        seen = (score.softmax(-1) @ value).transpose(0, 1).reshape(3 * steps, -1)
        x = x + seen @ p[f"{at}.attn.c_proj.weight"] + p[f"{at}.attn.c_proj.bias"]
        hidden = torch.relu(norm(x, f"{at}.ln_2") @ p[f"{at}.mlp.c_fc.weight"] + p[f"{at}.mlp.c_fc.bias"])
        x = x + hidden @ p[f"{at}.mlp.c_proj.weight"] + p[f"{at}.mlp.c_proj.bias"]
    of_states = norm(x, "encoder.ln_f").reshape(steps, 3, -1)[:, 1]
    return of_states @ p["predict_action.0.weight"].T + p["predict_action.0.bias"]


@pytest.mark.parametrize("spaces", [BOX, CHOICES], ids=["box", "choices"])
def test_its_forward_is_that_of_the_paper(spaces):
    actor = make(spaces).actor
    torch.manual_seed(1)
    shown, to_go, step = torch.randn(2, 3, spaces.observations), torch.randn(2, 3), torch.tensor([[0, 1, 2], [5, 6, 7]])
    taken = torch.rand(2, 3, 2) if spaces is BOX else torch.randint(3, (2, 3))
    actor.fit_scales(
        torch.tensor([[1.0] * spaces.observations, [5.0] * spaces.observations]), torch.tensor([-4.0, 2.0]), 1
    )
    encoded = actor.encode_actions(taken)
    boxed = torch.stack([taken[..., 0] / 2, 2 * taken[..., 1] - 1], -1) if spaces is BOX else torch.eye(3)[taken]
    assert torch.allclose(encoded, boxed, atol=1e-6)
    made = actor(shown, encoded, to_go, step)
    for b in range(2):
        expected = forward(actor.transformer, 2, 2, (shown[b] - 3) / 2, encoded[b], to_go[b] / 4, step[b])
        expected = expected.tanh() if spaces is BOX else expected
        assert made[b].detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def test_windows_are_pieces_of_one_episode_with_the_returns_that_followed():
    episodes = find_episodes(keep([4, 1, 3], cut=[2]).save())
    assert episodes.step_C.tolist() == [0, 1, 2, 3, 0, 0, 1, 2]
    assert episodes.end_C.tolist() == [3, 3, 3, 3, 4, 7, 7, 7]
    assert episodes.return_C.tolist() == [10, 9, 7, 4, 5, 21, 15, 8]
    torch.manual_seed(0)
    batch = episodes.draw(4000, 3)
    first = batch["return_to_go"][:, 0]
    shares = {value: (first == value).float().mean().item() for value in (10, 9, 7, 4, 5, 21, 15, 8)}
    assert all(share == pytest.approx(1 / 8, abs=0.02) for share in shares.values()), (
        "every step begins as many windows"
    )
    mask = {value: batch["mask"][first == value][0].tolist() for value in (10, 7, 4, 5, 15)}
    assert mask == {
        10: [True] * 3,
        7: [True, True, False],
        4: [True, False, False],
        5: [True, False, False],
        15: [True, True, False],
    }
    row = (first == 21).nonzero()[0, 0]
    assert (batch["step"][row].tolist(), batch["return_to_go"][row].tolist()) == ([0, 1, 2], [21, 15, 8])


@pytest.mark.parametrize("spaces", [BOX, CHOICES], ids=["box", "choices"])
def test_the_loss_is_the_mean_over_steps_that_are_in_the_episode(spaces):
    """The loss is torch's own over the steps before the end; what lies behind it changes nothing."""
    from torch.distributions import Categorical
    from torch.nn.functional import mse_loss

    algorithm, kept = make(spaces), keep([4, 1, 3], spaces)
    batch = algorithm.draw([kept], 16)
    made = algorithm.actor(
        batch["observation"], algorithm.actor.encode_actions(batch["action"]), batch["return_to_go"], batch["step"]
    )
    inside = batch["mask"]
    if spaces is BOX:
        expected = mse_loss(made[inside], algorithm.actor.encode_actions(batch["action"])[inside])
    else:
        expected = -Categorical(logits=made[inside]).log_prob(batch["action"][inside]).mean()
    term = algorithm.loss(batch)["loss_action"]
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)
    other = batch.clone()
    other["observation"] = torch.where(inside[..., None], batch["observation"], 7.0)
    other["return_to_go"] = torch.where(inside, batch["return_to_go"], 7.0)
    assert not inside.all()
    assert algorithm.loss(other)["loss_action"].item() == pytest.approx(term.item(), rel=1e-6)


@pytest.mark.parametrize("spaces", [BOX, CHOICES], ids=["box", "choices"])
def test_it_acts_by_its_last_steps_and_wants_what_is_left_of_the_target(spaces):
    """Two worlds, of which the second begins again in between: each action is that of the window written down."""
    algorithm = make(spaces, target_return=9.0)
    algorithm.draw([keep([4, 1, 3], spaces)], 4)
    actor, rng = algorithm.actor, np.random.default_rng(0)
    player, history = actor.begin(2), [[], []]
    for t in range(5):
        shown = rng.normal(size=(2, spaces.observations)).astype(np.float32)
        action = player.act(shown, explore=False)
        for n in range(2):
            earned = sum(step[2] for step in history[n])
            history[n].append([shown[n], None, None, 9.0 - earned, len(history[n])])
            window = history[n][-3:]
            encoded = [np.zeros(spaces.actions, np.float32) if step[1] is None else step[1] for step in window]
            tensors = [torch.tensor(np.array([step[i] for step in window])) for i in (0, 3, 4)]
            with torch.no_grad():
                made = actor(
                    tensors[0][None], torch.tensor(np.array(encoded))[None], tensors[1][None].float(), tensors[2][None]
                )
            last = made[0, -1].numpy()
            expected = [4 * (last[0] + 1) / 2 - 2, (last[1] + 1) / 2] if spaces is BOX else last.argmax()
            assert action[n] == pytest.approx(expected, abs=1e-5), (t, n)
        reward, ended = rng.normal(size=2), np.array([False, t == 2])
        player.see(Steps(shown, action, reward, shown, ended, np.zeros(2, bool), ()))
        for n in range(2):
            history[n][-1][1:3] = actor.encode_actions(torch.from_numpy(action))[n].numpy(), reward[n]
            if ended[n]:
                history[n] = []


def test_without_a_target_it_wants_the_best_return_of_the_data_and_sizes_are_checked():
    algorithm = make(CHOICES)
    algorithm.draw([keep([4, 1, 3])], 4)
    assert algorithm.actor.target_return.item() == 21
    assert algorithm.actor.return_scale.item() == 21
    with pytest.raises(StepError, match="hidden layers of one size"):
        make(CHOICES, hidden_sizes=(8, 6))
    long = make(CHOICES)
    batch = long.draw([keep([14])], 16)
    with pytest.raises(StepError, match="longest_episode 12"):
        long.loss(batch)
