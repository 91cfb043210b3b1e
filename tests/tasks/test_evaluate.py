import json

import pyarrow.parquet as pq
import pytest
import torch

from learning.policy import load_policy, save_policy
from learning.rows import write_rows
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import run

SUMS = {"use": "reasoning_gym", "family": "chain_sum", "split": "test", "size": 12, "style": "short"}


def context(tmp_path, name, **inputs):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True)
    return Context(inputs, here, here / "checkpoints", seed=5)


@pytest.fixture
def two_models(tiny_policy_folder, tmp_path):
    other = load_policy(tiny_policy_folder)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_policy(other, tmp_path / "other")
    return {"models.one": tiny_policy_folder, "models.two": tmp_path / "other"}


def stage(**more):
    return Evaluate(
        kind="evaluate", models={"one": "a", "two": "b"}, max_completion_length=6, num_bootstrap=200,
        **({"tasks": [SUMS]} | more),
    )  # fmt: skip


def test_every_number_follows_from_the_samples(tmp_path, two_models):
    made = stage(
        rewards=[{"use": "formats.matches", "pattern": ".{0,4}"}], num_generations=3, temperature=1.5,
        metrics=["accuracy", {"use": "pass_at", "k": 2}], limit=10,
    )  # fmt: skip
    result = run(made, context(tmp_path, "a", **two_models))
    samples = pq.read_table(tmp_path / "a/outputs/report/samples.parquet").to_pylist()
    assert len(samples) == 2 * 10 * 3
    for model in ("one", "two"):
        marks = [s["score"] for s in samples if s["model"] == model]
        assert marks == [float(len(s["completion"].strip()) <= 4) for s in samples if s["model"] == model]
        assert result.metrics[f"accuracy.{model}"] == pytest.approx(sum(marks) / 30)
        assert result.metrics[f"accuracy.{model}.chain_sum"] == result.metrics[f"accuracy.{model}"]
    assert result.metrics["accuracy"] == result.metrics["accuracy.two"]
    assert result.metrics["pass_at_2"] >= result.metrics["accuracy"]
    saved = json.loads((tmp_path / "a/outputs/report/results.json").read_text())
    assert saved["table"] == result.details["table"]


def test_repeatable_to_the_byte_and_equal_models_are_equal(tmp_path, tiny_policy_folder):
    inputs = {"models.one": tiny_policy_folder, "models.two": tiny_policy_folder}
    made = stage(num_generations=2, temperature=1.0, gate=[{"against": "one", "min_delta": 0.01, "on_fail": "warn"}])
    results = [run(made, context(tmp_path, name, **inputs)) for name in "ab"]
    assert results[0] == results[1]
    for file in ("results.json", "samples.parquet", "table.md"):
        path = f"outputs/report/{file}"
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    (line, *_) = results[0].details["comparisons"]
    assert (line["value"], line["low"], line["high"], line["p_value"]) == (0.0, 0.0, 0.0, 1.0)
    assert results[0].details["gates"][0]["passed"] is False
    assert results[0].metrics["gates_failed"] == 1


def test_rows_of_another_stage_and_one_model(tmp_path, tiny_policy_folder):
    rows = [
        {"id": i, "prompt": [{"role": "user", "content": f"{i} ="}], "answer": None, "family": "own", "metadata": ""}
        for i in "1234"
    ]
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", [*rows, rows[0]])
    made = Evaluate(
        kind="evaluate",
        model="m",
        prompts="p",
        max_completion_length=4,
        rewards=[{"use": "formats.matches", "pattern": ".*"}],
    )
    inputs = {"model": tiny_policy_folder, "prompts": tmp_path / "prompts"}
    result = run(made, context(tmp_path, "a", **inputs))
    assert result.metrics["problems"] == 4
    assert result.metrics["accuracy"] == result.metrics["accuracy.model.own"] == 1.0
    assert result.details["repeated"] == 1
    with pytest.raises(StepError, match="no value on any problem"):
        run(made.model_copy(update={"rewards": stage().rewards}), context(tmp_path, "b", **inputs))
