"""Evaluation problems among rows that are trained on: found before a run, and given to evaluations as inputs."""

import json

import pytest

from flows.planning.compile import compile_recipe
from flows.planning.training_overlap import find_overlaps
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from tests.first_hour import write_lines

EXAM = [{"prompt": f"What is {n} times seven?", "answer": str(7 * n)} for n in (3, 4)]
ASKED = "WHAT  is 4 times seven ?"
OTHER = "Name a sea."
RL = "kind: rl, algorithm: grpo, model: base, rewards: [answers.exact], max_steps: 1, prompts: "
TRAINING = {
    "sft": ("kind: sft, model: base, max_steps: 1, data: ", "data", {"completion": "28"}),
    "rl": (RL, "prompts", {"answer": "28"}),
    "preference": (
        "kind: preference, model: base, max_steps: 1, data: ",
        "data",
        {"chosen": "28", "rejected": "27"},
    ),
    "reward_model": (
        "kind: reward_model, model: base, max_steps: 1, data: ",
        "data",
        {"chosen": "28", "rejected": "27"},
    ),
}


@pytest.fixture
def folder(tmp_path):
    """A folder with the problems of an evaluation and a checkout."""
    (tmp_path / "exam.jsonl").write_text(write_lines(EXAM))
    return tmp_path


def load(folder, training, more=""):
    """Return a recipe of one training stage and an evaluation on the exam."""
    (folder / "r.yaml").write_text(
        f"name: r\nstages:\n  base: {{kind: init}}\n  tuned: {{{training}}}\n{more}"
        "  check: {kind: evaluate, models: {before: base, after: base}, prompts: path:exam.jsonl}\n"
    )
    return load_recipe(folder / "r.yaml")


def found(recipe, folder):
    """Return, of every overlap, whether it refuses the recipe, its line, and the message."""
    return [(refused, one.line, one.message) for refused, one in find_overlaps(recipe, Layout(folder))]


@pytest.mark.parametrize("kind", TRAINING)
def test_prompts_of_every_kind_of_training_are_compared(kind, folder):
    stage, port, columns = TRAINING[kind]
    rows = [{"prompt": OTHER, **columns}, {"prompt": ASKED, **columns}]
    (folder / "rows.jsonl").write_text(write_lines(rows))
    recipe = load(folder, f"{stage}path:rows.jsonl")
    message = "1 of 2 rows asks a problem of `check` (rows.jsonl:2 asks exam.jsonl:2)"
    assert found(recipe, folder) == [(False, 4, message)]
    (_, problem), *_ = find_overlaps(recipe, Layout(folder))
    assert problem.path == f"stages.tuned.{port}"
    assert "`contaminated_rows: drop`" in problem.advice


def test_a_turn_of_a_conversation_counts_and_an_answer_does_not(folder):
    def chat(*texts):
        roles = ("user", "assistant") * 2
        return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]}

    rows = [chat(OTHER, ASKED), chat(ASKED, "28", OTHER, "The Red Sea."), chat(OTHER, "28", ASKED, "28")]
    (folder / "rows.jsonl").write_text(write_lines(rows))
    recipe = load(folder, TRAINING["sft"][0] + "path:rows.jsonl")
    message = "2 of 3 rows ask problems of `check` (first: rows.jsonl:2 asks exam.jsonl:2)"
    assert found(recipe, folder) == [(False, 4, message)]


def test_a_data_set_of_the_hub_and_a_stage_of_data_are_compared(folder, monkeypatch):
    snapshot = folder / "hub/datasets--a--b/snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "hub/datasets--a--b/refs").mkdir()
    (folder / "hub/datasets--a--b/refs/main").write_text("0" * 40)
    (snapshot / "train.jsonl").write_text(write_lines([{"prompt": ASKED, "completion": "28"}]))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    message = "1 of 1 rows asks a problem of `check` (train.jsonl:1 asks exam.jsonl:2)"
    assert found(load(folder, TRAINING["sft"][0] + '"hub:a/b"'), folder) == [(False, 4, message)]
    more = (
        '  mixed: {kind: data, sources: "hub:a/b"}\n  again: {kind: data, sources: mixed}\n'
        "  kept: {kind: curate, data: again, decontaminate: null}\n"
    )
    assert found(load(folder, TRAINING["sft"][0] + "kept", more), folder) == [(False, 4, message)]
    clean = more.replace(", decontaminate: null", "")
    assert found(load(folder, TRAINING["sft"][0] + "kept", clean), folder) == []


def test_rows_are_refused_left_out_or_trained_on_as_the_stage_says(folder):
    (folder / "rows.jsonl").write_text(write_lines([{"prompt": ASKED, "completion": "28"}]))
    stage = TRAINING["sft"][0] + "path:rows.jsonl"
    keys = {}
    for word in ("warn", "allow", "drop", "stop"):
        recipe = load(folder, f"{stage}, contaminated_rows: {word}")
        assert [refused for refused, *_ in found(recipe, folder)] == {"warn": [False], "stop": [True]}.get(word, [])
        keys[word] = next(step.key for step in compile_recipe(recipe, Layout(folder)).steps if step.name == "tuned")
        assert list(recipe.steps) == [
            "base",
            "tuned-data",
            *(["check-prompts", "tuned-decontaminated"] if word in ("drop", "stop") else []),
            "tuned",
            *(["check-prompts"] if word in ("warn", "allow") else []),
            "check",
        ]
    assert keys["warn"] == keys["allow"]
    assert len({keys["warn"], keys["drop"], keys["stop"]}) == 3
    curation = load(folder, f"{stage}, contaminated_rows: stop").settings("tuned-decontaminated")
    assert curation["decontaminate"]["max_dropped"] == 0
    assert curation["decontaminate"]["against_prompts"] == ["check-prompts"]
    assert (curation["exact_dedup"], curation["min_length"]) == (False, 0)


