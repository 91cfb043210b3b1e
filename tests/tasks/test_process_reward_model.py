"""Process reward models: the loss on labels of steps, what is learned, and the reward that reads it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from learning.auxiliary_networks.heads import load_token_judge
from learning.auxiliary_networks.network import Valued
from learning.auxiliary_networks.step_labels import (
    compute_step_logits,
    compute_step_losses,
    encode_solution,
    label_prompt,
    select_labels,
)
from learning.data.rows import write_rows
from learning.models.policy import load_policy
from learning.rewards.models import load_process_reward_model, process
from schemas.errors import StepError
from schemas.stages.process_reward_model import ProcessRewardModel
from tasks.context import Context
from tasks.process_reward_model import run
from tests.tasks.data_stages import convert
from tests.tasks.step_losses import GOLDEN, ROWS, SEPARATOR, write_model

SETTINGS = {
    "kind": "process_reward_model",
    "model": "m",
    "data": "d",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 16,
    "max_steps": 40,
    "save_steps": 5,
    "logging_steps": 4,
    "validation_fraction": 0.2,
}


def said(text):
    return [{"role": "assistant", "content": text}]


def make_rows(n=160):
    """A step with an `a` is right, one with a `b` wrong; steps are of different lengths and numbers."""
    random, rows = np.random.default_rng(0), []
    for i in range(n):
        labels = random.integers(0, 2, random.integers(1, 4)).tolist()
        texts = ["".join(random.choice(list("xyz"), random.integers(0, 5))) + "ba"[label] for label in labels]
        rest = {"answer": None, "family": "f", "metadata": "{}"}
        steps = [message for text in texts for message in said(text)]
        prompt = [{"role": "user", "content": f"p{i}"}]
        rows.append({"id": str(i), "prompt": prompt, "steps": steps, "labels": [float(x) for x in labels], **rest})
    return rows


@pytest.fixture
def train(tiny_policy_folder, tmp_path):
    data = tmp_path / "rows"
    data.mkdir()

    def trained(name, rows=None, checkpoints=None, **settings):
        write_rows(data, "step_labels", rows or make_rows())
        folder = tmp_path / name
        folder.mkdir()
        context = Context(
            {"model": tiny_policy_folder, "data": data}, folder, tmp_path / (checkpoints or f"{name}-c"), seed=0
        )
        return run(ProcessRewardModel.model_validate({**SETTINGS, **settings}), context), folder

    return trained


def test_tokens_loss_and_gradient_are_those_of_trl(tmp_path):
    """TRL's two classes with logits 0 and v have the same loss as one number v."""
    golden = json.loads(GOLDEN.read_text())
    weight, bias = write_model(tmp_path)
    rows, _, _ = convert(tmp_path / "rows", {"a.jsonl": "\n".join(map(json.dumps, ROWS))}, emit="step_labels")
    policy = load_policy(tmp_path / "model")
    solutions = [made for row in rows if (made := encode_solution(policy.tokenizer, row, 512, SEPARATOR))]
    for made, theirs in zip(solutions, golden["rows"], strict=True):
        assert made.prompt + made.completion == theirs["input_ids"]
        labels = [-100] * made.size
        for end, label in zip(made.ends, made.labels, strict=True):
            labels[len(made.prompt) + end] = int(label)
        assert labels == theirs["labels"]
    network = Valued(policy.model.base_model, "token", 1, 0)
    network.head.weight.data[0], network.head.bias.data[0] = weight, bias
    label_S, learned_S = select_labels(solutions, last_only=False)
    assert learned_S.all()
    loss = compute_step_losses(compute_step_logits(network, solutions), label_S).mean()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in network.body.parameters() if p.grad is not None]).norm()
    assert loss.item() == pytest.approx(golden["loss"], abs=1e-5)
    assert norm.item() == pytest.approx(golden["gradient"], rel=1e-4)
    assert abs(golden["loss"] - np.log(2)) > 0.01  # the head says something


def test_it_learns_which_steps_are_right_and_the_reward_reads_it(train):
    result, folder = train("one")
    report = json.loads((folder / "outputs/report/report.json").read_text())
    assert result.metrics["accuracy"] == report["accuracy"]["value"] >= 0.95
    assert result.metrics["first_error_accuracy"] >= 0.9
    assert (result.metrics["solutions"], result.metrics["held_out"], result.notices) == (128, 32, [])
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert curve[-1]["loss"] < 0.2 < curve[0]["loss"]

    model = str(folder / "outputs/model")
    lines = [json.loads(line) for line in (folder / "outputs/report/held_out.jsonl").read_text().splitlines()]
    by_id = {row["id"]: row for row in make_rows()}
    rows = [by_id[line["id"]] for line in lines]
    texts = ["\n".join(step["content"] for step in row["steps"]) for row in rows]
    load_process_reward_model.cache_clear()
    for stat, expected in {"min": min, "product": np.prod, "last": lambda p: p[-1], "mean": np.mean}.items():
        scores = process(rows, texts, model=model, stat=stat)
        assert scores == pytest.approx([expected(line["probabilities"]) for line in lines], abs=1e-5)
    # Other separators cut a completion; the model reads its own. Blank lines are no steps; an empty text is one.
    given = process(rows, [text.replace("\n", ";\n") for text in texts], model=model, separator=";", stat="product")
    assert given == pytest.approx([np.prod(line["probabilities"]) for line in lines], abs=1e-5)
    assert process(rows[:1], [texts[0] + "\n\n \n"], model=model) == pytest.approx([min(lines[0]["probabilities"])])
    empty, long = process(rows[:2], ["", "x" * 400], model=model)
    assert 0 < empty < 1
    assert long is None


