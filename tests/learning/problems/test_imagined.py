"""Problems about what was written, and imagined conversations as episodes."""

import json

import pytest

from learning.data.rows import read_metadata, write_rows
from learning.lookup import bind
from learning.problems.imagined import described, imagined_episodes, written_about
from schemas.errors import StepError
from schemas.use import ProblemsUse


@pytest.fixture
def chat(tmp_path):
    def write(*rows):
        """Rows as (prompt, completion, metadata)."""
        made = [
            {
                "id": f"r{i}",
                "prompt": [{"role": "user", "content": prompt}],
                "completion": [{"role": "assistant", "content": text}],
                "answer": None,
                "family": "f",
                "metadata": None if told is None else json.dumps(told),
            }
            for i, (prompt, text, told) in enumerate(rows)
        ]
        write_rows(tmp_path, "chat", made)
        return tmp_path

    return write


def test_a_task_is_one_problem():
    row, other = described(task="cook {x}", text="{task}: who eats?", size=2)
    assert row["id"] != other["id"]
    assert other["prompt"] == row["prompt"]
    assert row["prompt"][0]["content"] == "cook {x}: who eats?"
    assert [row["id"]] != [one["id"] for one in described(task="cook")]


def test_problems_see_what_was_written_before(chat):
    data = chat(("p", "a {b}", {"old": "o"}), ("p", "a {b}", {"old": "o"}))
    one, other = written_about(data=data, keep="new", text="{task}|{old}|{new}", task="t")
    assert one["prompt"][0]["content"] == "t|o|a {b}"
    assert read_metadata(one) == {"old": "o", "new": "a {b}"}
    assert one["id"] != other["id"]
    with pytest.raises(StepError, match=r"nothing is called \{other\} in `text`; there is: task, new, old"):
        written_about(data=data, keep="new", text="{other}")


TALK = "partner: hi\nagent: a?\npartner: no,\nreally\nagent: = b"


def test_a_talk_is_an_episode_of_which_the_last_turn_earns(chat):
    data = chat(("p", "good one", {"talk": TALK, "person": "x"}), ("p", "bad", {"talk": TALK}))
    good, bad = imagined_episodes(data=data)
    said = [(message["role"], message["content"]) for message in good["prompt"]]
    assert said == [("user", "hi"), ("assistant", "a?"), ("user", "no,\nreally")]
    assert good["answer"] == "= b"
    assert read_metadata(good)["rewards"] == [0.0, 1.0]
    assert read_metadata(bad)["rewards"] == [0.0, 0.0]
    assert read_metadata(good)["person"] == "x"


@pytest.mark.parametrize(
    ("talk", "critique"),
    [
        (TALK, "so so"),
        ("agent: = b", "good"),
        ("partner: hi\nagent: a?\npartner: no", "good"),
        ("partner: hi\npartner: you\nagent: = b", "good"),
        ("nothing", "good"),
        (None, "good"),
    ],
)
def test_what_cannot_be_read_is_an_error_where_nothing_else_is_there(chat, talk, critique):
    with pytest.raises(StepError, match="none of 1 rows has a conversation"):
        imagined_episodes(data=chat(("p", critique, {"talk": talk})))


def test_without_speakers_lines_alternate(chat):
    use = ProblemsUse.model_validate(
        {"use": "imagined_episodes", "data": "d", "agent": "", "partner": "", "good": "", "bad": ""}
    )
    (row,) = bind(use, "p", {"p.data": chat(("p", "x", {"talk": "a\nb\nc\nd"}))})()
    assert [message["content"] for message in row["prompt"]] == ["p", "a", "b"]
    assert row["answer"] == "c"