def test_a_problem_that_causes_a_drop_is_in_the_key(folder):
    (folder / "rows.jsonl").write_text(write_lines([{"prompt": OTHER, "completion": "28"}]))

    def key(word):
        recipe = load(folder, f"{TRAINING['sft'][0]}path:rows.jsonl, contaminated_rows: {word}")
        return next(step.key for step in compile_recipe(recipe, Layout(folder)).steps if step.name == "tuned")

    before = {word: key(word) for word in ("warn", "drop")}
    (folder / "exam.jsonl").write_text(write_lines(EXAM[:1]))
    assert {word: key(word) == before[word] for word in before} == {"warn": True, "drop": False}


def test_stages_share_a_curation_of_the_same_rows(folder):
    stage = TRAINING["sft"][0] + "path:rows.jsonl, contaminated_rows: drop"
    recipe = load(folder, stage, f"  other: {{{stage}, seed: 3}}\n")
    assert [name for name in recipe.steps if name.endswith("decontaminated")] == ["tuned-decontaminated"]
    assert recipe.ports("other")[1].steps == ("tuned-decontaminated",)


def test_rows_that_no_stage_makes_are_named(folder):
    (folder / "own").mkdir()
    (folder / "own/rows.parquet").write_bytes(b"")
    with pytest.raises(RecipeError, match="cannot read these rows") as caught:
        load(folder, TRAINING["sft"][0] + "path:own, contaminated_rows: drop")
    assert "data: {from: path:own}" in str(caught.value)


MADE = "{use: reasoning_gym, family: chain_sum, split: train, size: 9}"
LINEAGE = """name: r
stages:
  base: {kind: init}
  lessons: {kind: synthesize, teacher: answer, problems: [PROBLEMS]}
  clean: {kind: curate, data: lessons}
  asked: {kind: synthesize, emit: prompts, problems: [PROBLEMS]}
  tuned: {kind: sft, model: base, data: lessons, max_steps: 1}
  cleaner: {kind: sft, model: base, data: clean, max_steps: 1}
  better: {kind: rl, algorithm: grpo, model: tuned, prompts: asked, rewards: [answers.exact], max_steps: 1}
  meant: {kind: sft, model: cleaner, data: lessons, max_steps: 1, contaminated_rows: allow}
  check:
    kind: evaluate
    models: {base: base, tuned: tuned, better: better, cleaner: cleaner, meant: meant}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 9}]
"""


def test_an_evaluation_receives_the_rows_that_each_model_was_trained_on(tmp_path):
    (tmp_path / "r.yaml").write_text(LINEAGE.replace("PROBLEMS", MADE))
    ports = {port.path: port.steps for port in load_recipe(tmp_path / "r.yaml").ports("check")}
    assert {path: steps for path, steps in ports.items() if path.startswith("trained_on.")} == {
        "trained_on.tuned.0": ("lessons",),
        "trained_on.better.0": ("lessons",),
        "trained_on.better.1": ("asked",),
    }


TEAM = """  taught: {kind: sft, model: base, data: lessons, max_steps: 1}
  exam:
    kind: evaluate
    models: {start: base, tuned: better}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 9}]
    roles: {asker: {policy: asker}, judge: {policy: judge}, solver: {}}
    policies: {asker: {model: taught}, judge: {model: base, models: {tuned: meant}}}
    turn_order: in_order
"""


def test_an_evaluation_receives_the_rows_that_partners_in_a_team_were_trained_on(tmp_path):
    (tmp_path / "r.yaml").write_text(
        (LINEAGE + TEAM).replace("PROBLEMS", MADE).replace("model: cleaner", "model: taught")
    )
    ports = {port.path: port.steps for port in load_recipe(tmp_path / "r.yaml").ports("exam")}
    assert {path: steps for path, steps in ports.items() if path.startswith("trained_on.")} == {
        "trained_on.tuned.0": ("lessons",),
        "trained_on.tuned.1": ("asked",),
        "trained_on.policies.asker.0": ("lessons",),
        "trained_on.policies.judge.models.tuned.0": ("lessons",),
    }


LOOP = """name: r
stages:
  base: {kind: init}
  rounds:
    repeat:
      max: 2
      until: "check.accuracy >= 0.9"
      first: {better: base}
      stages:
        asked: {kind: synthesize, emit: prompts, problems: [PROBLEMS]}
        better: {kind: rl, algorithm: grpo, model: previous.better, prompts: asked, max_steps: 1,
                 rewards: [answers.exact]}
        check: {kind: evaluate, model: better, tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 9}]}
  last: {kind: evaluate, model: rounds.better, tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 9}]}
"""


def test_rows_of_an_iteration_that_may_be_skipped_are_no_inputs_after_the_loop(tmp_path):
    (tmp_path / "r.yaml").write_text(LOOP.replace("PROBLEMS", MADE))
    recipe = load_recipe(tmp_path / "r.yaml")

    def tables(name):
        return [port.steps for port in recipe.ports(name) if port.path.startswith("trained_on.model.")]

    assert tables("rounds-1-check") == [("rounds-1-asked",)]
    assert tables("rounds-2-check") == [("rounds-1-asked",), ("rounds-2-asked",)]
    assert tables("last") == [("rounds-1-asked",)]
    assert json.loads(json.dumps(recipe.resolved)) == recipe.resolved
