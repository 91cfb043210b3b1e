import json

import pyarrow.parquet as pq
import pytest
import torch

from learning.data.rows import write_rows
from learning.evaluation.answer_likelihood import measure_answer_logprobs
from learning.generation.replicas.engine_loading import open_engine
from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.gates import Gate
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import gather_problems, run

SUMS = {"use": "reasoning_gym", "family": "chain_sum", "split": "test", "size": 12, "style": "short"}


def context(tmp_path, name, **inputs):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True)
    return Context(inputs, here, here / "checkpoints", seed=5)


def stage(**more):
    return Evaluate(
        kind="evaluate",
        models={"one": "a", "two": "b"},
        max_completion_length=6,
        num_bootstrap=200,
        **({"tasks": [SUMS]} | more),
    )


def read_samples(folder):
    return pq.read_table(folder / "outputs/report/samples.parquet").to_pylist()


def test_every_number_follows_from_the_samples(tmp_path, two_models):
    made = stage(
        rewards=[{"use": "formats.matches", "pattern": ".{0,4}"}],
        num_generations=3,
        temperature=1.5,
        metrics=["accuracy", {"use": "pass_at", "k": 2}],
        limit=10,
    )
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_are_loaded_in_the_precision_that_is_named(tmp_path, two_models, monkeypatch, dtype):
    seen = []

    def opened(use, policy, *rest):
        seen.append({p.dtype for p in policy.model.parameters()})
        return open_engine(use, policy, *rest)

    monkeypatch.setattr("tasks.evaluate.open_engine", opened)
    run(stage(dtype=dtype, limit=3), context(tmp_path, "a", **two_models))
    assert seen == [{getattr(torch, dtype)}] * 2


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
    with pytest.raises(StepError, match="none of 4 completions of `model` has a score"):
        run(made.model_copy(update={"rewards": stage().rewards}), context(tmp_path, "b", **inputs))


def test_weights_are_compared_with_the_first_model(tmp_path, two_models):
    made = stage(limit=2, weight_diff=["bf16_sparsity", {"use": "principal_angle", "k": 2}, "nss"])
    result = run(made, context(tmp_path, "a", **two_models))
    one, two = (load_policy(two_models[f"models.{n}"]).model.state_dict() for n in ("one", "two"))
    shift, entries = 0.0, 0
    for name, before in one.items():
        if before.ndim == 2 and name != "lm_head.weight":  # the head is the embedding
            old, new = (torch.linalg.svdvals(w[name].double()) for w in (one, two))
            shift += float((new - old).norm() / old.norm()) * before.numel()
            entries += before.numel()
    assert result.metrics["nss.two"] == pytest.approx(shift / entries, rel=1e-9)
    assert "nss.one" not in result.metrics
    assert 0 < result.metrics["principal_angle.two"] <= 90
    assert result.metrics["bf16_sparsity.two"] < 0.1
    assert {line["against"] for line in result.details["weights"]} == {"one"}
    assert "| two | one | nss |" in (tmp_path / "a/outputs/report/table.md").read_text()
    same = run(made, context(tmp_path, "b", **dict.fromkeys(two_models, two_models["models.one"])))
    assert (same.metrics["bf16_sparsity.two"], same.metrics["nss.two"]) == (1.0, 0.0)


def test_a_program_asks_in_parts_and_repeats_to_the_byte(tmp_path, tiny_policy_folder):
    tasks = [{"use": "needles", "split": "test", "size": 3, "shortest": 96, "longest": 96}]
    made = stage(
        tasks=tasks,
        solver={"use": "lambda_rlm", "window": 32, "combine": "joined"},
        num_generations=2,
        temperature=1.0,
    )
    inputs = {"models.one": tiny_policy_folder, "models.two": tiny_policy_folder}
    result = run(made, context(tmp_path, "a", **inputs))
    # 96 characters in windows of 32: two pieces of 48, which are four of 24; three lists, two samples
    assert (result.metrics["calls.one"], result.metrics["longest_call.one"]) == (3 * 2 * 4, len("key|") + 24)
    run(made, context(tmp_path, "b", **inputs))
    assert (tmp_path / "a/outputs/report/samples.parquet").read_bytes() == (
        tmp_path / "b/outputs/report/samples.parquet"
    ).read_bytes()


