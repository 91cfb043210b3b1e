"""Combinators, plans and programs against closed forms, with a model that is a function."""

import random

import pytest

from learning.data.rows import write_rows
from learning.lookup import bind
from learning.solvers.combinators import apply_to_all, concatenate, keep_matching, make_pairs, reduce_items, split_text
from learning.solvers.recursion import Plan, combine_tree, iterate_leaves, plan_split, take_apart
from learning.solvers.solvers import lambda_rlm
from schemas.errors import StepError
from schemas.evaluation_slots import SolverUse


def row(text, name="r"):
    return {"id": name, "prompt": [{"role": "user", "content": text}], "answer": "", "family": "x", "metadata": ""}


def test_split_keeps_every_character_and_shrinks():
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("ab,") for _ in range(rng.randint(2, 60)))
        k = rng.randint(2, 9)
        pieces = split_text(text, k, rng.choice(["", ","]))
        assert "".join(pieces) == text
        assert 1 <= len(pieces) <= k
        assert all(0 < len(piece) < len(text) for piece in pieces)
    assert split_text("aa,bb,cc,", 3, ",") == ["aa,", "bb,", "cc,"]
    assert split_text("aa,bbbb,cc", 2, ",") == ["aa,", "bbbb,cc"]
    assert split_text("abcdef", 3) == ["ab", "cd", "ef"]


def test_the_other_combinators():
    assert apply_to_all(len, ["a", "bc"]) == [1, 2]
    assert keep_matching(str.isdigit, ["1", "x", "2"]) == ["1", "2"]
    assert reduce_items(int.__sub__, [9, 3, 1], 0) == 5
    assert reduce_items(int.__add__, [], 7) == 7
    assert concatenate([[1], [], [2, 3]]) == [1, 2, 3]
    assert make_pairs("ab", [1, 2]) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_plans():
    assert plan_split(1600, 200) == Plan(4, 2, 200)
    assert plan_split(1600, 200).calls == 16
    assert plan_split(200, 200) == Plan(1, 0, 200)
    assert plan_split(201, 200) == Plan(2, 1, 200)
    assert plan_split(800, 100, 1.0, 200.0) == Plan(2, 3, 100)  # a power exactly: no level too many
    # Of all numbers of pieces, k* makes n·c_in/k + k·c_⊕ smallest.
    cost = {k: 1600 / k + 100 * k for k in range(2, 50)}
    assert min(cost, key=cost.get) == 4


def test_recursion_ends_for_any_text_and_puts_answers_back_in_order():
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choice("abc,") for _ in range(rng.randint(0, 300)))
        window, pieces = rng.randint(1, 40), rng.randint(2, 7)
        tree = take_apart(text, Plan(pieces, 1, window), rng.choice(["", ","]))
        leaves = list(iterate_leaves(tree))
        assert all(len(piece) <= window for piece in leaves)
        assert combine_tree(tree, iter(leaves), "".join) == text


def test_totals_and_items_of_a_list():
    rows = [row("find|aa,x,bb,x,cc,x,", "one"), row("find|x,x,x,x,", "two")]

    def ask(rows):
        item_lists = [r["prompt"][0]["content"].partition("|")[2].split(",") for r in rows]
        return [" " + ",".join(w for w in words if w not in ("x", "")) for words in item_lists]

    assert lambda_rlm(rows, ask, window=8, combine="joined") == ["aa,bb,cc", ""]
    assert lambda_rlm(rows, ask, window=8, combine="joined", keep="aa|cc") == ["aa,cc", ""]
    assert lambda_rlm(rows[:1], ask, window=8, combine="joined", keep="aa|cc", pairs=True) == ["aa:cc,cc:aa"]
    assert lambda_rlm(rows, lambda rows: ["2"] * len(rows), window=8) == ["6", "2"]
    # A leaf that gives no number makes the sum no number, unless it is to be left out.
    answers = ["3", "?", "4"]
    assert lambda_rlm(rows[:1], lambda rows: answers, window=8) == [""]
    assert lambda_rlm(rows[:1], lambda rows: answers, window=8, keep=r"\d+") == ["7"]
    with pytest.raises(StepError, match=r"no '\|' after its question"):
        lambda_rlm([row("nothing here")], ask, window=8)


def test_retrieved_examples_come_before_the_problem_nearest_last(tmp_path):
    texts = {"3 + 4 =": "7", "30 + 41 =": "71", "dog": "god", "dogs": "sgod"}
    examples = [row(t, t) | {"completion": [{"role": "assistant", "content": a}]} for t, a in texts.items()]
    write_rows(tmp_path, "chat", examples)
    retrieve = bind(SolverUse(use="retrieve", data="x"), "solver", {"solver.data": tmp_path})
    asked = []
    retrieve([row("dogs", "p"), row("30 + 4 =", "q")], lambda rows: asked.extend(rows) or ["", ""])
    assert [m["content"] for m in asked[0]["prompt"]][2:] == ["dog", "god", "dogs"]
    assert [m["content"] for m in asked[1]["prompt"]] == ["30 + 41 =", "71", "3 + 4 =", "7", "30 + 4 ="]
    assert [m["role"] for m in asked[1]["prompt"]] == ["user", "assistant", "user", "assistant", "user"]
    assert [r["id"] for r in asked] == ["p", "q"]
