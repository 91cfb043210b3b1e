import json
from copy import deepcopy

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification

from learning.data.chat import encode_answer
from learning.data.rows import write_rows
from learning.models.policy import load_policy, load_tokenizer
from learning.models.reward_model import make_reward_model
from schemas.errors import StepError
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.training import LoRA
from tasks.context import Context
from tasks.evaluate_rewards import run

SETTINGS = {"kind": "evaluate_rewards", "models": {"flat": "f", "steep": "s"}, "data": "d", "num_bootstrap": 100}
NO_ADAPTERS = LoRA.model_construct(use_peft=False)


def make_row(number, family, chosen, rejected):
    sides = {
        name: [{"role": "assistant", "content": text}] for name, text in (("chosen", chosen), ("rejected", rejected))
    }
    prompt = [{"role": "user", "content": f"p{number}"}]
    return {
        "id": str(number),
        "prompt": prompt,
        "answer": "",
        "family": family,
        "metadata": "{}",
        "margin": None,
        **sides,
    }


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcxyz"), random.integers(1, 7))) for _ in range(60)]
    return [make_row(i, ("chat", "safety")[i % 3 == 0], *words[2 * i : 2 * i + 2]) for i in range(30)]


@pytest.fixture
def judges(tiny_policy_folder, tmp_path_factory):
    """One reward model that gives 0 to everything, and one with a random head."""
    folders = {}
    for name in ("flat", "steep"):
        judge = make_reward_model(deepcopy(load_policy(tiny_policy_folder)), None)
        if name == "steep":
            torch.nn.init.normal_(judge.policy.model.score.weight, generator=torch.Generator().manual_seed(0))
        folders[name] = tmp_path_factory.mktemp(name)
        judge.save(folders[name], NO_ADAPTERS)
    return folders


@pytest.fixture
def evaluate(judges, tmp_path):
    def evaluate(rows, **settings):
        (tmp_path / "pairs").mkdir()
        write_rows(tmp_path / "pairs", "preference_pairs", rows)
        inputs = {"data": tmp_path / "pairs", **{f"models.{name}": folder for name, folder in judges.items()}}
        context = Context(inputs, tmp_path, tmp_path / "checkpoints", seed=0)
        return run(EvaluateRewards.model_validate(SETTINGS | settings), context)

    return evaluate


def score_directly(folder, rows):
    """Rewards (P, 2) by transformers' own forward."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    rewards = []
    for row in rows:
        for side in ("chosen", "rejected"):
            prompt, answer = encode_answer(tokenizer, row["prompt"], row[side], row)
            with torch.no_grad():
                rewards.append(float(model(torch.tensor([prompt + answer])).logits[0, 0]))
    return np.array(rewards).reshape(-1, 2)


def test_accuracy_per_subset_is_that_of_transformers_own_rewards(evaluate, judges, rows, tmp_path):
    result = evaluate(rows, gate=[{"min": 0.01, "min_delta": 0.0, "against": "flat"}])
    reward_P2 = score_directly(judges["steep"], rows)
    right_P = reward_P2[:, 0] > reward_P2[:, 1]
    safety_P = np.arange(30) % 3 == 0
    assert 0 < right_P.mean() < 1
    assert result.metrics["accuracy.steep"] == result.metrics["accuracy"] == pytest.approx(right_P.mean())
    assert result.metrics["accuracy.steep.safety"] == pytest.approx(right_P[safety_P].mean())
    assert result.metrics["accuracy.steep.chat"] == pytest.approx(right_P[~safety_P].mean())
    assert result.metrics["accuracy.flat"] == 0  # a tie is wrong
    assert result.metrics["margin.steep"] == pytest.approx(np.mean(reward_P2[:, 0] - reward_P2[:, 1]), abs=1e-5)
    lines = {(line["model"], line["family"]): line for line in result.details["table"]}
    assert {family for _, family in lines} == {"all", "chat", "safety"}
    assert lines["steep", "safety"]["n"] == 10
    assert lines["steep", "all"]["low"] < right_P.mean() < lines["steep", "all"]["high"]
    assert result.details["comparisons"][0]["value"] == pytest.approx(right_P.mean())
    assert [gate["passed"] for gate in result.details["gates"]] == [True]
    samples = pq.read_table(tmp_path / "outputs/report/samples.parquet").to_pylist()
    steep = np.array([row["score"] for row in samples if row["model"] == "steep"]).reshape(-1, 2)
    np.testing.assert_allclose(steep, reward_P2, atol=1e-5)
    assert json.loads((tmp_path / "outputs/report/results.json").read_text())["problems"] == 30


def test_a_failed_gate_is_reported(evaluate, rows):
    result = evaluate(rows, gate=[{"metric": "accuracy.safety", "model": "flat", "min": 0.5}])
    assert result.metrics["gates_failed"] == 1
    assert "accuracy.safety of flat 0.0000, wanted >= 0.5" in result.details["gates"][0]["text"]


def test_pairs_that_do_not_fit_are_not_counted_and_named(evaluate, rows):
    long = make_row("long", "chat", "a" * 200, "b")
    result = evaluate([*rows, long], max_length=40)
    assert result.metrics["dropped.too_long.steep"] == 1
    assert {line["n"] for line in result.details["table"] if line["family"] == "all"} == {30}
    assert "steep: 1 of 31 pairs have more than 40 tokens and are not counted" in result.notices


def test_rows_without_a_pair_are_refused(evaluate, rows):
    with pytest.raises(StepError, match=r"1 of 30 rows have one completion with a label, first '0'"):
        evaluate([rows[0] | {"rejected": []}, *rows[1:]])


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"against": "parent", "min_delta": 0.0}, "`against: parent` is not in `models`"),
        ({"against": "flat", "min_delta": 0.0, "noise_repeats": 3}, "rewards are not sampled"),
    ],
)
def test_gates_that_cannot_be_judged_are_refused(gate, message):
    with pytest.raises(ValidationError, match=message):
        EvaluateRewards.model_validate(SETTINGS | {"gate": [gate]})