def test_one_model_has_a_solver_and_the_other_answers_alone(tmp_path, tiny_policy_folder):
    tasks = [{"use": "needles", "split": "test", "size": 3, "shortest": 96, "longest": 96}]
    inputs = {"models.one": tiny_policy_folder, "models.two": tiny_policy_folder}
    program = {"use": "lambda_rlm", "window": 32, "combine": "joined"}
    ways = {"mixed": {"solvers": {"two": program}}, "alone": {}, "solved": {"solver": program}}
    results = {name: run(stage(tasks=tasks, **how), context(tmp_path, name, **inputs)) for name, how in ways.items()}
    assert results["mixed"].details["calls"] == {"two": results["solved"].details["calls"]["two"]}
    assert "calls.one" not in results["mixed"].metrics
    texts = {
        name: {
            model: [s["completion"] for s in read_samples(tmp_path / name) if s["model"] == model]
            for model in ("one", "two")
        }
        for name in ways
    }
    assert texts["mixed"] == {"one": texts["alone"]["one"], "two": texts["solved"]["two"]}
    assert texts["mixed"]["one"] != texts["mixed"]["two"]
    with pytest.raises(ValueError, match="`solvers`: no model is called `three`; models: one, two"):
        stage(tasks=tasks, solvers={"three": program})


def test_best_of_n_scores_what_the_selector_chose(tmp_path, two_models):
    """The shortest of three samples is chosen, and only it is scored."""
    how = {"rewards": [{"use": "formats.matches", "pattern": ".{0,4}"}], "num_generations": 3, "temperature": 1.5}
    run(stage(**how, limit=10), context(tmp_path, "all", **two_models))
    brief = {"use": "formats.brevity", "soft": 0, "hard": 40}
    result = run(stage(**how, limit=10, selector=brief), context(tmp_path, "best", **two_models))
    read = {n: pq.read_table(tmp_path / n / "outputs/report/samples.parquet").to_pylist() for n in ("all", "best")}
    groups = {}
    for sample in read["all"]:
        groups.setdefault((sample["model"], sample["id"]), []).append(sample["completion"])
    assert len(read["best"]) == len(groups) == 20
    for sample in read["best"]:
        assert sample["completion"] == min(groups[sample["model"], sample["id"]], key=len)
    marks = [s["score"] for s in read["best"] if s["model"] == "two"]
    assert result.metrics["accuracy.two"] == pytest.approx(sum(marks) / 10)
    with pytest.raises(ValueError, match="raise `num_generations`"):
        stage(selector=brief)


def test_what_a_gate_compares_with_answers_the_same_problems(tmp_path, two_models):
    inputs = {"models.two": two_models["models.two"], "against.parent": two_models["models.one"]}
    gate = {"against": "parent", "max_regression": 0.0, "noise_repeats": 2}
    made = Evaluate(
        kind="evaluate",
        models={"two": "b"},
        against={"parent": "a"},
        gate=[gate],
        tasks=[SUMS],
        limit=8,
        max_completion_length=6,
        num_bootstrap=200,
        temperature=1.5,
        num_generations=2,
        rewards=[{"use": "formats.matches", "pattern": ".{0,4}"}],
    )
    result = run(made, context(tmp_path, "a", **inputs))
    samples = pq.read_table(tmp_path / "a/outputs/report/samples.parquet").to_pylist()
    asked = {name: [s["id"] for s in samples if s["model"] == name] for name in ("two", "parent")}
    assert asked["two"] == asked["parent"]
    assert result.metrics["accuracy"] == result.metrics["accuracy.two"]
    (outcome,) = result.details["gates"]
    (test,) = outcome["tests"]
    assert test["value"] == pytest.approx(result.metrics["accuracy.two"] - result.metrics["accuracy.parent"])
    assert test["floor"] > 0
    assert test["n"] == 8
    bare = made.model_copy(update={"gate": [Gate.model_validate(gate | {"noise_repeats": 0})]})
    (alone,) = run(bare, context(tmp_path, "b", **inputs)).details["gates"]
    assert (alone["tests"][0]["value"], alone["tests"][0]["floor"]) == (test["value"], 0.0)


def test_answers_are_evaluated_with_the_samples_and_gated(tmp_path, two_models):
    gate = Gate(metric="answer_logprob", model="two", against="one", max_regression=0.0)
    made = stage(metrics=["accuracy", "answer_logprob"], rewards=["answers.last_number"], gate=[gate])
    result = run(made, context(tmp_path, "a", **two_models))
    problems = gather_problems(made, context(tmp_path, "b"))[0]
    for model in ("one", "two"):
        values = measure_answer_logprobs(load_policy(two_models[f"models.{model}"]), problems)
        assert result.metrics[f"answer_logprob.{model}"] == pytest.approx(values.mean())
    (judged,) = result.details["gates"]
    assert judged["metric"] == "answer_logprob"
