"""APRIL: the rollout stops when enough completions have ended; the others resume at their last token, and no token is
sampled twice.

Not shown: 22.5% more throughput and 2.1% accuracy on GPUs.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.generation.engines.torch import Engine
from learning.rl.sampling_slots import bind_sampling_slots, keep_groups
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "april.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
LENGTHS = dict(zip("abcdef", (2, 3, 4, 5, 40, 60), strict=True))


class Counting(Engine):
    """Counts the tokens it has sampled, and the completions that ran together in each phase."""

    tokens = 0

    def generate(self, requests, sampling):
        self.together = [*getattr(self, "together", ()), sum(request.n for request in requests)]
        made = super().generate(requests, sampling)
        self.tokens += sum(len(g.token_ids) for of in made for g in of)
        return made


class Phases:
    """The recipe's rollout function with a target of 4, iteration by iteration; its memory passes through JSON."""

    def __init__(self, policy, name="grpo"):
        use = STAGES[name].rollout.model_copy(update={"target": 4})
        self.rollout = bind_sampling_slots(STAGES[name].model_copy(update={"rollout": use}), {}).rollout
        self.engine, self.policy, self.states, self.step = Counting(policy), policy, {}, -1

    def __call__(self, requests):
        self.step += 1
        self.policy.model.calls = 0
        sampler = Sampler(self.engine, self.policy, Sampling(1.0, 64), 0, self.step)
        samples = self.rollout.ask(
            self.step, {"requests": requests, "sampler": sampler, "step": self.step, "states": self.states}
        )
        self.states = json.loads(json.dumps(self.states))
        return samples

    @property
    def pool(self):
        return {one["request"]["row"]["id"]: one for one in self.states["rollout"]["pool"]}


def ask(letter, group=None):
    row = {"id": letter, "prompt": [{"role": "user", "content": letter}], "answer": letter, "family": "f"}
    return SampleRequest(row, temperature=0.0, group=group)


def test_the_phase_stops_with_the_fourth_and_the_next_resumes_there(scripted):
    policy = scripted(LENGTHS | {"g": 3})
    phases = Phases(policy)
    samples = phases([ask(letter) for letter in LENGTHS])
    assert policy.model.calls == 5
    assert [(t.row["id"], len(t.completion_ids), t.finish) for t in samples] == [
        ("a", 2, "stop"),
        ("b", 3, "stop"),
        ("c", 4, "stop"),
        ("d", 5, "stop"),
    ]
    kept = phases.pool
    assert {key: len(one["ids"]) for key, one in kept.items()} == {"e": 5, "f": 5}

    policy.model.sharpness = 3.0
    ended = {}
    while not {"e", "f"} <= ended.keys():
        # Six again: the two that are left, and four new ones.
        for sample in phases([ask("g") for _ in range(6)]):
            samples.append(sample)
            ended[sample.row["id"]] = sample
        assert all(one["ids"][:5] == kept[key]["ids"] for key, one in phases.pool.items() if key in kept)
    for letter in "ef":
        sample = ended[letter]
        assert len(sample.completion_ids) == LENGTHS[letter]
        assert sample.versions[:6] == [0] * 5 + [1]
        assert sample.versions == sorted(sample.versions)
        assert sample.logprobs[:5] == kept[letter]["logprobs"]
        assert min(sample.logprobs[5:]) > max(sample.logprobs[:5])  # those of a surer policy
    assert set(phases.engine.together) == {6}
    whole = sum(len(t.completion_ids) for t in samples)
    assert phases.engine.tokens == whole + sum(len(one["ids"]) for one in phases.pool.values())


def test_with_the_baselines_drive_everybody_waits_for_the_longest(scripted):
    policy = scripted(LENGTHS)
    drive = bind_sampling_slots(STAGES["baseline"], {}).rollout
    sampler = Sampler(Counting(policy), policy, Sampling(1.0, 64), 0, 0)
    samples = drive.ask(0, {"requests": [ask(letter) for letter in LENGTHS], "sampler": sampler})
    assert policy.model.calls == 60
    assert len(samples) == 6


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_a_group_is_trained_on_when_all_its_members_have_ended(scripted, name):
    phases = Phases(scripted(LENGTHS | {"g": 1}), name)
    groups = {0: "ae", 1: "bc", 2: "df"}
    requests = [ask(letter, group) for group, letters in groups.items() for letter in letters]
    samples = phases(requests)
    assert [t.row["id"] for t in samples] == ["b", "c"]
    assert sorted(phases.pool) == ["a", "d", "e", "f"]  # ended members wait for the others
    came = {}
    for _ in range(60):
        phases_of_group = phases([ask("g") for _ in range(6)])
        for sample in phases_of_group:
            came.setdefault(sample.row["id"], (phases.step, sample.group))
        if not {"a", "d", "e", "f"} & phases.pool.keys():
            break
    # Of those that wait for their group only the ones that still run take a place.
    assert set(phases.engine.together) == {6}
    assert came["a"] == came["e"]
    assert came["d"] == came["f"]
    assert came["a"][0] < came["d"][0]


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_old_tokens_keep_their_place_in_the_ratio_of_every_algorithm(scripted, name):
    policy = scripted({"e": 9, "f": 9, **dict.fromkeys("abcd", 2)})
    phases = Phases(policy, name)
    phases([ask(letter, 0 if letter in "ef" else None) for letter in "abcdef"])
    policy.model.sharpness = 4.0
    samples = []
    while len(samples) < 2:
        samples += [t for t in phases([ask(letter) for letter in "abcdab"]) if t.row["id"] in "ef"]
    for sample, reward in zip(samples, (1.0, 0.0), strict=True):
        sample.scores, sample.reward = {"answers.exact": reward}, reward
    algorithm = bind_algorithm(STAGES[name], {})
    filter_ = bind_sampling_slots(STAGES[name], {}).filter_groups
    batch = keep_groups(filter_, samples, phases.step, {}, {"step": phases.step, "rows": [t.row for t in samples]})
    batch = with_advantages(algorithm, with_dropped(batch, False), phases.step)
    assert batch.num_paths == 2
    first = batch.sampled("advantage")[batch.path_T == 0]
    assert first.tolist() == pytest.approx([float(first[0])] * 9)
    assert float(first[0]) > 0
    lp = torch.linspace(-2.0, -1.0, 18, dtype=torch.float64)
    supplies = {"lp_T": lp, "lp_behav_T": batch.sampled("lp_behav"), "path_T": batch.path_T}
    token = lp - torch.tensor([*samples[0].logprobs, *samples[1].logprobs], dtype=torch.float64)
    sequence = token.reshape(2, 9).mean(1).repeat_interleave(9)
    got = algorithm.ratio.ask(phases.step, supplies)
    torch.testing.assert_close(got, sequence if name == "gspo" else token, atol=1e-12, rtol=0)
    assert torch.equal(forest(samples).sampled("version")[:9], torch.tensor(samples[0].versions))
    assert len(set(samples[0].versions)) > 1
