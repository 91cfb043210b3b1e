"""UloRL: completions are sampled in segments, old segments are weighted in two ways, and mastered tokens are masked.

Not shown: outputs of 128k tokens and twice the speed of training.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest, single_turn
from learning.generation.engines.torch import Engine
from learning.rl.sampling_slots import bind_sampling_slots, keep_groups
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ulorl.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
FULL = load_recipe(RECIPE, profile="full").stages
DOUBLE = {"dtype": torch.float64}


def weighted(lengths, rewards, probabilities, entropies, name="trained"):
    """Weights of tokens by the recipe's selection and mean; `lengths` are those of each group's completions."""
    groups = [[Generation([7] * n, [-1.0] * n, "stop") for n in group] for group in lengths]
    made = single_turn([[number] for number in range(len(groups))], groups)
    made = with_dropped(made.with_paths(reward=torch.tensor(rewards, **DOUBLE)), False)
    made = made.with_tokens(lp_prox=torch.tensor(probabilities, **DOUBLE).log(), advantage=torch.ones(len(entropies)))
    made = made.with_tokens(entropy_prox=torch.tensor(entropies, **DOUBLE))
    return with_weights(bind_algorithm(FULL[name], {}), made, 0, 64).sampled("w")


def kept(probabilities, reward, entropies, name="trained"):
    """Weights of a completion's tokens, over what they would be if all were kept."""
    w_T = weighted([[len(probabilities)]], [reward], probabilities, entropies, name)
    return (w_T / w_T.max()).tolist()


@pytest.mark.parametrize("name", ["trained", "segment_aware"])
def test_mastered_tokens_are_left_out_while_the_entropy_is_low(name):
    assert kept([0.995, 0.5], 1.0, [0.02, 0.18], name) == [0.0, 1.0]
    assert kept([0.995, 0.5], 1.0, [0.1, 0.5], name) == [1.0, 1.0]
    assert kept([0.995, 0.5], 0.0, [0.02, 0.18], name) == [1.0, 1.0]
    assert kept([0.99, 0.9899], 1.0, [0.1, 0.1], name) == [0.0, 1.0]


