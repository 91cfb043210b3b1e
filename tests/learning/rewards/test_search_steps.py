"""What calls of a search were worth."""

import pytest

from learning.lookup import bind
from learning.samples.engine_protocol import Turn, hash_name
from learning.samples.sample import Sample
from schemas.use import RewardUse


def score(text, *kinds, finish="stop", ok=True, **options):
    turns = [Turn(1, kind=hash_name(kind) if kind else 0, ok=ok) for kind in kinds]
    row = {"id": "a", "answer": None if text is None else "x"}
    sample = Sample(row, 0, "policy", [1], [2], [-1.0], finish, text or "", turns=turns)
    use = {"use": "search_steps.steered", "of": "answers.exact", **options}
    supplies = {"rows": [row], "completions": [sample.text], "samples": [sample]}
    (made,) = bind(RewardUse.model_validate(use)).ask(0, supplies)
    return made


def test_options_name_tools_and_limits():
    calls = ["find new", "find redundant", "read verifying", ""]
    names = {"search": "find", "query": "read"}
    assert score("x", *calls, **names) == pytest.approx(0.1 + 2 / 3)
    assert score("y", *calls, **names) == pytest.approx(0.1 + 0.2 / 8 + 0.2 / 16)
    assert score("y", *calls, **names, searches=1, queries=2, share=0.3, form=0.0) == pytest.approx(0.3 + 0.15)
    assert score("x", *calls, **names, lowest=0.9) == pytest.approx(1.0)
    # Calls of other tools are neither.
    assert score("y", *calls) == pytest.approx(0.1)


def test_what_cannot_be_scored_has_no_score_and_a_cut_episode_no_form():
    assert score(None, "search new") is None
    assert score("x", "search new", finish="length") == 1.0
    assert score("x", "search new", ok=False) == 1.0
    assert score("x") == pytest.approx(1.1)
