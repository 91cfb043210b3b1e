"""FAPO: a critic's reward falls with its distance from the first wrong step, and right but flawed answers lose λ.

Not shown: critic quality of a 4B model, the gain of asynchronous serving.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.rewards import steps
from learning.rewards.answers import extract_final_answer
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, score
from learning.toy_tasks.sums import flawed_sum, parse_sum, plant_mistakes, step_chains, write_chain
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "fapo.yaml"
CLEAN, FLAWED, WRONG = "3 + 5 = 8, 8 - 2 = 6 #### 6", "3 + 5 = 9, 9 - 2 = 6 #### 6", "3 + 5 = 8, 8 - 2 = 7 #### 7"
PORT = "rewards.0.of.1.judge"


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def problem(answer, num_steps):
    return {"id": "p", "prompt": [], "answer": str(answer), "metadata": json.dumps({"steps": num_steps})}


def test_the_critic_earns_by_distance(stages):
    reward = bind_sampling_slots(stages["critic"], {}).rewards[0]

    def of(true, reply, num_steps=8):
        return reward.ask(0, {"rows": [problem(true, num_steps)], "completions": [reply]})[0]

    assert of(2, "4") == 0.75
    assert of(2, "-1") == -1.0
    assert of(-1, "-1") == 1.0
    assert of(-1, "3") == -1.0
    assert [of(2, "2"), of(0, " 7 ")] == [1.0, 0.125]
    assert [of(2, reply) for reply in ("8", "-2", "two", "2 3", "")] == [-1.0] * 5
    assert steps.distance([problem(2, 8)], ["?"], floor=None) == [None]
    assert steps.distance([{**problem(2, 8), "answer": None}], ["2"]) == [None]
    with pytest.raises(StepError, match="has no number of `steps`"):
        steps.distance([{**problem(2, 8), "metadata": None}], ["2"])


class Critic:
    """An engine that names the first wrong step of a chain, by a rule; what it is asked is kept."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked, self.temperatures = tokenizer, [], set()

    def generate(self, requests, sampling):
        self.temperatures.add(sampling.temperature)
        replies = []
        for request in requests:
            text = self.tokenizer.decode(request.prompt_ids)
            self.asked.append(text)
            wrong = [i for i, (a, sign, b, c) in enumerate(steps.STEP.findall(text)) if eval(a + sign + b) != int(c)]
            reply = "?" if "9 - 2 = 7" in text else str(wrong[0] if wrong else -1)
            replies.append([Generation(self.tokenizer.encode(reply), [], "stop")])
        return replies


@pytest.fixture
def critic(tiny_policy, tiny_policy_folder, monkeypatch):
    judge = Sampler(Critic(tiny_policy.tokenizer), tiny_policy, Sampling(), 0, 0)
    monkeypatch.setattr(steps, "guest", lambda folder, engine: judge if folder == tiny_policy_folder else None)
    return tiny_policy_folder, judge.engine


def samples(*groups):
    row = {"id": "s", "prompt": [{"role": "user", "content": "3 + 5 - 2 ="}], "answer": "6", "family": "chain_sum"}
    return [
        Sample(row, g, "policy", [1, g], [5], [-1.0], "stop", text) for g, texts in enumerate(groups) for text in texts
    ]


def rewarded(stage, inputs, *groups):
    made = samples(*groups)
    parts = bind_sampling_slots(stage, inputs)
    score(parts.rewards, parts.weights, made, {"step": 0, "seed": 0, "states": {}})
    return made


def test_clean_flawed_and_wrong(stages, critic):
    folder, engine = critic
    made = rewarded(stages["trained"], {PORT: folder}, [CLEAN, FLAWED, WRONG, "6"])
    assert [t.reward for t in made] == [1.0, 0.0, -1.0, -1.0]
    # Only right answers are shown to the critic.
    assert sorted(text.partition("check ")[2].partition("<eos>")[0] for text in engine.asked) == sorted([CLEAN, FLAWED])
    assert engine.temperatures == {0.0}  # a completion has one verdict
    assert [t.reward for t in rewarded(stages["outcome"], {}, [CLEAN, FLAWED, WRONG])] == [1.0, 1.0, -1.0]