@pytest.mark.parametrize("name", ["trained", "segment_aware"])
def test_each_completion_is_masked_by_its_own_entropy(name):
    """Equation 10: 0.1 is below the target of 0.2 and 0.5 is not, whatever the mean of both."""
    made = weighted([[2, 2]], [1.0, 1.0], [0.995, 0.5] * 2, [0.02, 0.18, 0.4, 0.6], name)
    assert (made > 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", ["trained", "segment_aware", "unmasked"])
def test_every_group_counts_as_much_as_another(name):
    """Equation 7: one over the group's tokens, whatever their number, and the mean over groups."""
    made = weighted([[1, 1], [2, 4]], [1.0] * 4, [0.5] * 8, [0.5] * 8, name)
    assert made.tolist() == pytest.approx([1 / 4] * 2 + [1 / 12] * 6, rel=1e-12)


@pytest.mark.parametrize("name", ["trained", "segment_aware", "unmasked"])
def test_groups_with_equal_rewards_are_left_out(name):
    keep = bind_sampling_slots(STAGES[name], {}).filter_groups
    row = {"id": "x", "family": "f"}
    samples = [
        Sample(row, group, "policy", [1], [5], [-1.0], "stop", "", scores={"r": score}, reward=score)
        for group, both in enumerate([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
        for score in both
    ]
    assert keep_groups(keep, samples, 0, {}, {}).paths["group"].tolist() == [0, 0]


def test_without_the_selection_all_tokens_count():
    assert kept([0.995, 0.5], 1.0, [0.02, 0.18], "unmasked") == [1.0, 1.0]


def ratios(name, lp, step=2):
    """The recipe's ratios of a completion whose three first tokens are of version 1 and the others of version 2."""
    behav, prox = [-1.0, -2.0, -0.5, -0.7, -1.1], [-1.3, -1.6, -0.6, -0.7, -1.1]
    row = {"id": "x", "family": "f"}
    made = forest([Sample(row, 0, "policy", [1], [5] * 5, behav, "stop", "", versions=[1, 1, 1, 2, 2])])
    supplies = {"lp_T": torch.tensor(lp or prox, **DOUBLE), "lp_prox_T": torch.tensor(prox, **DOUBLE)}
    supplies |= {"lp_behav_T": made.sampled("lp_behav"), "version_T": made.sampled("version"), "step": step}
    return bind_algorithm(STAGES[name], {}).ratio.ask(step, supplies).exp().tolist()


def test_before_the_update_the_pseudo_on_policy_ratio_is_1_and_the_segment_aware_one_is_not():
    assert ratios("trained", None) == pytest.approx([1.0] * 5, abs=1e-12)
    want = torch.tensor([-0.3, 0.4, -0.1, 0.0, 0.0], **DOUBLE).exp().tolist()
    assert ratios("segment_aware", None) == pytest.approx(want, abs=1e-12)
    assert all(abs(r - 1) > 0.05 for r in ratios("segment_aware", None)[:3])


def test_after_an_update_each_divides_by_its_own():
    lp = [-1.0] * 5
    by_prox, by_behav = [1.3, 1.6, 0.6, 0.7, 1.1], [1.0, 2.0, 0.5, 0.7, 1.1]
    for name, old in (("trained", by_prox), ("segment_aware", by_behav)):
        want = (torch.tensor(old, **DOUBLE) - 1.0).exp().tolist()
        assert ratios(name, lp) == pytest.approx(want, abs=1e-12)


def test_a_completion_of_40_tokens_is_trained_on_in_the_third_iteration(scripted):
    policy = scripted({"a": 40, "b": 10, "c": 80})
    drive, states = bind_sampling_slots(STAGES["trained"], {}).rollout, {}
    algorithm, first_at, calls = bind_algorithm(STAGES["trained"], {}), {}, []
    for step in range(5):
        policy.model.calls = 0
        sampler = Sampler(Engine(policy), policy, Sampling(1.0, 96), 0, step)
        rows = [{"id": f"{x}{step}", "prompt": [{"role": "user", "content": x}], "family": "f"} for x in "abc"]
        requests = [SampleRequest(row, 2, temperature=0.0) for row in rows]
        samples = drive.ask(step, {"requests": requests, "sampler": sampler, "step": step, "states": states})
        states = json.loads(json.dumps(states))
        calls.append(policy.model.calls)
        for sample in samples:
            first_at.setdefault(sample.row["id"], []).append(step)
            sample.scores, sample.reward = {"r": 1.0}, float(len(sample.completion_ids))
        if samples:
            batch = with_advantages(algorithm, with_dropped(forest(samples), False), step)
            assert len(batch.sampled_T) == sum(len(t.completion_ids) for t in samples)
    assert first_at["b0"] == [0, 0]
    assert first_at["a0"] == [2, 2]
    # Four segments are all there is: what would have 80 tokens ends at 64.
    assert first_at["c0"] == [3, 3]
    assert calls == [16] * 5


def test_the_longest_is_cut_as_one_at_the_length_limit(scripted):
    policy = scripted({"c": 80})
    drive, states = bind_sampling_slots(STAGES["trained"], {}).rollout, {}
    row = {"id": "c", "prompt": [{"role": "user", "content": "c"}], "family": "f"}
    for step in range(4):
        sampler = Sampler(Engine(policy), policy, Sampling(1.0, 96), 0, step)
        requests = [SampleRequest(row, 1, temperature=0.0)] if step == 0 else []
        samples = drive.ask(step, {"requests": requests, "sampler": sampler, "step": step, "states": states})
    assert [(len(t.completion_ids), t.finish) for t in samples] == [(64, "length")]
    assert samples[0].versions == [0] * 16 + [1] * 16 + [2] * 16 + [3] * 16
    assert forest(samples).paths["truncated"].tolist() == [True]
