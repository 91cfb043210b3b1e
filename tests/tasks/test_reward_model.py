import json

import numpy as np
import pytest
import torch

from learning.data.rows import write_rows
from learning.models.policy import load_policy
from learning.models.reward_model import load_reward_model
from learning.rewards.models import learned, load_cached_reward_model
from learning.training.loop import TrainingLoop
from schemas.errors import StepError
from schemas.stages.reward_model import RewardModel
from tasks import reward_model
from tasks.context import Context
from tasks.reward_model import run

SETTINGS = {
    "kind": "reward_model",
    "model": "m",
    "data": "d",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 16,
    "max_steps": 40,
    "save_steps": 5,
    "logging_steps": 4,
    "validation_fraction": 0.2,
    "max_length": 64,
}


def said(text):
    return [{"role": "assistant", "content": text}]


def separable(n=200, margin=0.0):
    """The chosen completion ends in a, the rejected in b; lengths say nothing."""
    random = np.random.default_rng(0)
    rows = []
    for i in range(n):
        good, bad = ("".join(random.choice(list("xyz"), random.integers(1, 6))) for _ in range(2))
        prompt = [{"role": "user", "content": f"p{i}"}]
        sides = {"chosen": said(good + "a"), "rejected": said(bad + "b")}
        rest = {"answer": "", "family": "f", "metadata": "{}", "margin": margin}
        rows.append({"id": str(i), "prompt": prompt, **sides, **rest})
    return rows


@pytest.fixture
def train(tiny_policy_folder, tmp_path):
    data = tmp_path / "pairs"
    data.mkdir()

    def trained(name, rows=None, checkpoints=None, **settings):
        write_rows(data, "preference_pairs", rows or separable())
        folder = tmp_path / name
        folder.mkdir()
        inputs = {"model": tiny_policy_folder, "data": data}
        context = Context(inputs, folder, tmp_path / (checkpoints or f"{name}-checkpoints"), seed=0)
        return run(RewardModel(**{**SETTINGS, **settings}), context), folder

    return trained


def test_it_learns_what_separates_the_pairs_and_reports_it(train, tiny_policy_folder):
    result, folder = train("one")
    report = json.loads((folder / "outputs/report/report.json").read_text())
    assert result.metrics["accuracy"] == report["accuracy"]["value"] >= 0.95
    assert report["accuracy"]["low"] > 0.8
    assert abs(result.metrics["length_correlation"]) < 0.5
    assert (result.metrics["held_out"], result.metrics["pairs"], result.metrics["dropped.too_long"]) == (40, 160, 0)
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert curve[-1]["loss"] < 0.2 < curve[0]["loss"]
    judge = load_reward_model(folder / "outputs/model")
    lines = [json.loads(line) for line in (folder / "outputs/report/held_out.jsonl").read_text().splitlines()]
    deltas = [line["chosen"] - line["rejected"] for line in lines]
    assert np.mean(np.sign(deltas)) / 2 + 0.5 == pytest.approx(result.metrics["accuracy"])
    assert judge.scale.mean == pytest.approx(np.mean([[line["chosen"], line["rejected"]] for line in lines]))
    assert judge.policy.max_length == 64
    body = load_policy(tiny_policy_folder).model.base_model.state_dict()
    assert body.keys() == judge.policy.model.base_model.state_dict().keys()