def test_what_the_critic_does_not_answer_is_unscorable(stages, critic):
    unread = "3 + 5 = 8, 9 - 2 = 7 #### 6"
    made = rewarded(stages["trained"], {PORT: critic[0]}, [unread, CLEAN, WRONG])
    assert [t.reward for t in made] == [None, 1.0, -1.0]


def centred(stage, inputs, group):
    """Rewards less their mean: what the advantages are before their scale."""
    made = with_dropped(forest(rewarded(stage, inputs, group)), False)
    algorithm = bind_algorithm(stage.model_copy(update={"advantage": stage.advantage[:1]}), {})
    return with_advantages(algorithm, made, 0).sampled("advantage").tolist()


def test_a_flawed_answer_is_favoured_among_wrong_ones_and_punished_among_clean_ones(stages, critic):
    early, late = [FLAWED, WRONG, WRONG, WRONG], [CLEAN, CLEAN, FLAWED, WRONG]
    inputs = {PORT: critic[0]}
    assert centred(stages["trained"], inputs, early)[0] == pytest.approx(0.75, abs=1e-15)
    assert centred(stages["trained"], inputs, late)[2] == pytest.approx(-0.25, abs=1e-15)
    assert centred(stages["outcome"], {}, early)[0] > 0
    assert centred(stages["outcome"], {}, late)[2] > 0


def test_planted_mistakes_are_where_the_answer_says():
    rows = step_chains(size=80, seed=3, split="train", min_steps=4, max_steps=8)
    number = {0: 0, 1: 0, 2: 0}
    for row in rows:
        text, metadata = row["prompt"][0]["content"], json.loads(row["metadata"])
        steps_of_text = steps.STEP.findall(text)
        wrong = [i for i, (a, sign, b, c) in enumerate(steps_of_text) if eval(a + sign + b) != int(c)]
        assert len(steps_of_text) == metadata["steps"]
        assert len(wrong) == metadata["mistakes"]
        assert row["answer"] == str(wrong[0] if wrong else -1)
        whole = eval(steps_of_text[0][0] + "".join(sign + b for _, sign, b, _ in steps_of_text))
        assert (int(text.rpartition("#### ")[2]) == whole) == (len(wrong) != 1)
        number[len(wrong)] += 1
    assert min(number.values()) > 10
    assert not {r["id"] for r in rows} & {r["id"] for r in step_chains(size=30, seed=4, split="test")}


def test_the_teacher_reaches_right_answers_by_wrong_steps():
    row = {"id": "s", "prompt": [{"role": "user", "content": "3 + 5 - 2 + 4 ="}], "answer": "10"}
    rng = np.random.default_rng(0)
    texts = [flawed_sum(row, rng, error_rate=0.3, flaw_rate=0.3) for _ in range(400)]
    right = [extract_final_answer(t, "####").strip() == "10" for t in texts]
    clean = [s == 1.0 for s in steps.arithmetic(texts)]
    assert sum(clean) / 400 == pytest.approx(0.4, abs=0.06)
    assert sum(r and not c for r, c in zip(right, clean, strict=True)) / 400 == pytest.approx(0.3, abs=0.06)
    assert not any(c and not r for r, c in zip(right, clean, strict=True))
    with pytest.raises(StepError, match="exceed 1 together"):
        flawed_sum(row, rng, error_rate=0.6, flaw_rate=0.6)


def test_a_rule_recognises_clean_steps():
    assert steps.arithmetic([CLEAN, FLAWED, WRONG, "6", "3 + 5 = 8, 9 - 2 = 7"]) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert write_chain([3, 5, 2], ["+", "-"], {}) == CLEAN
    assert parse_sum({"id": "s", "prompt": [{"content": "3 + 5 - 2 ="}]}) == ([3, 5, 2], ["+", "-"])
    assert sum(plant_mistakes(5, 2, np.random.default_rng(1)).values()) == 0
