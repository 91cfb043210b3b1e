"""Whole episodes as rows: turns, answers, rewards, and what of the problem is kept."""

import json

import pytest

from learning.data.rows import read_metadata
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import ProblemsUse

FACTS = {"fever": "yes", "cough": "no"}


def cases():
    """One case of an interview."""
    row = {"id": "r", "prompt": [{"role": "user", "content": "ill"}], "answer": "flu", "family": "f"}
    return [row | {"metadata": json.dumps({"facts": FACTS})}]


def play(**options):
    use = {
        "use": "episodes",
        "of": f"{__name__}:cases",
        "by": {"use": "interviewer", "questions": 2, "conclusion": "= {answer}"},
        "env": {"use": "interview", "final": "=", "cost": 0.1, "max_turns": 4},
        **options,
    }
    return bind(ProblemsUse.model_validate(use))()


def test_a_row_is_a_whole_episode_whose_answer_is_its_last_turn():
    (row,) = play()
    said = [message["content"] for message in row["prompt"]]
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant"] * 2 + ["user"]
    assert sorted(said[1::2]) == ["cough?", "fever?"]
    assert said[2::2] == [f"{one.removesuffix('?')}: {FACTS[one.removesuffix('?')]}" for one in said[1::2]]
    assert row["answer"] == "= flu"
    told = read_metadata(row)
    assert told["rewards"] == pytest.approx([-0.1, -0.1, 0.9])
    assert (told["goal"], told["facts"], row["id"], row["family"]) == ("flu", FACTS, "r.0", "f")


def test_repeats_differ_and_the_seed_repeats_them():
    rows = play(repeats=6)
    assert [row["id"] for row in rows] == [f"r.{k}" for k in range(6)]
    orders = {row["prompt"][1]["content"] for row in rows}
    assert orders == {"cough?", "fever?"}
    assert rows == play(repeats=6)
    assert rows != play(repeats=6, seed=1)


def test_an_episode_without_an_end_stops_at_its_limit():
    (row,) = play(env={"use": "interview", "final": "=", "max_turns": 2})
    assert (len(row["prompt"]), row["answer"][-1]) == (3, "?")
    assert read_metadata(row)["rewards"] == [0.0, 0.0]


def test_an_environment_of_a_stage_is_refused(tmp_path, monkeypatch):
    text = (
        "from schemas.references import ChatRef\n\ndef shelf(query: str, *, data: ChatRef) -> str:\n    return query\n"
    )
    (tmp_path / "shelves.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StepError, match="refers to a stage's output"):
        play(env={"use": "tools", "tools": [{"use": "shelves:shelf", "data": "lessons"}]})
