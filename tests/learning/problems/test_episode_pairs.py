"""Pairs of turns at which episodes with the same past part."""

import json
from types import SimpleNamespace

import pytest

from learning.data.rows import read_rows, write_rows
from learning.problems.episode_pairs import pair_episodes, pair_whole_episodes
from schemas.errors import StepError


def make_episode(name, *said, earned):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    row = {"id": name, "answer": None, "family": "f", "metadata": json.dumps({"rewards": earned})}
    return row | {"prompt": messages[:-1], "completion": messages[-1:]}


@pytest.fixture
def call(tmp_path):
    def run(function, rows, options):
        for name in ("episodes", "pairs"):
            (tmp_path / name).mkdir(exist_ok=True)
        write_rows(tmp_path / "episodes", "chat", list(rows))
        context = SimpleNamespace(input=lambda port: tmp_path / port, output=lambda port: tmp_path / port)
        metrics = function(context, **options)
        return read_rows(tmp_path / "pairs", "preference_pairs"), metrics

    return run


@pytest.fixture
def pair(call):
    def run(*rows, **options):
        made, metrics = call(pair_episodes, rows, options)
        return [
            (texts(row["prompt"]), row["chosen"][0]["content"], row["rejected"][0]["content"], row["margin"])
            for row in made
        ], metrics

    return run


@pytest.fixture
def pair_whole(call):
    def run(*rows, **options):
        made, metrics = call(pair_whole_episodes, rows, options)
        assert metrics["pairs"] == len(made)
        return made

    return run


def texts(messages):
    return [message["content"] for message in messages]


def test_two_episodes_of_a_problem_are_paired_where_they_part(pair):
    worse = make_episode("a", "p", "same", "r", "bad", "s", "end", earned=[0, 0, 0])
    better = make_episode("b", "p", "same", "r", "good", "t", "end", earned=[0, 0.25, 1])
    assert pair(worse, better) == ([(["p", "same", "r"], "good", "bad", 1.25)], {"pairs": 1, "parted": 1})


def test_a_turn_is_worth_the_mean_of_its_episodes(pair):
    rows = [
        make_episode("a", "p", "x", "r", "u", earned=[0, 1]),
        make_episode("b", "p", "x", "r", "v", earned=[0, 0]),
        make_episode("c", "p", "y", earned=0.75),
        make_episode("d", "p", "z", earned=0.1),
    ]
    pairs, metrics = pair(*rows)
    assert pairs == [(["p"], "y", "z", pytest.approx(0.65)), (["p", "x", "r"], "u", "v", 1.0)]
    assert metrics == {"pairs": 2, "parted": 2}
    assert pair(*rows, min_margin=0.7)[0] == [(["p", "x", "r"], "u", "v", 1.0)]


def test_episodes_of_different_problems_are_not_compared(pair):
    with pytest.raises(StepError, match="none part after the same past with returns that differ by more than 0"):
        pair(make_episode("a", "p", "x", earned=0), make_episode("b", "q", "y", earned=1))


def test_equal_returns_make_no_pair(pair):
    with pytest.raises(StepError, match="of 2 episodes none part"):
        pair(make_episode("a", "p", "x", earned=1), make_episode("b", "p", "y", earned=1))


def test_each_pair_has_an_id_of_its_own(pair, tmp_path):
    pair(
        make_episode("a", "p", "x", "r", "u", earned=[0, 1]),
        make_episode("b", "p", "x", "r", "v", earned=[0, 0]),
        make_episode("c", "p", "y", earned=0),
    )
    assert [row["id"] for row in read_rows(tmp_path / "pairs", "preference_pairs")] == ["a.1", "a.2"]


def test_whole_episodes_are_paired_by_problem(pair_whole):
    """Equal returns: the first of the best, the first of the worst; a last observation is left out."""
    rows = [
        make_episode("a", "p", "x", "r", "u", earned=[0, 1]),
        make_episode("b", "p", "x", "s", "v", earned=[1, 0]),
        make_episode("c", "p", "y", "over", earned=0.25),
        make_episode("d", "q", "x", "r", "u", earned=1),
        make_episode("e", "q", "z", earned=0.75),
        make_episode("f", "o", "x", earned=1),
    ]
    first, second = pair_whole(*rows)
    assert (first["id"], texts(first["prompt"]), first["margin"]) == ("a", ["p"], 0.75)
    assert (texts(first["chosen"]), texts(first["rejected"])) == (["x", "r", "u"], ["y"])
    assert (second["id"], texts(second["chosen"]), texts(second["rejected"])) == ("d", ["x", "r", "u"], ["z"])
    (alone,) = pair_whole(*rows, min_margin=0.25)
    assert alone["id"] == "a"
    with pytest.raises(StepError, match=r"of 3 problems none has episodes with returns that differ by more than 0.75"):
        pair_whole(*rows, min_margin=0.75)


def test_whole_episodes_may_call_tools(pair_whole):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    good = make_episode("a", "p", "x", "result", "u", earned=1)
    good["prompt"][1] = call
    (pair,) = pair_whole(good, make_episode("b", "p", "x", earned=0))
    assert pair["chosen"][0]["tool_calls"][0]["function"]["name"] == "f"
    assert len(pair["chosen"]) == 3


def test_an_episode_without_a_turn_of_the_assistant_is_refused(pair_whole):
    text = make_episode("a", "p", "x", earned=1)
    text["completion"][0]["role"] = "text"
    with pytest.raises(StepError, match="row a has no turn of the assistant"):
        pair_whole(text)
