"""Dr. PO: rollouts begin with strict prefixes of chosen answers, which are scored but have no loss; `mix` is their
share.

Not shown: GPT-4 win rates on TL;DR.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion
from learning.data.rows import read_rows, write_rows
from learning.generation.engines.torch import Engine
from learning.problems.preference_problems import problems_of_pairs
from learning.rewards import models
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler, score
from learning.toy_tasks.posts import posts, summed_up
from learning.toy_tasks.rewards.summaries import topical
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "dr-po.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
ROWS = posts(split="train", size=4, seed=1)
ANSWERS = [row["answer"] for row in ROWS]


def says(text):
    return [{"role": "assistant", "content": text}]


@pytest.fixture
def pairs(tmp_path):
    rejected = ["nobody " + answer.split(" ", 2)[2] for answer in ANSWERS]
    rows = [
        {**row, "chosen": says(good), "rejected": says(bad), "margin": 1.0}
        for row, good, bad in zip(ROWS, ANSWERS, rejected, strict=True)
    ]
    write_rows(tmp_path, "preference_pairs", rows)
    return tmp_path


@pytest.fixture
def rollouts(tiny_policy, pairs):
    """What the recipe's rollout function makes of 4 × n asks at some mix."""

    def make(mix, n, tokens=28, stage="trained"):
        drive = STAGES[stage].rollout
        use = drive if mix is None else drive.model_copy(update={"mix": mix})
        bound = bind_sampling_slots(
            STAGES[stage].model_copy(update={"rollout": use}), {"rollout.data": pairs, "rewards.0.model": pairs}
        )
        sampler = Sampler(Engine(tiny_policy), tiny_policy, Sampling(1.0, tokens), 5, 3)
        supplies = {
            "requests": [SampleRequest(row, n) for row in ROWS],
            "sampler": sampler,
            "step": 3,
            "seed": 5,
            "states": {},
        }
        return bound, bound.rollout.ask(3, supplies)

    return make


def test_every_rollout_begins_with_a_strict_prefix_of_the_chosen_answer(rollouts, tiny_policy):
    cuts = {row["id"]: Counter() for row in ROWS}
    for sample in rollouts(1.0, 250)[1]:
        answer = ANSWERS[ROWS.index(sample.row)]
        ids = encode_completion(tiny_policy.tokenizer, says(answer))[:-1]
        assert sample.source == "reset"
        assert 0 < sample.given < len(ids)
        assert sample.completion_ids[: sample.given] == ids[: sample.given]
        assert not "nobody".startswith(sample.text[: sample.given])
        assert len(sample.completion_ids) <= 28
        cuts[sample.row["id"]][sample.given] += 1
    for row, answer in zip(ROWS, ANSWERS, strict=True):
        assert sorted(cuts[row["id"]]) == list(range(1, len(answer)))
        assert cuts[row["id"]].total() == 250
    assert sum(c.total() for c in cuts.values()) == 1000


def test_what_is_given_carries_neither_loss_nor_kl(rollouts):
    algorithm = bind_algorithm(STAGES["trained"], {})
    assert [term.function.name for term in algorithm.loss_terms] == ["kl"]
    samples = rollouts(1.0, 4)[1]
    batch = with_dropped(forest(samples), False)
    batch = with_weights(algorithm, batch.with_tokens(advantage=torch.ones(len(batch.sampled_T))), 0, 28)
    ids = batch.packed.input_ids_M
    for path, sample in enumerate(samples):
        mine = (batch.tokens["owner"] == path) & (batch.tokens["w"] > 0)
        assert torch.equal(mine, (batch.tokens["owner"] == path) & (batch.tokens["w.0"] > 0))
        assert ids[mine].tolist() == sample.completion_ids[sample.given :]
    assert (batch.tokens["w"] > 0).sum() == sum(len(t.completion_ids) - t.given for t in samples)


def test_the_reward_model_judges_the_prefix_and_what_follows(rollouts, tiny_policy, monkeypatch):
    seen = []

    def rewards(prompts, answers):
        seen.extend(decode(tiny_policy.tokenizer, ids) for of in answers for ids in of)
        return torch.arange(float(sum(map(len, answers))))

    judge = SimpleNamespace(policy=tiny_policy, rewards=rewards, scale=SimpleNamespace(mean=0.0, std=1.0))
    monkeypatch.setattr(models, "load_cached_reward_model", lambda folder: judge)
    parts, samples = rollouts(1.0, 3)
    score(parts.rewards, parts.weights, samples, {"step": 0})
    assert seen == [t.text for t in samples]
    assert all(t.text.startswith(ANSWERS[ROWS.index(t.row)][: t.given]) for t in samples)
    assert [t.reward for t in samples] == [float(i) for i in range(12)]


def test_without_resets_the_batch_is_that_of_ppo(rollouts):
    assert rollouts(0.0, 8)[1] == rollouts(None, 8, stage="baseline")[1]


def test_half_of_the_rollouts_are_reset(rollouts):
    samples = rollouts(None, 250, tokens=6)[1]
    resets = sum(t.source == "reset" for t in samples)
    assert STAGES["trained"].rollout.options["mix"] == 0.5
    assert 450 <= resets <= 550
    plain = {(t.group, tuple(t.completion_ids)) for t in rollouts(None, 250, tokens=6, stage="baseline")[1]}
    assert all((t.group, tuple(t.completion_ids)) in plain for t in samples if t.source == "policy")


def test_problems_are_those_with_pairs(pairs, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    problems = problems_of_pairs(SimpleNamespace(input=lambda name: pairs, output=lambda name: folder))
    assert problems == {"problems": 4}
    assert read_rows(folder, "prompts") == ROWS


def test_good_summaries_keep_the_word_that_the_post_is_about():
    rows = posts(split="train", size=300, seed=2)
    assert topical(rows, [row["answer"] for row in rows]) == [1.0] * 300
    for lost, least, most in ((0.5, 120, 180), (1.0, 0, 0), (0.0, 300, 300)):
        texts = [summed_up(row, np.random.default_rng(i), lost=lost) for i, row in enumerate(rows)]
        assert least <= sum(topical(rows, texts)) <= most
    held_out = {row["id"] for row in posts(split="test", size=100, seed=2)}
    assert not held_out & {row["id"] for row in posts(split="train", size=1000, seed=3)}