def test_the_first_loss_is_that_of_a_coin_and_soft_labels_are_learned(train):
    rows = [row | {"labels": [0.25] * len(row["labels"])} for row in make_rows(40)]
    result, _ = train("first", rows, max_steps=1, logging_steps=1)
    assert result.metrics["loss"] == pytest.approx(np.log(2), rel=1e-6)
    result, folder = train("soft", rows)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert json.loads((folder / "outputs/report/report.json").read_text())["loss"] == pytest.approx(entropy, abs=0.02)


def test_a_killed_step_continues_to_the_same_bits(train, monkeypatch):
    from learning.training.loop import TrainingLoop

    _, whole = train("whole", max_steps=8)
    train_step = TrainingLoop.train_step

    def killed(loop, step):
        if step == 6:
            raise KeyboardInterrupt
        train_step(loop, step)

    monkeypatch.setattr(TrainingLoop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train("broken", checkpoints="shared", max_steps=8)
    monkeypatch.setattr(TrainingLoop, "train_step", train_step)
    _, second = train("second", checkpoints="shared", max_steps=8)
    files = sorted(p.relative_to(whole) for p in (whole / "outputs").rglob("*") if p.is_file())
    assert all((whole / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_micro_batches_and_rows_on_disk_change_nothing(train, monkeypatch):
    _, whole = train("whole", max_steps=3)
    monkeypatch.setattr("tasks.process_reward_model.TOKENS", 60)
    monkeypatch.setattr("learning.auxiliary_networks.step_labels.fits_in_memory", lambda data: False)
    _, split = train("split", max_steps=3)
    one, other = (load_token_judge(folder / "outputs/model").policy.model.state_dict() for folder in (whole, split))
    assert all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)


def test_only_the_last_step_is_learned_if_asked_for(train, tiny_policy):
    """All but the last label are turned around in the copy, which changes nothing."""
    turned = [row | {"labels": [1 - x for x in row["labels"][:-1]] + row["labels"][-1:]} for row in make_rows(40)]
    folders = [
        train(name, rows, train_on_last_step_only=True, max_steps=3)[1]
        for name, rows in (("one", make_rows(40)), ("other", turned))
    ]
    one, other = (load_token_judge(folder / "outputs/model").policy.model.state_dict() for folder in folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [encode_solution(tiny_policy.tokenizer, row, 128, "\n") for row in make_rows(3)]
    assert int(select_labels(rows, last_only=True)[1].sum()) == 3


def test_steps_beyond_the_limit_are_cut_and_counted(train):
    rows = make_rows(20)
    rows[3]["steps"], rows[3]["labels"] = said("a") + said("x" * 100), [1.0, 0.0]
    rows[4]["steps"], rows[4]["labels"] = said("x" * 100), [1.0]
    rows[5]["steps"], rows[5]["labels"] = said("x\ny"), [1.0]
    result, _ = train("long", rows, max_steps=1, max_length=64)
    assert (result.metrics["cut_rows"], result.metrics["dropped.too_long"]) == (1, 1)
    assert result.metrics["solutions"] + result.metrics["held_out"] == 19
    assert result.notices[0] == "of 20 solutions 1 lost steps beyond max_length (64 tokens), and 1 were left out"
    assert result.notices[1].startswith("1 of 20 solutions have '\\n' inside of a step")
    with pytest.raises(StepError, match="none of 20 rows of `data` has a step that ends within 2 tokens"):
        train("none", rows, max_length=2)


def test_a_separator_needs_steps(train, tmp_path, tiny_policy):
    """A process reward model of an rl stage rewards tokens."""
    from learning.auxiliary_networks.heads import save_network

    network = Valued(tiny_policy.model.base_model, "token", 1, 0)
    save_network(network, tiny_policy, tmp_path / "tokens", link="identity")
    with pytest.raises(StepError, match="rewards every token and has no steps"):
        process(make_rows(1), ["a"], model=str(tmp_path / "tokens"), separator=";")


def test_the_label_of_the_prompt_is_that_of_a_first_step(tiny_policy):
    row = make_rows(1)[0]
    plain = encode_solution(tiny_policy.tokenizer, row, 128, "\n")
    made = label_prompt(plain, row | {"metadata": '{"start": 0.25}'}, "start")
    assert made.prompt + made.completion == plain.prompt + plain.completion
    assert made.ends == [0, *(end + 1 for end in plain.ends)]
    assert made.labels == [0.25, *plain.labels]
    assert (made.completion[0], made.steps) == (plain.prompt[-1], plain.steps + 1)
    for wrong in ("{}", '{"start": 2}', '{"start": true}', '{"start": "a"}'):
        with pytest.raises(StepError, match="has no `start` from 0 to 1"):
            label_prompt(plain, row | {"metadata": wrong}, "start")
    with pytest.raises(StepError, match="is one token"):
        label_prompt(replace(plain, prompt=[1]), row | {"metadata": '{"start": 1}'}, "start")
