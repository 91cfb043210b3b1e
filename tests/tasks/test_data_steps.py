"""Rows with a label per step, in the shapes of TRL, PRM800K and Math-Shepherd."""

import json

import pytest

from learning.data.rows import read_rows
from schemas.errors import StepError
from tests.tasks.data_stages import convert

TRL = {"prompt": "2+2, plus 1?", "completions": ["2+2 is 4", "4+1 is 6"], "labels": [True, False]}
SHEPHERD = {
    "input": "2+2, plus 1? Step 1: 2+2 is 4 ки\nStep 2: 4+1 is 6 ки",
    "label": "2+2, plus 1? Step 1: 2+2 is 4 +\nStep 2: 4+1 is 6 -",
    "task": "GSM8K",
}


def convert_rows(folder, *rows, **source):
    files = {"a.jsonl": "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)}
    return convert(folder, files, emit="step_labels", **source)


def say(row):
    return [step["content"] for step in row["steps"]], row["labels"]


@pytest.mark.parametrize(
    "row",
    [
        TRL,
        TRL | {"labels": [1, 0.0]},
        TRL | {"labels": ["true", "0"]},
        TRL | {"prompt": [{"role": "user", "content": "2+2, plus 1?"}]},
    ],
)
def test_labels_of_steps_are_numbers_whatever_they_are_written_as(tmp_path, row):
    rows, result, _ = convert_rows(tmp_path, row)
    assert rows[0]["prompt"] == [{"role": "user", "content": "2+2, plus 1?"}]
    assert say(rows[0]) == (["2+2 is 4", "4+1 is 6"], [1.0, 0.0])
    assert result.details["sources"][0]["format"] == "steps"


def test_the_texts_of_math_shepherd_are_cut_at_their_marks(tmp_path):
    rows, _, _ = convert_rows(tmp_path, SHEPHERD)
    assert rows[0]["prompt"] == [{"role": "user", "content": "2+2, plus 1?"}]
    assert say(rows[0]) == (["Step 1: 2+2 is 4", "Step 2: 4+1 is 6"], [1.0, 0.0])
    assert json.loads(rows[0]["metadata"]) == {"task": "GSM8K"}


def rated(text, rating):
    return {"text": text, "rating": rating}


def test_every_rated_alternative_of_prm800k_is_a_solution(tmp_path):
    first = {"completions": [rated("a", 1), rated("b", -1)], "human_completion": None, "chosen_completion": 0}
    second = {"completions": None, "human_completion": {"text": "c", "rating": None}, "chosen_completion": None}
    third = {"completions": [rated("d", 0), rated("e", -1)], "human_completion": None, "chosen_completion": None}
    row = {"labeler": "x", "question": {"problem": "?"}, "label": {"steps": [first, second, third]}}
    rows, result, _ = convert_rows(tmp_path, row)
    assert [(row["id"], *say(row)) for row in rows] == [
        ("a.jsonl:1.1", ["b"], [0.0]),
        ("a.jsonl:1.2", ["a", "c", "d"], [1.0, 1.0, 0.0]),
        ("a.jsonl:1.3", ["a", "c", "e"], [1.0, 1.0, 0.0]),
    ]
    assert result.metrics["rows"] == 3
    assert json.loads(rows[0]["metadata"]) == {"labeler": "x"}


def test_a_chosen_last_step_of_prm800k_ends_a_solution(tmp_path):
    step = {"completions": [rated("a", 1)], "human_completion": None, "chosen_completion": 0}
    rows, _, _ = convert_rows(tmp_path, {"question": {"problem": "?"}, "label": {"steps": [step, step]}})
    assert [say(row) for row in rows] == [(["a", "a"], [1.0, 1.0])]


BAD = {
    "too few labels": (TRL | {"labels": [True]}, "1 labels for 2 steps"),
    "no labels": (TRL | {"labels": None}, "no list of labels for 2 steps"),
    "no steps": (TRL | {"completions": []}, "`completions` is no list of steps"),
    "one text": (TRL | {"completions": "a"}, "`completions` is no list of steps"),
    "an empty step": (TRL | {"completions": ["a", " "]}, "step 2 is empty"),
    "a step of another type": (TRL | {"completions": ["a", 3]}, "step 2 is no text but int"),
    "a rating": (TRL | {"labels": [1, -1]}, "label 2 is '-1'; labels are true, false or numbers from 0 to 1"),
    "no label": (TRL | {"labels": [1, None]}, "label 2 is 'None'"),
    "no prompt": (TRL | {"prompt": None}, "no `prompt`"),
    "another sign": (SHEPHERD | {"label": SHEPHERD["label"].replace("-", "?")}, r"`label` has '\?' where"),
    "no question": (SHEPHERD | {"input": "2+2 ки", "label": "2+2 +"}, "no `Step 1:`"),
    "a choice that is none": (
        {"question": {"problem": "?"}, "label": {"steps": [{"completions": [], "chosen_completion": 2}]}},
        "chosen_completion 2 is none of 0",
    ),
    "no tree": ({"question": {"problem": "?"}, "label": {"steps": 3}}, "`label` no list `steps`"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=BAD)
def test_a_row_that_does_not_fit_is_named_and_nothing_is_lost(tmp_path, bad, reason):
    with pytest.raises(StepError, match=rf"a\.jsonl, row 2: .*{reason}"):
        convert_rows(tmp_path / "stop", TRL, bad)
    rows, result, _ = convert_rows(tmp_path / "drop", TRL, bad, TRL, on_bad_row="drop")
    assert (len(rows), result.metrics["rows"], result.metrics["dropped"]) == (2, 3, 1)


@pytest.mark.parametrize("emit", ["chat", "preference_pairs"])
def test_labels_of_steps_are_not_ignored_by_other_stages(tmp_path, emit):
    with pytest.raises(StepError, match="labels of steps, right and wrong ones; train on them with `kind: process_re"):
        convert(tmp_path, {"a.jsonl": json.dumps(TRL)}, emit=emit)


def test_rows_written_by_a_stage_are_read_again(tmp_path):
    rows, _, _ = convert_rows(tmp_path, TRL)
    own = {name: rows[0][name] for name in ("id", "prompt", "answer", "family", "metadata", "steps", "labels")}
    again, _, _ = convert_rows(tmp_path / "again", own, format="rows")
    assert say(again[0]) == say(rows[0])
    with pytest.raises(StepError, match="1 labels for 2 steps"):
        convert_rows(tmp_path / "bad", own | {"labels": [1.0]}, format="rows")


def test_equal_solutions_and_private_data_in_steps_are_found_by_a_curation(tmp_path):
    from schemas.stages.curate import Curate
    from tasks.context import Context
    from tasks.curate import run

    secret = TRL | {"completions": ["mail ada@lab.org", "4+1 is 6"]}
    rows, _, _ = convert_rows(tmp_path, TRL, TRL | {"labels": [True, True]}, secret)
    assert len(rows) == 3
    stage = Curate.model_validate({"kind": "curate", "data": "d", "mask": {}, "decontaminate": None})
    folder = tmp_path / "curated"
    folder.mkdir()
    result = run(stage, Context({"data": tmp_path / "work/outputs/data"}, folder, tmp_path / "c", seed=0))
    kept = read_rows(folder / "outputs/data", "step_labels")
    assert [say(row) for row in kept] == [(["2+2 is 4", "4+1 is 6"], [1, 0]), (["mail [EMAIL]", "4+1 is 6"], [1, 0])]
    assert result.metrics["kept"] == 2
