"""T-PPO: an unfinished window bootstraps from its last value, trains the policy once and the critic not at all, and is
continued.

Not shown: 2.5 times less wall-clock time at 32B; a gain in accuracy at this size.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest, single_turn
from learning.generation.replicas.engine_loading import make_engine
from learning.rl.auxiliary_models import Critic
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "t-ppo.yaml"
STAGE = load_recipe(RECIPE, profile="tiny").stages["trained"]


def advantages(finish, reward, tail=None):
    """A of three tokens with V = 0.2, 0.5, 0.4 by the recipe's operation with λ = 0.5."""
    options = {"lam": 0.5, **({"tail": tail} if tail else {})}
    stage = STAGE.model_copy(update={"advantage": [STAGE.advantage[0].model_copy(update=options)]})
    made = single_turn([[1]], [[Generation([7] * 3, [-1.0] * 3, finish)]])
    made = made.with_tokens(value=torch.tensor([0.2, 0.5, 0.4], dtype=torch.float64))
    ends = {"reward": torch.tensor([reward]).double(), "value_end": torch.tensor([5.0]).double()}
    made = with_advantages(bind_algorithm(stage, {}), made.with_paths(**ends), 0)
    return made.sampled("advantage").tolist(), made.sampled("return").tolist()


def test_an_open_window_holds_its_last_value():
    assert advantages("length", 0.0)[0] == pytest.approx([0.25, -0.1, 0.0], abs=1e-12)


def test_a_finished_completion_earns_its_reward_and_monte_carlo_returns():
    estimated, returns = advantages("stop", 1.0)
    assert estimated == pytest.approx([0.4, 0.2, 0.6], abs=1e-12)
    assert returns == pytest.approx([1.0, 1.0, 1.0], abs=1e-12)


def test_a_cut_is_not_taken_for_an_end():
    as_an_end = advantages("length", 0.0, tail="terminal")[0]
    assert as_an_end == pytest.approx([0.15, -0.3, -0.4], abs=1e-12)
    assert advantages("length", 0.0)[0] != pytest.approx(as_an_end)


@pytest.fixture
def rollouts(tiny_policy):
    """Samples of six iterations of the recipe's rollout function, with a window of 4 and the tiny policy's engine."""
    drive = bind_sampling_slots(
        STAGE.model_copy(update={"rollout": STAGE.rollout.model_copy(update={"window": 4})}), {}
    ).rollout
    engine, states, samples = make_engine(STAGE.engine, tiny_policy), {}, []
    for step in range(6):
        sampler = Sampler(engine, tiny_policy, Sampling(1.0, 64), 3, step)
        row = {"id": str(step), "prompt": [{"role": "user", "content": "ab"}], "family": "f"}
        supplies = {"requests": [SampleRequest(row, 4)], "sampler": sampler, "step": step, "states": states}
        samples.append(drive.ask(step, supplies))
    return samples


def scored(samples):
    """The samples as a batch; what is suspended has earned nothing."""
    return forest([replace(t, scores={"r": 0.0}, reward=float(t.finish == "stop")) for t in samples])


def test_the_rollout_continues_from_the_same_tokens(rollouts):
    open_before: list = []
    for samples in rollouts:
        taken_up = samples[: len(open_before)]
        for old, new in zip(open_before, taken_up, strict=True):
            assert new.row == old.row
            assert new.completion_ids[: len(old.completion_ids)] == old.completion_ids
            assert new.logprobs[: len(old.logprobs)] == old.logprobs
            assert 0 < len(new.completion_ids) - len(old.completion_ids) <= 4
        open_before = [t for t in samples if t.finish == "suspended"]
    assert max(len(t.completion_ids) for samples in rollouts for t in samples) == 16  # four windows of 4


def test_new_completions_begin_only_while_fewer_run_than_an_iteration_asks_for(rollouts):
    running = 0
    for samples in rollouts:
        assert len(samples) == (running if running >= 4 else running + 4)
        running = sum(t.finish == "suspended" for t in samples)


def test_every_token_enters_the_policys_loss_exactly_once(rollouts):
    algorithm, trained = bind_algorithm(STAGE, {}), 0
    for step, samples in enumerate(rollouts):
        batch = with_weights(algorithm, with_dropped(scored(samples), False), step, 64)
        new_T = batch.sampled("version") == step
        assert torch.equal(batch.sampled("w") > 0, new_T)
        assert bool((new_T[batch.path_T == 0].diff() != -1).all())  # the new tokens are the last ones
        trained += int(new_T.sum())
    closed = [t for samples in rollouts for t in samples if t.finish != "suspended"]
    still_open = [t for t in rollouts[-1] if t.finish == "suspended"]
    assert trained == sum(len(t.completion_ids) for t in [*closed, *still_open]) > 50


def test_an_open_completion_trains_no_critic(rollouts, tiny_policy):
    judge = Critic(STAGE.critic, tiny_policy, STAGE, {}, 0)
    open_only = next(batch for samples in rollouts if (batch := [t for t in samples if t.finish != "stop"]))
    ready = with_advantages(bind_algorithm(STAGE, {}), judge.add_values(scored(open_only)), 0)
    before = [p.clone() for p in judge.network.parameters()]
    judge.update(ready, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, judge.network.parameters(), strict=True))
    assert "value_loss" not in judge.metrics(ready)
    ended = [replace(t, finish="stop") for t in open_only]
    ready = with_advantages(bind_algorithm(STAGE, {}), judge.add_values(scored(ended)), 0)
    judge.update(ready, 0)
    assert judge.metrics(ready)["value_loss"] == pytest.approx(0.5)
