"""Forms on a screen of text: what a turn does to them, what an expert needs, and rows made of an expert's turns."""

import json

import numpy as np
import pytest

from learning.environments.form import Environment
from learning.problems import form_turns, forms
from learning.teachers import form_filler
from learning.worlds.forms import Form
from schemas.errors import StepError


def made(pages, goal):
    return {"id": "x", "prompt": [], "metadata": json.dumps({"pages": pages, "goal": goal})}


def played(row, actions):
    episode = Environment().begin(row, 0)
    return [episode.step(action) for action in actions]


def test_the_screen_after_every_turn():
    row = made([["age", "car"], ["zip"]], {"zip": "4", "age": "7"})
    outcomes = played(row, ["a 7", " b 0 ", "c", "a 4", "b"])
    assert [o.observation for o in outcomes] == [
        "a age=7\nb car=\nc [next]",
        "a age=7\nb car=0\nc [next]",
        "a zip=\nb [save]",
        "a zip=4\nb [save]",
        "",
    ]
    assert [o.done for o in outcomes] == [False] * 4 + [True]
    assert [o.reward for o in outcomes] == [0.0] * 4 + [1.0]
    assert all(o.ok for o in outcomes)


@pytest.mark.parametrize("action", ["", "d", "c 5", "a", "a x", "A 5", "a 5 b 6", "save", "a  5"])
def test_what_cannot_be_done_changes_nothing(action):
    row = made([["age", "car"]], {"age": "7"})
    first, second = played(row, [action, "a 7"])
    assert (first.ok, first.done, first.reward) == (False, False, 0.0)
    assert first.observation == "?\na age=\nb car=\nc [save]"
    assert second.observation == "a age=7\nb car=\nc [save]"


@pytest.mark.parametrize(
    ("actions", "earned"),
    [
        (["a 7", "b"], 0.0),
        (["b"], 0.0),
        (["a 6", "b", "a 4", "b"], 0.0),
        (["a 6", "a 7", "b", "a 4", "b"], 1.0),
        (["a 7", "b", "a 4", "b"], 1.0),
    ],
)
def test_a_form_is_judged_when_it_is_saved(actions, earned):
    outcomes = played(made([["age"], ["zip"]], {"age": "7", "zip": "4"}), actions)
    assert sum(o.reward for o in outcomes) == earned
    assert outcomes[-1].done == (actions != ["b"] and actions != ["a 7", "b"])


def test_a_form_needs_as_many_turns_as_its_family_says():
    rows = forms(size=60, split="train", seed=4)
    assert [row["family"] for row in rows[:8]] == ["form3", "form4", "form5", "form6"] * 2
    for row in rows:
        form, outcomes = Form(row), []
        episode = Environment().begin(row, 0)
        assert row["prompt"][0]["content"].endswith("\n" + form.screen())
        while not form.saved:
            outcomes.append(episode.step(form.expert()))
            form.act(form.expert())
        assert len(outcomes) == int(row["family"].removeprefix("form"))
        assert outcomes[-1].reward == 1.0


def test_train_and_test_never_share_a_form_whatever_the_seeds():
    train, test = (forms(size=300, split=split, seed=seed) for split, seed in (("train", 1), ("test", 2)))
    assert len({row["id"] for row in train}) == 300
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    assert forms(size=300, split="train", seed=1) == train
    with pytest.raises(StepError, match="lower `size`"):
        forms(size=5, split="test", test_share=1e-9)


def test_the_turns_of_an_expert_are_rows_that_lead_from_one_to_the_next():
    rows = form_turns(size=12, split="train", seed=3)
    assert len(rows) == 3 * (3 + 4 + 5 + 6)
    assert len({row["id"] for row in rows}) == len(rows)
    rng = np.random.default_rng(0)
    for row in rows:
        assert form_filler(row, rng) == row["answer"]
        said = row["prompt"]
        assert [m["role"] for m in said] == ["user", "assistant"] * (len(said) // 2) + ["user"]
        episode = Environment().begin(row, 0)
        for action, screen in zip(said[1::2], said[2::2], strict=True):
            assert episode.step(action["content"]).observation == screen["content"]


def test_an_expert_sets_right_what_slipped():
    rows = form_turns(size=40, split="train", seed=3, slips=0.3)
    plain = {row["id"]: row for row in form_turns(size=40, split="train", seed=3)}
    assert rows != list(plain.values())
    corrected = 0
    for row in rows:
        form = Form(row)
        for message in row["prompt"][1::2]:
            assert form.act(message["content"])
        assert form.expert() == row["answer"]
        assert not form.saved
        corrected += len(row["prompt"]) // 2 + 1 > int(row["family"].removeprefix("form"))
    assert corrected > 10


def test_a_teacher_errs_as_often_as_told_and_does_what_can_be_done():
    rows = form_turns(size=100, split="train", seed=5)
    said = [form_filler(row, np.random.default_rng([0, i]), error_rate=0.2) for i, row in enumerate(rows)]
    wrong = [(row, text) for row, text in zip(rows, said, strict=True) if text != row["answer"]]
    assert 0.15 < len(wrong) / len(rows) < 0.25
    for row, text in wrong:
        form = Form(row)
        for message in row["prompt"][1::2]:
            form.act(message["content"])
        assert form.act(text)


def test_a_row_of_something_else_is_refused():
    with pytest.raises(StepError, match="generate the problems with `forms`"):
        Environment().begin({"id": "1", "metadata": "{}"}, 0)
