"""The kind `merge_search`: values equal single merges and evaluations by hand, and test problems choose nothing."""

import json

import pytest
import torch
from safetensors.torch import load_file

from learning.merge.candidates import list_candidates
from learning.models.policy import load_policy, save_policy
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch, MergeSpace, count_merges
from tasks import evaluate, merge
from tasks.context import Context
from tasks.merge_search import run

TASK = {"use": "reasoning_gym", "family": "chain_sum", "split": "train", "size": 12, "style": "short", "seed": 3}
CANDIDATES = [
    {"merge_method": "linear", "weight_steps": 3},
    {"merge_method": "ties", "each": {"weight": [0.5]}, "parameters": {"density": [0.3, 1.0]}},
]


@pytest.fixture
def models(tiny_policy_folder, tmp_path):
    """Two models near a base, whose merges answer differently."""
    folders = {"base_model": tiny_policy_folder}
    for seed, name in enumerate(("left", "right"), start=1):
        policy = load_policy(tiny_policy_folder)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        save_policy(policy, tmp_path / name)
        folders[f"models.{name}"] = tmp_path / name
    return folders


def make_search(**changes):
    keys = {
        "models": {"left": "l", "right": "r"},
        "base_model": "b",
        "candidates": CANDIDATES,
        "tasks": [TASK],
        "rewards": ["tests.tasks.test_merge_search:count_vowels"],
        "threshold": 1.0,
        "temperature": 1.0,
        "num_generations": 3,
        "max_completion_length": 12,
        "num_bootstrap": 100,
    }
    return MergeSearch(kind="merge_search", **(keys | changes))


def count_vowels(completions):
    return [float(sum(letter in "aeiouAEIOU135" for letter in text) >= 2) for text in completions]


def make_context(tmp_path, name, inputs, **more):
    folder, checkpoints = tmp_path / name, tmp_path / f"{name}-checkpoints"
    for each in (folder, checkpoints):
        each.mkdir(exist_ok=True)
    return Context(inputs, folder, checkpoints, seed=4, **more)


def test_every_combination_is_listed_once_and_a_part_is_drawn_by_the_seed():
    spaces = [
        MergeSpace(merge_method="linear", weight_steps=4),
        MergeSpace(merge_method="ties", each={"weight": [1.0, 2.0]}, parameters={"density": [0.1, 0.5, 1.0]}),
    ]
    made = list_candidates(spaces, 3, None, 0)
    shares = [tuple(model["weight"] for model in one.by_model) for one in made if one.merge_method == "linear"]
    assert len(shares) == len(set(shares)) == 15 - 3
    assert all(sum(share) == 1 and max(share) < 1 for share in shares)
    ties = {(tuple(m["weight"] for m in one.by_model), one.parameters["density"]) for one in made[12:]}
    assert len(made) == 12 + 8 * 3
    assert len(ties) == 24
    assert len({one.name for one in made}) == 36
    assert [count_merges(space, 3) for space in spaces] == [12, 24]
    part = list_candidates(spaces, 3, 5, 7)
    assert part == list_candidates(spaces, 3, 5, 7) != list_candidates(spaces, 3, 5, 8)
    assert [one for one in made if one in part] == part
    assert len(part) == 5


