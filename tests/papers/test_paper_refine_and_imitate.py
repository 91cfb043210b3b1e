"""Refine and Imitate: one sentence after each context is scored by its context, and the selector learns from human
replies.

Not shown: persuasion of people; the released rewards, 2 and −2: here each penalty is as large as the reward.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from learning.data.chat import encode_prompt
from learning.data.rows import read_rows, write_rows
from learning.evaluation.sampled_answers import AnswerSample, select_best
from learning.lookup import bind
from learning.problems.demonstrations import human_over_sampled
from learning.rewards.dialogue import contradicts
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import History
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import Sampler
from learning.toy_tasks.dialogues import donations, muddled
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "refine-and-imitate.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
GAVE = {
    "id": "1",
    "prompt": [
        {"role": "user", "content": "hi."},
        {"role": "assistant", "content": "I donated."},
        {"role": "user", "content": "why give?"},
        {"role": "assistant", "content": "Kids need food."},
        {"role": "user", "content": "do you give?"},
    ],
    "metadata": json.dumps({"fact": "gave", "topic": ["donated", "give", "kids", "food", "need"]}),
}
NEVER = {**GAVE, "prompt": [*GAVE["prompt"][:1], {"role": "assistant", "content": "I never donated."}]}


def totals(rows, texts, rewards=None):
    bound = [bind(use) for use in rewards or STAGES["refined"].rewards]
    scores = [part.ask(0, {"rows": rows, "completions": texts}) for part in bound]
    return [sum(of) for of in zip(*scores, strict=True)]


def total(row, text, rewards=None):
    return totals([row], [text], rewards)[0]


@pytest.mark.parametrize(
    ("row", "text", "why"),
    [
        (GAVE, "Kids need food.", "repeats"),
        (GAVE, "kids need food", "repeats"),
        (GAVE, "I never donated.", "denies"),
        (GAVE, "I didn't donated.", "denies"),
        (NEVER, "I donated.", "denies"),
        (GAVE, "Nice weather.", "beside the point"),
    ],
)
def test_repeating_denying_and_missing_the_point_score_below_a_clean_sentence(row, text, why):
    clean, repeated = totals([row, row], ["yes, i give food.", text])
    assert clean == 1.0
    assert repeated < clean, why


def test_each_penalty_can_be_switched_off():
    relevance, repetition, inconsistency = STAGES["refined"].rewards
    for use, text in ((repetition, "Kids need food."), (inconsistency, "I never donated.")):
        assert total(GAVE, text, [relevance]) == 1.0
        assert total(GAVE, text, [relevance, use]) == 0.0
        assert total(GAVE, text, [relevance, use.model_copy(update={"penalty": 0.0})]) == 1.0
    assert total(GAVE, "Kids need food.", [relevance, inconsistency]) == 1.0
    assert total(GAVE, "I never donated.", [relevance, repetition]) == 1.0


def test_agreeing_with_oneself_is_no_contradiction():
    assert not contradicts("Yes, I donated.", "I donated twice.")
    assert not contradicts("No, I never donated.", "I have not donated.")
    assert contradicts("Kids starve. I never donated.", "I donated.")
    assert not contradicts("I never donated clothes.", "I donated food.")


class Recorder:
    """An engine that answers every request with one sentence, and remembers what it was asked."""

    def __init__(self, tokenizer):
        self.asked, self.ids = [], [*tokenizer.encode("kids need help."), tokenizer.eos_token_id]

    def generate(self, requests, sampling):
        self.asked += requests
        return [[Generation(self.ids, [-1.0] * len(self.ids), "stop")] * r.n for r in requests]

    def sync(self, version):
        """Nothing to forget."""


def test_a_rollout_is_one_sentence_after_a_context_without_other_requests(tiny_policy):
    # No other model is at hand: the stage has weights and contexts.
    ports = load_recipe(RECIPE, profile="tiny").ports("refined")
    assert {port.path: port.steps for port in ports} == {"model": ("talker",), "prompts": ("contexts",)}
    tiny_policy = replace(tiny_policy, max_length=200)
    rows, engine = donations(size=6, split="train"), Recorder(tiny_policy.tokenizer)
    sampler = Sampler(engine, tiny_policy, Sampling(1.0, 28), 0, 0)
    supplies = {"rows": rows, "num_groups": 3, "n": 2, "seed": 0, "step": 0, "states": {}, "metrics": {}}
    samples = collect_samples(
        bind_sampling_slots(STAGES["refined"], {}), IterationContext(**supplies, sampler=sampler, history=History()), {}
    )
    contexts = [encode_prompt(tiny_policy.tokenizer, row["prompt"]) for row in rows]
    assert len(engine.asked) == 3
    assert all(request.prompt_ids in contexts for request in engine.asked)
    assert len(samples) == 6
    for sample in samples:
        assert sample.prompt_ids == encode_prompt(tiny_policy.tokenizer, sample.row["prompt"])
        assert sample.completion_ids == engine.ids
        assert sample.given == 0
        assert sample.text.count(".") == 1
        assert sample.row["prompt"][-1]["role"] == "user"


def test_the_selector_takes_the_best_candidate():
    candidates = [
        [AnswerSample(text, "stop") for text in ("a", "b", "c")],
        [AnswerSample("d", "stop"), AnswerSample("e", "length")],
    ]
    assert select_best(candidates, [0.2, 0.7, 0.4, None, -3.0]) == [[candidates[0][1]], [candidates[1][1]]]
    assert select_best(candidates[:1], [0.5, 0.5, 0.5]) == [[candidates[0][0]]]
    assert STAGES["best_of_four"].selector.options["model"] == "selector"
    assert STAGES["single"].selector is None


def chat(rows, texts):
    return [r | {"completion": [{"role": "assistant", "content": t}]} for r, t in zip(rows, texts, strict=True)]


def test_the_selector_learns_that_people_are_right(tmp_path):
    rows = donations(size=3, split="train")
    folders = {name: tmp_path / name for name in ("demonstrations", "samples", "pairs")}
    for folder in folders.values():
        folder.mkdir()
    write_rows(folders["demonstrations"], "chat", chat(rows, [row["answer"] for row in rows]))
    sentences = [rows[0]["answer"], "nice weather.", "see you."]
    write_rows(folders["samples"], "chat", chat(rows, sentences))
    context = SimpleNamespace(input=folders.get, output=folders.get)
    assert human_over_sampled(context) == {"pairs": 2, "same": 1}
    pairs = read_rows(folders["pairs"], "preference_pairs")
    assert [p["chosen"][0]["content"] for p in pairs] == [row["answer"] for row in rows[1:]]
    assert [p["rejected"][0]["content"] for p in pairs] == sentences[1:]
    write_rows(folders["samples"], "chat", chat(rows, [row["answer"] for row in rows]))
    with pytest.raises(StepError, match="no prompt has"):
        human_over_sampled(context)


def test_scripted_people_neither_repeat_nor_deny_and_the_muddled_do():
    rows = donations(size=200, split="train", seed=1)
    assert len({row["id"] for row in rows}) == 200
    assert {len(re.findall("[.!?]", row["answer"])) for row in rows} == {1}  # what is learnt is to say one sentence
    assert not {r["id"] for r in rows} & {r["id"] for r in donations(size=100, split="test", seed=1)}
    assert set(totals(rows, [row["answer"] for row in rows])) == {1.0}
    scores = totals(rows, [muddled(row, np.random.default_rng(i), rate=1.0) for i, row in enumerate(rows)])
    assert max(scores) <= 1.0
    assert sum(s < 1.0 for s in scores) > 150
