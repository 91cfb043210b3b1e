"""Problems about whole dialogues, seen from either side and in hindsight."""

import json

import pytest

from learning.data.dialogues import exchange_roles, list_messages
from learning.data.rows import read_metadata, write_rows
from learning.problems.hindsight import partner_talks, rated_talks, whole_talks
from schemas.errors import StepError

SAID = ("hi", "one", "no", "two", "yes", "bye")
"""Partner and agent in turn."""


def make_talk(name="t", said=SAID, rewards=(0, 0, 1)):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    metadata = json.dumps({"rewards": list(rewards) if isinstance(rewards, tuple) else rewards, "goal": "g"})
    row = {"id": name, "answer": None, "family": "f", "metadata": metadata}
    return row | {"prompt": messages[:-1], "completion": messages[-1:]}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        write_rows(tmp_path, "chat", list(rows))
        return tmp_path

    return write


def test_the_partner_sees_the_dialogue_from_the_other_side():
    user, assistant = ({"role": role} for role in ("user", "assistant"))
    messages = [
        user | {"content": "hi"},
        assistant | {"content": "a"},
        user | {"content": "b"},
        user | {"content": "c"},
    ]
    seen = exchange_roles([{"role": "system", "content": "s"}, *messages, assistant | {"content": "d"}])
    assert [(one["role"], one["content"]) for one in seen] == [
        ("user", "s\nhi\na"),
        ("assistant", "b\nc"),
        ("user", "d"),
    ]
    assert exchange_roles([user | {"content": "hi"}]) == [user | {"content": "hi"}]


def test_a_model_of_the_partner_learns_its_turns_up_to_its_last_one(write):
    (row,) = partner_talks(data=write(make_talk()))
    assert [one["content"] for one in row["prompt"]] == ["hi\none", "no", "two"]
    assert [one["role"] for one in row["prompt"]] == ["user", "assistant", "user"]
    assert row["answer"] == "yes"


def test_a_dialogue_without_an_answer_of_the_partner_teaches_nothing_about_it(write):
    with pytest.raises(StepError, match="no dialogue of `data` has a turn of the partner"):
        partner_talks(data=write(make_talk(said=("hi", "one"), rewards=(0,))))


@pytest.mark.parametrize(("rewards", "answer"), [((0, 0, 1), "good"), ((0, 0, 0.5), "bad"), (1, "good"), (0, "bad")])
def test_dialogues_are_rated_by_what_they_earned(write, rewards, answer):
    (row,) = rated_talks(data=write(make_talk(rewards=rewards)), template="{prompt}|{completion}?", at_least=1.0)
    assert row["prompt"] == [{"role": "user", "content": "hi\none\nno\ntwo\nyes|bye?"}]
    assert row["answer"] == answer


@pytest.mark.parametrize("rewards", [None, (), ("1",)])
def test_a_dialogue_without_rewards_is_refused(write, rewards):
    with pytest.raises(StepError, match="row t: its metadata have no `rewards` that are numbers"):
        rated_talks(data=write(make_talk(rewards=rewards)), template="{completion}")


def test_a_whole_dialogue_is_shown_with_the_agents_turns_numbered(write):
    data = write(make_talk("won"), make_talk("lost", rewards=(0, 0, 0)))
    (row,) = whole_talks(data=data, text="{talk}\n?", at_most=0.0)
    lines = ["partner: hi", "agent 1: one", "partner: no", "agent 2: two", "partner: yes", "agent 3: bye", "?"]
    assert row["prompt"][0]["content"].splitlines() == lines
    assert (row["id"], read_metadata(row)["source"], read_metadata(row)["goal"]) == ("lost", "lost", "g")
    assert len(whole_talks(data=data)) == 2


def test_what_cannot_be_asked_is_refused(write):
    data = write(make_talk())
    with pytest.raises(StepError, match=r"every dialogue of `data` earned more than 0\.5"):
        whole_talks(data=data, at_most=0.5)
    with pytest.raises(StepError, match=r"`text` has no \{talk\}"):
        whole_talks(data=data, text="what now?")


@pytest.mark.parametrize("message", [{"content": None}, {"tool_calls": [{"name": "f"}]}])
def test_a_message_that_is_not_text_alone_is_refused(message):
    talk = make_talk()
    talk["prompt"][1] |= message
    with pytest.raises(StepError, match="row t: a message is no text, or calls a tool"):
        list_messages(talk)
