"""Forms on a screen of text: what a turn does to them, what an expert needs, and rows made of an expert's turns."""

import json

import numpy as np
import pytest

from learning.lookup import bind
from learning.toy_tasks.environments.form import Environment
from learning.toy_tasks.forms import CHOICES, Form, form_filler, forms
from schemas.errors import StepError
from schemas.use import ProblemsUse


def made(pages, goal):
    return {"id": "x", "prompt": [], "metadata": json.dumps({"pages": pages, "goal": goal})}


def played(row, actions):
    episode = Environment().begin(row, 0)
    return [episode.step(action) for action in actions]


def test_the_screen_after_every_turn():
    row = made([["hue", "pet"], ["fit"]], {"fit": "Big", "hue": "Tan"})
    outcomes = played(row, ["Tan", " Yak ", "next", "Wee", "Big", "save"])
    assert [o.observation for o in outcomes] == [
        "hue=Tan\npet=\n[next]",
        "hue=Tan\npet=Yak\n[next]",
        "fit=\n[save]",
        "fit=Wee\n[save]",
        "fit=Big\n[save]",
        "",
    ]
    assert [o.done for o in outcomes] == [False] * 5 + [True]
    assert [o.reward for o in outcomes] == [0.0] * 5 + [1.0]
    assert all(o.ok for o in outcomes)


@pytest.mark.parametrize("action", ["", "Big", "next", "hue", "tan", "Tan Dog", "[save]"])
def test_what_the_page_does_not_show_changes_nothing(action):
    row = made([["hue", "pet"]], {"hue": "Tan"})
    first, second = played(row, [action, "Tan"])
    assert (first.ok, first.done, first.reward) == (False, False, 0.0)
    assert first.observation == "?\nhue=\npet=\n[save]"
    assert second.observation == "hue=Tan\npet=\n[save]"


@pytest.mark.parametrize(
    ("actions", "earned"),
    [
        (["Tan", "next"], 0.0),
        (["next"], 0.0),
        (["Red", "next", "Big", "save"], 0.0),
        (["Red", "Tan", "next", "Big", "save"], 1.0),
        (["Tan", "next", "Big", "save"], 1.0),
    ],
)
def test_a_form_is_judged_when_it_is_saved(actions, earned):
    outcomes = played(made([["hue"], ["fit"]], {"hue": "Tan", "fit": "Big"}), actions)
    assert sum(o.reward for o in outcomes) == earned
    assert outcomes[-1].done == (actions[-1] == "save")


def test_no_two_choices_begin_alike():
    words = [one for choices in CHOICES.values() for one in choices] + ["next", "save"]
    assert len({word[0] for word in words}) == len(words) == 20


def test_a_form_needs_as_many_turns_as_its_family_says():
    rows = forms(size=60, split="train", seed=4, idle=1)
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


def lessons(size, slips=0.0):
    """The turns of an expert, who sets right what slipped."""
    of = {"use": "forms", "size": size, "split": "train", "seed": 3}
    by = {"use": "form_filler", "error_rate": slips}
    use = {"use": "turns", "of": of, "by": by, "env": {"use": "form", "max_turns": 40}}
    return bind(ProblemsUse.model_validate(use))()


def test_an_experts_turns_are_lessons():
    rows = lessons(12)
    assert len(rows) == 3 * (3 + 4 + 5 + 6)
    for row in rows:
        messages, episode = row["prompt"], Environment().begin(row, 0)
        for action, screen in zip(messages[1::2], messages[2::2], strict=True):
            assert episode.step(action["content"]).observation == screen["content"]


def test_an_expert_sets_right_what_slipped():
    corrected, rng = 0, np.random.default_rng(0)
    for row in lessons(40, slips=0.3):
        form = Form(row)
        for message in row["prompt"][1::2]:
            assert form.act(message["content"])
        assert form_filler(row, rng) == form.expert()
        corrected += len(row["prompt"]) // 2 + 1 > int(row["family"].removeprefix("form"))
    assert corrected > 10


def test_a_teacher_errs_at_the_given_rate_and_makes_possible_moves():
    rows = lessons(100)
    moves = [form_filler(row, np.random.default_rng([0, i]), error_rate=0.2) for i, row in enumerate(rows)]
    wrong = []
    for row, text in zip(rows, moves, strict=True):
        form = Form(row)
        for message in row["prompt"][1::2]:
            form.act(message["content"])
        if text != form.expert():
            wrong.append(text)
            assert form.act(text)
    assert 0.15 < len(wrong) / len(rows) < 0.25


def test_a_row_of_something_else_is_refused():
    with pytest.raises(StepError, match="use problems of `forms`"):
        Environment().begin({"id": "1", "metadata": "{}"}, 0)
