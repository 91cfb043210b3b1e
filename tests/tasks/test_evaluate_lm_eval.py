"""The stage `evaluate` on tasks of lm-eval gives the numbers of lm-eval's own model of transformers."""

import json

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest

from learning.evaluation.lm_eval_tasks import lm_eval
from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import run

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: data.jsonl}}}}
test_split: test
fewshot_split: test
output_type: {kind}
doc_to_text: {text}
doc_to_target: {target}
{more}
"""
CHOICE = {"name": "colours", "kind": "multiple_choice", "text": "'Q: {{question}}'", "target": "label"}
WRITTEN = {"name": "sums", "kind": "generate_until", "text": "'{{question}}'", "target": "'{{answer}}'"}
READ = {"name": "prose", "kind": "loglikelihood_rolling", "text": "''", "target": "'{{text}}'"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three task files and their data."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    here = tmp_path / "tasks"
    here.mkdir()
    rows = [
        {
            "question": f"{i}+{i}=",
            "answer": "=TTTTvv"[i % 7],
            "choices": ["red", "green blue", "no"],
            "label": i % 3,
            "text": f"{i} and {i}, " * 9,
        }
        for i in range(9)
    ]
    (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    choice = 'doc_to_choice: "{{choices}}"\nmetric_list: [{metric: acc}, {metric: acc_norm}]'
    written = (
        'generation_kwargs: {until: ["T", "vv"], max_gen_toks: 9}\nmetric_list: [{metric: exact_match}]\n'
        'filter_list: [{name: first, filter: [{function: regex, regex_pattern: "(.)"}, {function: take_first}]}]'
    )
    read = "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]"
    for task, more in ((CHOICE, choice), (WRITTEN, written), (READ, read)):
        (here / f"{task['name']}.yaml").write_text(TASK.format(**task, more=more))
    return here


def make_stage(*tasks, **more):
    task = {"use": "lm_eval", "tasks": ["colours", "sums", "prose"], "include_path": "path:tasks", "num_fewshot": 2}
    models = {"one": "a", "two": "b"}
    return Evaluate(kind="evaluate", models=models, num_bootstrap=200, tasks=[task, *tasks], **more)


def make_context(tmp_path, name, folder, **inputs):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True, exist_ok=True)
    ports = inputs | {"tasks.0.include_path": folder}
    return Context(ports, here, here / "checkpoints", seed=5)


def evaluate_with_transformers(folder, model, monkeypatch):
    """Return the results of lm-eval with its own model of transformers."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    policy = load_policy(model)
    loaded = lm_eval(tasks=["colours", "sums", "prose"], include_path=str(folder), num_fewshot=2).loaded
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=1234)
    lm = HFLM(pretrained=policy.model, tokenizer=policy.tokenizer, batch_size=2, device="cpu")
    return evaluate(lm, loaded, bootstrap_iters=0)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_numbers_and_answers_are_those_of_lm_eval_with_transformers(tmp_path, folder, two_models, monkeypatch):
    acc_norm, bits = ({"use": "lm_eval", "name": name} for name in ("acc_norm", "bits_per_byte"))
    gate = {"metric": "accuracy.colours", "against": "one", "min_delta": -1.0}
    result = run(
        make_stage(metrics=["accuracy", acc_norm, bits], gate=[gate]), make_context(tmp_path, "a", folder, **two_models)
    )
    samples = pq.read_table(tmp_path / "a/outputs/report/samples.parquet").to_pylist()
    lengths = set()
    for name in ("one", "two"):
        expected = evaluate_with_transformers(folder, two_models[f"models.{name}"], monkeypatch)
        for task in ("colours", "sums", "prose"):
            ours = result.details["lm_eval"][name][task]
            numbers = {k: v for k, v in expected["results"][task].items() if isinstance(v, float) and np.isfinite(v)}
            assert {k: ours[k] for k in numbers} == pytest.approx(numbers, rel=1e-4), task
        for metric, task, label in (("acc", "colours", "accuracy"), ("acc_norm", "colours", "lm_eval_acc_norm")):
            value = expected["results"][task][f"{metric},none"]
            assert result.metrics[f"{label}.{name}.{task}"] == pytest.approx(value)
        assert result.metrics[f"accuracy.{name}.sums"] == pytest.approx(
            expected["results"]["sums"]["exact_match,first"]
        )
        written = [s["completion"] for s in samples if (s["model"], s["family"]) == (name, "sums")]
        assert written == [one["resps"][0][0] for one in expected["samples"]["sums"]]
        lengths |= {len(text) for text in written}
    assert {0, 9} <= lengths  # some were cut at a stop text, some at the limit
    (outcome,) = result.details["gates"]
    assert (outcome["passed"], outcome["tests"][0]["n"]) == (True, 9)
    assert {line["family"] for line in result.details["comparisons"]} == {"all", "colours", "sums", "prose"}
    assert (result.metrics["problems"], len(samples)) == (27, 54)


