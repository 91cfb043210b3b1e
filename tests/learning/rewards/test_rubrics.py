"""Rubrics: weighted criteria of each case, mistakes with weights below 0, and a judge."""

import json

import pytest

from learning.lookup import bind
from learning.rewards.dialogue import personal
from learning.rewards.rubrics import weighted
from schemas.errors import StepError
from schemas.use import RewardUse

RUBRIC = [
    {"criterion": "names it", "weight": 5, "evidence": ["Flu"]},
    {"criterion": "asks", "weight": 3, "evidence": ["rest", "sleep"]},
    {"criterion": "harms", "weight": -4, "evidence": ["poison"]},
]


def make_row(rubric=RUBRIC):
    return {"id": "r", "prompt": [], "answer": None, "metadata": json.dumps({"rubric": rubric})}


@pytest.mark.parametrize(
    ("text", "score"),
    [("flu, poison", 0.125), ("flu and sleep", 1.0), ("rest", 0.375), ("poison", 0.0), ("rest poison", 0.0), ("", 0.0)],
)
def test_the_score_is_the_share_of_the_weights_above_0(text, score):
    assert weighted([make_row()], [text]) == [pytest.approx(score)]


def test_the_text_after_the_last_marker_counts():
    texts = ["flu? = rest", "flu = sleep = poison flu", "flu and rest"]
    assert weighted([make_row()] * 3, texts, marker="=") == [pytest.approx(0.375), pytest.approx(0.125), 0.0]


def agree(rows, completions, *, silent: bool = False):
    """Agree with criteria whose first word is in the completion."""
    return [
        None if silent else float(row["prompt"][0]["content"].split()[0] in text)
        for row, text in zip(rows, completions, strict=True)
    ]


def test_a_judge_is_asked_for_each_criterion():
    bound = bind(RewardUse(use="rubrics.weighted", judge=f"{__name__}:agree"))
    supplies = {"rows": [make_row()], "completions": ["names the flu"], "step": 0}
    assert bound.ask(0, supplies) == [pytest.approx(5 / 8)]
    assert bound.ask(0, {**supplies, "completions": ["the flu"]}) == [0.0]
    unsure = bind(RewardUse(use="rubrics.weighted", judge={"use": f"{__name__}:agree", "silent": True}))
    assert unsure.ask(0, supplies) == [None]


@pytest.mark.parametrize(
    "rubric", [None, [], [{"criterion": "x"}], [{"criterion": "x", "weight": -1, "evidence": ["a"]}], [{"weight": 1}]]
)
def test_unusable_rubrics_are_refused(rubric):
    with pytest.raises(StepError, match="rubric"):
        weighted([make_row(rubric)], ["x"])


def test_utterances_suit_a_profile_by_its_values_or_by_asking_for_more():
    row = {"metadata": json.dumps({"facts": {"city": "New York", "pet": "cat"}})}
    texts = ["see new york", "a catalogue", "your job?", "your pet?", "hello", "Cat?"]
    assert personal([row] * 6, texts) == [1, 0, 1, 0, 0, 1]
    assert personal([{"metadata": "{}"}], ["x"]) == [None]
