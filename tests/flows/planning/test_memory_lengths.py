"""posttrain plan --memory: estimates are for the rows as they are, where these are known before a run."""

import sys
from dataclasses import replace

import pytest

from flows.planning.memory import PROCESS, describe_lengths, estimate_memory, list_warnings, memory_as_json
from flows.planning.memory_lengths import PlanRows, UnknownRowsError
from flows.planning.memory_models import PlanModels
from flows.planning.recipe_plan import plan_recipe
from learning.data.chat import encode_prompt
from learning.data.examples import encode_row
from learning.models.policy import load_tokenizer
from lineage.layout import Layout
from tests.first_hour import EXAM, QUESTIONS, RECIPE, make_model, write_files, write_lines

LONG = {"prompt": "What is 1 plus 1? " * 12, "completion": "2 " * 20, "answer": "2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    make_model(folder)
    write_files(folder)
    (folder / "train.jsonl").write_text(
        write_lines([*({**row, "completion": row["answer"]} for row in QUESTIONS), LONG])
    )
    return folder


@pytest.fixture
def measure(folder, monkeypatch):
    """Return the memory of each step by name, for an edited recipe."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a plan adds the folder, whose `mine.py` others have too

    def run(old="", new=""):
        (folder / "mine.yaml").write_text(RECIPE.replace(old, new) if old else RECIPE)
        layout = Layout(folder)
        plan = plan_recipe(folder / "mine.yaml", layout)
        return plan, {need.step: need for need in estimate_memory(plan, layout)}

    return run


def as_chat(row):
    return {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }


def test_lengths_are_those_that_the_steps_encode(folder, measure):
    plan, needs = measure()
    tokenizer = load_tokenizer(folder / "model")
    rows = [*({**row, "completion": row["answer"]} for row in QUESTIONS), LONG]
    assert needs["tuned"].lengths.row == max(len(encode_row(tokenizer, as_chat(row)).ids) for row in rows)
    longest = max(len(encode_prompt(tokenizer, [{"role": "user", "content": row["prompt"]}])) for row in QUESTIONS)
    assert (needs["better"].lengths.prompt, needs["better"].lengths.rows) == (longest, len(QUESTIONS))
    assert needs["check"].lengths.rows == len(EXAM)
    (line,) = describe_lengths(list(needs.values()))
    assert f"tuned {needs['tuned'].lengths.row}, better {longest}, check " in line
    assert memory_as_json(plan, [needs["better"]])["steps"][0]["longest_row_tokens"] == longest


def test_an_evaluation_needs_the_cache_of_its_own_problems(measure, monkeypatch):
    _, needs = measure()
    _, few = measure("prompts: path:exam.jsonl", "prompts: path:exam.jsonl\n    limit: 2")
    monkeypatch.setattr(PlanRows, "measure", lambda *_: None)
    _, most = measure()
    two, ten, all_that_fits = (one["check"].places[0].peak.parts["cache"] for one in (few, needs, most))
    assert two < ten < all_that_fits / 100


def test_written_problems_of_a_folder_are_read(folder, measure):
    problems = [{"question": text, "answer": "2"} for text in ("What is 1 plus 1?", "What is 2 plus 1? " * 6)]
    (folder / "written").mkdir(exist_ok=True)
    (folder / "written" / "questions.jsonl").write_text(write_lines(problems))
    use = "{use: written, data: 'path:written', file: questions.jsonl, family: sums, instruction: 'Say it: '}"
    plan, needs = measure("prompts: path:exam.jsonl", f"tasks: [{use}]")
    tokenizer = load_tokenizer(folder / "model")
    longest = [{"role": "user", "content": "Say it: " + problems[1]["question"]}]
    assert needs["check"].lengths.prompt == len(encode_prompt(tokenizer, longest))
    assert needs["check"].lengths.rows == 2
    reads_step = [given.model_copy(update={"source": None, "steps": ("tuned",)}) for given in plan.step("check").inputs]
    later = plan.step("check").model_copy(update={"inputs": tuple(reads_step)})
    with pytest.raises(UnknownRowsError):
        list(PlanRows(plan, Layout(folder))._read_step(later))


def test_rows_over_the_limit_count_as_the_limit(measure):
    _, free = measure()
    _, cut = measure("max_length: 128", "max_length: 40")
    assert free["tuned"].lengths.row > 40
    activations = [one["tuned"].places[0].peak.parts["activations"] for one in (free, cut)]
    assert activations[1] < activations[0]


def test_rows_that_a_model_will_make_are_not_known(folder, measure):
    drafts = "{kind: synthesize, model: path:model, prompts: path:questions.jsonl, rewards: [answers.exact]}"
    (folder / "mine.yaml").write_text(
        RECIPE.replace("stages:", f"stages:\n  drafts: {drafts}").replace("data: path:train.jsonl", "data: drafts")
    )
    plan = plan_recipe(folder / "mine.yaml", Layout(folder))
    needs = {need.step: need for need in estimate_memory(plan, Layout(folder))}
    assert needs["tuned"].lengths is None
    assert needs["drafts"].lengths.rows == len(QUESTIONS)


def test_a_model_is_read_once(folder, measure, monkeypatch):
    plan, _ = measure()
    read = []
    monkeypatch.setattr("flows.planning.memory_models._read_model", lambda place: read.append(place) or "unknown")
    models = PlanModels(plan, Layout(folder))
    for step in plan.steps:
        models.ports(step)
    assert len(read) == 1


def test_what_python_takes_counts_against_the_reservation(folder, measure):
    reserved = "max_steps: 2\n    resources: {memory: 512MiB}"
    plan, needs = measure("max_steps: 2", reserved)
    (place,) = needs["tuned"].places
    assert place.peak.total < 2**29 < place.peak.total + PROCESS
    (warning,) = list_warnings(plan, list(needs.values()))
    assert warning.startswith("tuned: step needs 1.")
    assert "its `memory` has 512 MiB" in warning
    assert memory_as_json(plan, [needs["tuned"]])["steps"][0]["places"][0]["process"] == place.peak.total + PROCESS


def test_weights_in_blocks_are_converted_to_float32_first(folder, measure):
    plan, _ = measure()
    model = next(iter(PlanModels(plan, Layout(folder)).ports(plan.step("tuned")).values()))
    assert model.loading(2) == 0
    blocks = replace(model, in_blocks=True)
    assert (blocks.loading(2), blocks.loading(4)) == (6 * model.parameters, 0)


def test_rows_are_those_of_the_artifact_once_a_step_has_run(folder, measure, monkeypatch):
    plan, _ = measure()
    rows = PlanRows(plan, Layout(folder))
    monkeypatch.setattr(rows.store, "find", lambda kind, key: object())
    monkeypatch.setattr(rows.store, "output_folder", lambda kind, key, output: folder / output)
    scanned = []
    monkeypatch.setattr(rows, "_scan", lambda place, kind: scanned.append((place.name, kind)) or iter(()))
    assert list(rows._read_step(plan.step("better"))) == []
    assert scanned == [("data", "prompts")]