def test_values_are_those_of_merges_and_evaluations_by_hand_and_the_best_is_kept(models, tmp_path):
    stage, context = make_search(), make_context(tmp_path, "search", models)
    result = run(stage, context)
    values = {}
    for one in list_candidates(stage.candidates, 2, None, 0):
        parts = [{"model": name, "parameters": own} for name, own in zip(stage.models, one.by_model, strict=True)]
        by_hand = Merge(
            kind="merge", merge_method=one.merge_method, models=parts, base_model="b", parameters=one.parameters
        )
        inputs = {f"models.{i}.model": models[f"models.{name}"] for i, name in enumerate(stage.models)}
        merged = make_context(tmp_path, one.name, inputs | {"base_model": models["base_model"]})
        merge.run(by_hand, merged)
        shared = {key: getattr(stage, key) for key in ("tasks", "rewards", "temperature", "num_generations")}
        report = Evaluate(kind="evaluate", model="m", max_completion_length=12, num_bootstrap=100, **shared)
        folder = merged.folder / "outputs/model"
        values[one.name] = evaluate.run(report, make_context(tmp_path, f"{one.name}-report", {"model": folder}))
    accuracies = {name: one.metrics["accuracy"] for name, one in values.items()}
    assert {name: result.metrics[f"accuracy.{name}"] for name in accuracies} == accuracies
    assert len(set(accuracies.values())) > 1
    best = max(accuracies, key=accuracies.get)
    search = result.details["search"]
    assert (search["chosen"], result.metrics["accuracy"]) == (best, accuracies[best])
    assert [line["value"] for line in search["candidates"]] == list(accuracies.values())
    kept = load_file(context.folder / "outputs/model/model.safetensors")
    by_hand = load_file(tmp_path / best / "outputs/model/model.safetensors")
    assert all(torch.equal(kept[name], by_hand[name]) for name in by_hand)
    assert {(line["model"], line["against"]) for line in result.details["comparisons"]} == {
        (best, "left"),
        (best, "right"),
    }
    assert f"{best} (" in result.notices[0]
    assert sorted(path.name for path in context.folder.iterdir()) == ["outputs"]


class Stopped(Exception):
    """What interrupts the search."""


def test_a_killed_search_repeats_no_finished_merge_and_gives_the_same(models, tmp_path, monkeypatch):
    stage = make_search(candidates=CANDIDATES[:1])
    whole = make_context(tmp_path, "whole", models)
    expected = run(stage, whole)

    def stop(event):
        if event.get("step") == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run(stage, make_context(tmp_path, "broken", models, on_progress=stop))
    merged = []
    monkeypatch.setattr(merge, "run", lambda stage, context, own=merge.run: merged.append(1) or own(stage, context))
    broken = make_context(tmp_path, "broken", models)
    assert run(stage, broken) == expected
    assert len(merged) == 1 + 1  # the last candidate, and the best one for the output
    for name in ("model/model.safetensors", "report/results.json", "report/samples.parquet"):
        assert (broken.folder / "outputs" / name).read_bytes() == (whole.folder / "outputs" / name).read_bytes()


def test_problems_of_an_evaluation_are_refused_by_name(models, tmp_path):
    stage = make_search(held_out=[TASK | {"size": 3}])
    with pytest.raises(StepError, match=r"3 of 12 problems are problems of an evaluation of this recipe.*first: "):
        run(stage, make_context(tmp_path, "search", models))


def test_a_test_split_of_lm_eval_is_refused_by_name(models, tmp_path):
    rows = [{"question": f"{i}+{i}=", "answer": str(2 * i)} for i in range(4)]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (
        "task: {0}\ndataset_path: json\ndataset_kwargs: {{data_files: {{{1}: data.jsonl}}}}\n{1}_split: {1}\n"
        "output_type: generate_until\ndoc_to_text: '{{{{question}}}}'\ndoc_to_target: '{{{{answer}}}}'\n"
        "generation_kwargs: {{until: [x], max_gen_toks: 8}}\nmetric_list: [{{metric: exact_match}}]\n"
    )
    for name, split in (("exam", "test"), ("practice", "validation")):
        (tmp_path / f"tasks/{name}.yaml").write_text(text.format(name, split))
    inputs = models | {"tasks.0.include_path": tmp_path / "tasks"}
    stage = make_search(tasks=[{"use": "lm_eval", "tasks": ["practice"], "include_path": "path:tasks"}])
    stage = stage.model_copy(update={"temperature": 0.0, "num_generations": 1, "candidates": stage.candidates[1:]})
    result = run(stage, make_context(tmp_path, "search", inputs))
    assert result.metrics["problems"] == 4
    stage.tasks[0].__pydantic_extra__.update(tasks=["exam"])
    with pytest.raises(StepError, match=r"task exam evaluates its test split"):
        run(stage, make_context(tmp_path, "again", inputs))