def test_a_killed_stage_answers_only_the_rest(tmp_path, folder, two_models, monkeypatch):
    """The journal of the first attempt has all answers: the second neither samples nor scores."""
    first = run(make_stage(limit=2), make_context(tmp_path, "a", folder, **two_models))
    monkeypatch.setattr("learning.evaluation.lm_eval_model.stream_completions", None)
    monkeypatch.setattr("learning.evaluation.lm_eval_model.EngineLM._score", None)
    assert run(make_stage(limit=2), make_context(tmp_path, "a", folder, **two_models)) == first
    assert first.metrics["problems"] == 6


def test_generated_problems_are_added_and_chat_templates_are_applied(tmp_path, folder, tiny_policy_folder):
    other = {"use": "reasoning_gym", "family": "chain_sum", "split": "test", "size": 3, "style": "short"}
    stage = make_stage(other, limit=2)
    stage.tasks[0].__pydantic_extra__.update(apply_chat_template=True, tasks=["sums"])
    inputs = {"models.one": tiny_policy_folder, "models.two": tiny_policy_folder}
    result = run(stage, make_context(tmp_path, "a", folder, **inputs))
    assert result.metrics["problems"] == 4
    lines = [x for x in result.details["table"] if x["model"] == "one"]
    assert {x["family"]: x["n"] for x in lines} == {"all": 4, "chain_sum": 2, "sums": 2}


def test_prompts_are_written_in_the_chat_template_with_the_settings_of_the_stage(tiny_policy):
    from learning.data.chat_settings import apply_chat
    from learning.evaluation.lm_eval_model import EngineLM
    from learning.evaluation.scored_tasks import ScoringModel
    from schemas.chat import Chat

    apply_chat(tiny_policy.tokenizer, Chat(system_prompt="Be brief."))
    model = EngineLM(ScoringModel(None, tiny_policy, lambda: tiny_policy, 0, {}, lambda *_: None), 1)
    end = tiny_policy.tokenizer.eos_token
    text = model.apply_chat_template([{"role": "user", "content": f"a{end}b"}])
    assert "Be brief." in text
    assert f"a{end}b" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["unsafe"]}, "executes programs that the model writes"),
        ({"tasks": ["beams"]}, "`num_beams: 4`, which engines here do not have"),
        ({"tasks": ["sums"], "metric": "acc"}, "task sums has no metric `acc`"),
        ({"tasks": ["far"]}, "task far cannot be loaded"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(tmp_path, folder, tiny_policy_folder, options, message):
    written = (folder / "sums.yaml").read_text()
    (folder / "unsafe.yaml").write_text(written.replace("task: sums", "task: unsafe\nunsafe_code: true"))
    beams = written.replace("task: sums", "task: beams").replace("max_gen_toks: 9", "max_gen_toks: 9, num_beams: 4")
    (folder / "beams.yaml").write_text(beams)
    far = written.replace("task: sums", "task: far").replace("dataset_path: json", "dataset_path: nobody/far")
    (folder / "far.yaml").write_text(far.replace("dataset_kwargs: {data_files: {test: data.jsonl}}\n", ""))
    stage = make_stage(limit=1)
    stage.tasks[0].__pydantic_extra__.update(options)
    inputs = {"models.one": tiny_policy_folder, "models.two": tiny_policy_folder}
    with pytest.raises(StepError, match=message):
        run(stage, make_context(tmp_path, "a", folder, **inputs))


@pytest.mark.parametrize("key", [{"temperature": 0.5}, {"solver": "direct"}, {"env": "guess"}])
def test_keys_that_cannot_apply_are_refused(key):
    with pytest.raises(ValueError, match="does not apply to `lm_eval`"):
        make_stage(**key)
