"""Searches on games whose best line is known."""

import math

import pytest

from learning.evaluation.sampled_answers import AnswerSample
from learning.evaluation.searches import Node, mcts, samples

ROOT = {"id": "p", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "start"}]}


def made(text, score, whole=True):
    return {"text": text, "score": score, "finished": whole}


def test_two_leaves_back_up_their_mean():
    root = Node(ROOT)
    root.expand([made("a", 0.8), made("b", 0.4)])
    assert (root.value, root.visits) == (pytest.approx(0.6), 2)
    root.children[0].expand([made("c", 0.2)])
    assert (root.children[0].value, root.children[0].visits) == (pytest.approx(0.5), 2)
    assert (root.value, root.visits) == (pytest.approx((0.8 + 0.4 + 0.2) / 3), 3)


def test_the_walk_weighs_value_against_visits():
    root = Node(ROOT)
    root.expand([made("a", 0.8), made("b", 0.4)])
    assert root.select(0.0, 3) is root.children[0]
    for _ in range(3):
        root.children[0].back_up(0.8)
    a, b = root.children
    assert a.promise(1.0) == pytest.approx(0.8 + math.sqrt(math.log(5) / 4))
    assert b.promise(1.0) == pytest.approx(0.4 + math.sqrt(math.log(5) / 1))
    assert root.select(1.0, 3) is b
    assert root.select(0.1, 3) is a


def test_unscorable_equal_and_broken_off_parts_are_not_gone_on_from():
    root = Node(ROOT)
    root.expand([made("a", None), made("b", 0.5), made("b", 0.5), made("c", 0.9, whole=False)])
    assert [c.made["text"] for c in root.children] == ["b", "c"]
    assert root.select(1.0, 2) is root.children[0]
    root.children[0].expand([made("x", None)])
    assert root.select(1.0, 2) is None


def test_a_segment_sees_all_earlier_segments_and_competes_with_its_siblings():
    def ask(rows):
        return [[AnswerSample(t, "stop") for t in "gb"] for _ in rows]

    asked = []

    def score(rows, texts):
        asked.extend(row["prompt"][-1]["content"] for row in rows)
        return [(row["prompt"][-1]["content"] + text).count("g") / 3 for row, text in zip(rows, texts, strict=True)]

    tried = mcts([ROOT], ask, score, steps=2, simulations=3, exploration=0.0, separator=" ")
    assert list(dict.fromkeys(asked)) == ["start", "start g", "start b"]
    assert [(t["id"], t["text"], t["score"]) for t in tried] == [
        ("p", "g", pytest.approx((1 / 3 + 2 / 3 + 1 / 3) / 3)),
        ("p/0", "g", pytest.approx(2 / 3)),
        ("p/0", "b", pytest.approx(1 / 3)),
        ("p", "b", pytest.approx((0 + 1 / 3 + 0) / 3)),
        ("p/1", "g", pytest.approx(1 / 3)),
        ("p/1", "b", 0),
    ]
    assert tried[1]["prompt"] == [ROOT["prompt"][0], {"role": "user", "content": "start g"}]


def test_the_search_ends_when_everything_has_been_seen():
    calls = []

    def ask(rows):
        calls.append(len(rows))
        return [[AnswerSample("x", "stop")] for _ in rows]

    other = ROOT | {"id": "q"}
    mcts([ROOT, other], ask, lambda rows, texts: [1.0] * len(texts), steps=3, simulations=50)
    assert calls == [2, 2, 2]


def test_samples_stand_for_themselves():
    tried = samples(
        [ROOT, ROOT | {"id": "q"}],
        lambda rows: [[AnswerSample("a", "stop"), AnswerSample("b", "length")] for _ in rows],
        lambda rows, texts: [float(i) for i in range(len(texts))],
    )
    assert [(t["id"], t["text"], t["finished"], t["score"]) for t in tried] == [
        ("p", "a", True, 0),
        ("p", "b", False, 1),
        ("q", "a", True, 2),
        ("q", "b", False, 3),
    ]