def test_a_killed_step_continues_to_the_same_bits(train, monkeypatch):
    _, whole = train("whole", max_steps=12)
    train_step = TrainingLoop.train_step

    def killed(loop, step):
        if step == 8:
            raise KeyboardInterrupt
        train_step(loop, step)

    monkeypatch.setattr(TrainingLoop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train("first", checkpoints="shared", max_steps=12)
    began = []
    monkeypatch.setattr(TrainingLoop, "train_step", lambda loop, step: (began.append(step), train_step(loop, step)))
    _, second = train("second", checkpoints="shared", max_steps=12)
    assert began == list(range(5, 12))
    files = sorted(p.relative_to(whole) for p in (whole / "outputs").rglob("*") if p.is_file())
    assert all((whole / f).read_bytes() == (second / f).read_bytes() for f in files)
    timed = ("time", "tokens_per_second")
    losses, again = (
        [{k: v for k, v in json.loads(line).items() if k not in timed} for line in file.read_text().splitlines()]
        for file in (whole / "metrics.jsonl", second / "metrics.jsonl")
    )
    assert losses == again


def test_the_first_loss_is_that_of_a_coin_and_the_margin_raises_it(train):
    for name, margin, expected in (("plain", False, np.log(2)), ("margin", True, np.log1p(np.exp(1.5)))):
        result, _ = train(name, separable(margin=1.5), margin=margin, max_steps=1, logging_steps=1)
        assert result.metrics["loss"] == pytest.approx(expected, rel=1e-6)


def test_micro_batches_change_nothing(train, monkeypatch):
    _, whole = train("whole", max_steps=3)
    monkeypatch.setattr(reward_model, "TOKENS", 60)
    _, split = train("split", max_steps=3)
    states = [load_reward_model(f / "outputs/model").policy.model.state_dict() for f in (whole, split)]
    assert all(torch.allclose(states[0][k], states[1][k], atol=2e-5) for k in states[0])


def test_pairs_that_are_too_long_are_dropped_and_counted(train):
    rows = separable(20)
    rows[3]["chosen"] = said("x" * 100)
    result, _ = train("long", rows, max_steps=1)
    assert result.metrics["dropped.too_long"] == 1
    assert result.notices[0].startswith("1 of 20 rows (5.0%) are longer than max_length")
    assert result.metrics["pairs"] + result.metrics["held_out"] == 19


def test_a_margin_that_is_not_there_is_asked_for(train):
    with pytest.raises(StepError, match="margin is on, but 20 of 20 pairs have no margin"):
        train("none", separable(20, margin=None), margin=True)


def test_passes_over_the_data_give_the_number_of_steps(train):
    result, _ = train("passes", separable(40), max_steps=-1, num_train_epochs=1.5, per_device_train_batch_size=10)
    assert result.metrics["pairs"] == 32
    assert result.metrics["steps"] == 6  # 4 steps to a pass


def test_adapters_learn_with_a_head_and_peft_reads_them(train, tiny_policy_folder):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    lora = {"use_peft": True, "lora_r": 4, "use_dora": True, "learning_rate": 1e-2}
    result, folder = train("adapted", max_steps=40, **lora)
    assert result.metrics["accuracy"] >= 0.9
    made = folder / "outputs/model"
    judge = load_reward_model(made)
    ids = [[5, 6, 7], [8, 9, 10, 11]]
    with torch.no_grad():
        ours = judge.rewards([ids[0]], [[ids[1]]])
        base = AutoModelForSequenceClassification.from_pretrained(made / "base", num_labels=1).eval()
        adapted = PeftModel.from_pretrained(base, made).eval()
        theirs = adapted(torch.tensor([ids[0] + ids[1]])).logits[:, 0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    body = AutoModelForSequenceClassification.from_pretrained(made / "base").base_model.state_dict()
    start = load_policy(tiny_policy_folder).model.base_model.state_dict()
    assert all(torch.equal(body[name], start[name]) for name in start)


def test_adapters_of_an_interrupted_step_give_the_same_bits(train, monkeypatch):
    lora = {"use_peft": True, "lora_r": 2, "lora_dropout": 0.3, "max_steps": 7, "modules_to_save": ["norm"]}
    _, whole = train("whole", **lora)
    train_step = TrainingLoop.train_step

    def killed(loop, step):
        if step == 6:
            raise KeyboardInterrupt
        train_step(loop, step)

    monkeypatch.setattr(TrainingLoop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train("first", checkpoints="shared", **lora)
    monkeypatch.setattr(TrainingLoop, "train_step", train_step)
    _, second = train("second", checkpoints="shared", **lora)
    files = sorted(p.relative_to(whole) for p in (whole / "outputs").rglob("*") if p.is_file())
    assert "outputs/model/adapter_model.safetensors" in map(str, files)
    # Held-out rewards are those of the published model: dropout is off.
    pairs = [json.loads(line) for line in (whole / "outputs/report/held_out.jsonl").read_text().splitlines()]
    row = next(row for row in separable() if row["id"] == pairs[0]["id"])
    texts = [row[side][0]["content"] for side in ("chosen", "rejected")]
    again = learned([row, row], texts, model=str(whole / "outputs/model"))
    assert again == pytest.approx([pairs[0]["chosen"], pairs[0]["rejected"]], abs=1e-5)
    load_cached_reward_model.cache_clear()
    assert all((whole / f).read_bytes() == (second / f).read_bytes() for f in files)
