"""Revision trajectories: which episodes are paired, how many, and where the cut is when it lies in the shared part."""

import json

import pytest

from learning.evaluation.revisions import JUDGE, Pair, mark_errors, observe, splice, walk, write_judgement
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from learning.toy_tasks.crafts import make_craft_row
from learning.tree_search.states import Node
from schemas.errors import StepError
from schemas.use import SearchUse

ROW = make_craft_row({"lamp": ["rod"], "rod": ["ore"]}, "lamp", "craft2")
SEARCH = {"use": "state_revisions", "env": {"use": "craft", "max_turns": 4}, "simulations": 30}


def propose(rows):
    """The right action, one that wastes a turn, one that the length limit cut; every action is called good."""
    texts = ["get ore", "craft rod", "craft lamp"]
    return [
        [
            AnswerSample(texts[min(2, sum("have" in str(m["content"]) for m in row["prompt"][1:]))], "stop"),
            AnswerSample("wait, good", "stop"),
            AnswerSample("get", "length"),
        ]
        for row in rows
    ]


def search(row=ROW, **options):
    return bind(SearchUse.model_validate(SEARCH | options))([row], propose, lambda rows, texts: [])


def end(root, *turns):
    """The last state after these turns, each answered by its number."""
    node = root
    for number, action in enumerate(turns, 1):
        said = [{"role": "assistant", "content": action}, {"role": "user", "content": str(number)}]
        row = node.row | {"prompt": [*node.row["prompt"], *said]}
        node = Node(row, None, parent=node, action=action, depth=number)
    return node


def test_each_episode_is_there_once_and_at_most_so_many_pairs_are_drawn():
    rows = search(pairs=1000)
    good = {row["id"].split("=")[1].split(".")[0] for row in rows if "=" in row["id"]}
    # Three actions and at most one thought before, between or after them, in at most four turns.
    assert len(good) == 4
    episodes = {tuple(row["text"] for row in rows if row["id"].split("=")[-1].startswith(f"{n}.")) for n in good}
    assert ("get ore", "craft rod", "craft lamp") in episodes
    assert len(episodes) == 4
    # Of four turns eight episodes hold two thoughts or more and so miss the goal, with four good ones each.
    revisions = {row["id"].split(">")[1].split(".")[0] for row in rows if ">" in row["id"]}
    assert len(revisions) % 4 == 0
    assert len(revisions) >= 16
    assert {row["id"].split(">")[1].split(".")[0] for row in search(pairs=3) if ">" in row["id"]} == {"0", "1", "2"}
    assert search(pairs=3) == search(pairs=3)
    assert search(pairs=3) != search(pairs=3, seed=1)


def test_pairs_differ_by_the_margin_and_have_a_good_side():
    assert search(good=1.5) == []
    assert {"=" in row["id"] for row in search(margin=1.5)} == {True}
    assert {">" in row["id"] for row in search(returns="revisions")} == {True}
    assert {"=" in row["id"] for row in search(returns="good")} == {True}
    assert {row["score"] for row in search()} == {1.0}


def test_an_error_before_the_fork_goes_on_with_all_good_turns_after_it():
    root = Node(ROW, "{}")
    pair = Pair(end(root, "a", "b", "c", "d"), end(root, "a", "b", "x", "y"))
    assert [turn.text for turn in splice(pair, 1, "hm", "ok")] == ["hm", "b", "c", "d"]
    assert [turn.text for turn in splice(pair, 2, "hm", "ok")] == ["hm", "c", "d"]
    last = splice(pair, 4, "hm", "ok")
    assert [turn.text for turn in last] == ["hm", "c", "d"]
    assert [message["content"] for message in last[1].prompt[1:]] == [
        "a",
        "1",
        "b",
        "2",
        "x",
        "3",
        "y",
        "4",
        "hm",
        "ok",
    ]


def test_what_ended_has_no_observation_and_each_error_is_asked_for_alone():
    root = Node(ROW, "{}")
    over = end(root, "a")
    assert observe(over) == "1"
    closed = Node(over.row | {"prompt": over.row["prompt"][:-1]}, None, parent=root, action="a", depth=1)
    assert observe(closed) == ""
    assert [node.action for node in walk(end(root, "a", "b"))] == ["a", "b"]
    asked = []

    def ask(rows):
        asked.append([row["id"] for row in rows])
        return [[AnswerSample("good" if "b\n2" not in row["prompt"][0]["content"] else "bad", "stop")] for row in rows]

    pairs = [Pair(over, end(root, "a", "b", "c")), Pair(over, end(root, "c", "c"))]
    assert mark_errors(pairs, ask, JUDGE, ["good"]) == [2, 2]
    assert [len(ids) for ids in asked] == [2, 2]
    assert len({name for ids in asked for name in ids}) == 4


def test_a_question_with_an_unknown_field_is_refused():
    turns = [("a", "1"), ("b", "{task}")]
    assert write_judgement("{task}|{history}|{action}|{observation}", "t", turns) == "t|a\n1|b|{task}"
    with pytest.raises(StepError, match=r"no field \{place\}"):
        write_judgement("{place}", "t", turns)


def test_metadata_stay_with_every_row():
    assert {json.loads(row["metadata"])["goal"] for row in search()} == {"lamp"}
