"""Searches in the states of games whose best line and visit counts are computed independently."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.tree_search.searches import Guide, rate_below, search_beam, search_best_first, search_mcts
from learning.tree_search.states import Candidate, States, find_best
from schemas.errors import StepError
from schemas.use import EnvUse

PROBLEM = {"id": "p", "prompt": [{"role": "user", "content": "go"}], "answer": None}
REWARDS = {"a": 0.3, "b": 0.0, "aa": 0.1, "ab": 0.0, "ba": 0.0, "bb": 1.0}
"""Taking `a` first earns more at once, and less in the end."""


class Environment:
    """Two turns, `a` or `b`: the rewards of the table; anything else is refused."""

    def __init__(self, *, broken: str = "", penalty: float = 0.5) -> None:
        self.broken, self.penalty, self.begun = broken, penalty, 0

    def begin(self, row: Row, seed: int) -> "Game":
        """Return a game."""
        self.begun += 1
        return Game(self.broken, self.penalty)


class Game:
    """The turns so far."""

    def __init__(self, broken: str, penalty: float) -> None:
        self.broken, self.penalty, self.past = broken, penalty, ""

    def step(self, action: str) -> Outcome:
        """Take a turn."""
        if self.broken == "raises":
            raise ValueError("out of order")
        if action not in ("a", "b"):
            return Outcome("a or b", reward=-self.penalty, ok=False)
        self.past += action
        reward = math.nan if self.broken == "nan" else REWARDS[self.past]
        return Outcome(f"after {self.past}", done=len(self.past) == 2, reward=reward)

    def save(self) -> Row:
        """Return the turns."""
        return {"past": {1} if self.broken == "set" else self.past}

    def restore(self, saved: Row) -> None:
        """Go back."""
        self.past = saved["past"]


class Unsaved(Environment):
    """The same game without `save` and `restore`."""

    def begin(self, row: Row, seed: int) -> object:
        """Return a game that can only be played."""
        game = super().begin(row, seed)
        noise = self.begun if self.broken == "varies" else ""

        class Played:
            def step(self, action: str) -> Outcome:
                outcome = game.step(action)
                return replace(outcome, observation=f"{outcome.observation}{noise}")

        return Played()


def make(texts="ab", *, env=None, **options):
    """Return states in which the model always proposes these turns, and the ids that it was asked in."""
    asked: list[list[str]] = []

    def propose(rows):
        asked.append([row["id"] for row in rows])
        return [[Candidate(text) for text in texts] for _ in rows]

    use = EnvUse.model_validate({"use": f"{__name__}:Environment", "max_turns": 4} | (env or {}))
    return States(use, propose, **options), asked


def plan(root):
    return [node.action for node in find_best(root)]


HOW = {"exploration": 1.0, "playout_turns": 0}


def test_a_search_finds_the_best_line_that_a_greedy_player_misses():
    states, _ = make()
    greedy = states.plant(PROBLEM)
    search_beam([greedy], states, Guide(), width=1)
    assert plan(greedy) == ["a", "a"]
    assert sum(REWARDS[turns] for turns in ("a", "aa")) == pytest.approx(find_best(greedy)[-1].earned)
    searches = {
        "mcts": lambda roots, states: search_mcts(roots, states, Guide(), simulations=3, **HOW),
        "beam": lambda roots, states: search_beam(roots, states, Guide(), width=2),
        "best_first": lambda roots, states: search_best_first(roots, states, Guide(), expansions=3),
    }
    for name, search in searches.items():
        states, _ = make()
        root = states.plant(PROBLEM)
        search([root], states)
        assert plan(root) == ["b", "b"], name
        assert find_best(root)[-1].earned == max(REWARDS[a] + REWARDS[a + b] for a, b in product("ab", repeat=2))


def compute_visits(lengths, width, simulations, exploration, worth):
    """Return visits and totals of an independent UCT: nodes are texts, statistics lie in two maps."""
    visits, totals = {"": 0}, {"": 0.0}
    open_, grown = {""}, set()
    for _ in range(simulations):
        if "" not in open_:
            break
        at = ""
        while at in grown:
            best = -math.inf
            for letter in "abc"[:width]:
                child = at + letter
                if child not in open_:
                    continue
                bound = totals[child] / visits[child] + exploration * math.sqrt(math.log(visits[at]) / visits[child])
                if bound > best:
                    best, chosen = bound, child
            at = chosen
        grown.add(at)
        for letter in "abc"[:width]:
            child = at + letter
            visits[child], totals[child] = 0, 0.0
            if len(child) < lengths:
                open_.add(child)
            for end in range(len(child) + 1):
                visits[child[:end]] += 1
                totals[child[:end]] += worth(child)
        for end in range(len(at), -1, -1):
            if not any(at[:end] + letter in open_ for letter in "abc"[:width]):
                open_.discard(at[:end])
            else:
                break
    return visits, totals


class Table:
    """Words of `length` letters with random rewards per letter."""

    def __init__(self, *, length: int, seed: int) -> None:
        self.length, rng = length, np.random.default_rng(seed)
        words = ["".join(word) for size in range(1, length + 1) for word in product("abc", repeat=size)]
        self.reward = {word: float(rng.random()) for word in words}

    def begin(self, row: Row, seed: int) -> "Word":
        """Return an empty word."""
        return Word(self)


class Word:
    """A word so far."""

    def __init__(self, table: Table) -> None:
        self.table, self.word = table, ""

    def step(self, action: str) -> Outcome:
        """Add a letter."""
        self.word += action
        return Outcome("", done=len(self.word) == self.table.length, reward=self.table.reward[self.word])

    def save(self) -> Row:
        """Return the word."""
        return {"word": self.word}

    def restore(self, saved: Row) -> None:
        """Go back."""
        self.word = saved["word"]


@pytest.mark.parametrize(
    ("simulations", "exploration", "seed"), [(1, 1.0, 0), (7, 1.4, 1), (20, 0.3, 2), (200, 1.0, 3)]
)
def test_visits_and_totals_are_those_of_an_independent_computation(simulations, exploration, seed):
    env = {"use": f"{__name__}:Table", "length": 4, "seed": seed, "max_turns": 9}
    states, _ = make("abc", env=env)
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=simulations, exploration=exploration, playout_turns=0)
    reward = Table(length=4, seed=seed).reward
    visits, totals = compute_visits(
        4, 3, simulations, exploration, lambda word: sum(reward[word[: end + 1]] for end in range(len(word)))
    )
    found = {"".join(reversed([node.action for node in leaf.list_past()])): leaf for leaf in root.list_all()}
    assert {word: node.visits for word, node in found.items()} == visits
    assert {word: node.total for word, node in found.items()} == pytest.approx(totals)
    assert root.closed == (simulations == 200)  # 1 + 3 + 9 + 27 states that are not ends


def test_a_cumulative_guide_adds_the_scores_of_all_turns_and_leaves_out_what_cannot_be_scored():
    asked = []

    def judge(rows, texts):
        asked.extend((row["id"], text) for row, text in zip(rows, texts, strict=True))
        return [{"a": -0.1, "b": -2.0, "c": None}[text] for text in texts]

    def best(**how):
        env = {"use": f"{__name__}:Table", "length": 4, "seed": 0, "max_turns": 9}
        states, _ = make("abc", env=env)
        states.environment.reward = dict.fromkeys(states.environment.reward, 0.0)
        root = states.plant(PROBLEM)
        search_best_first([root], states, Guide(judge, 1.0, **how), expansions=4)
        return {
            "".join(reversed([n.action for n in node.list_past()])) for node in root.list_all() if node.children
        }, root

    grown, root = best(cumulative=True)
    # -0.1 three times over stays above one -2; without adding up, every `a` looks the same as the first.
    assert grown == {"", "a", "aa", "aaa"}
    judged = {node.row["id"]: node.judged for node in root.list_all() if node.depth == 2}
    assert judged == pytest.approx({"p/0/0": -0.2, "p/0/1": -2.1, "p/0/2": -math.inf})
    assert asked[:3] == [("p", "a"), ("p", "b"), ("p", "c")]
    last_only, root = best()
    assert {node.judged for node in root.list_all()} == {0.0}
    assert last_only == {"", "c", "cc", "ccc"}  # what cannot be scored counts as 0 there


def test_problems_are_searched_side_by_side_as_they_are_alone():
    problems = [PROBLEM | {"id": name} for name in "xyz"]
    states, asked = make()
    roots = [states.plant(row) for row in problems]
    search_mcts(roots, states, Guide(), simulations=2, **HOW)
    alone, _ = make()
    one = alone.plant(problems[1])
    search_mcts([one], alone, Guide(), simulations=2, **HOW)
    assert [(n.row, n.visits, n.total) for n in roots[1].list_all()] == [
        (n.row, n.visits, n.total) for n in one.list_all()
    ]
    assert asked == [["x", "y", "z"], ["x/0", "y/0", "z/0"]]


def test_the_model_sees_the_turns_so_far_and_no_turn_is_played_twice():
    states, _ = make("abb")
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=3, **HOW)
    (b,) = [node for node in root.children if node.action == "b"]
    assert (b.times, b.row["id"]) == (2, "p/1")
    assert [message["content"] for message in b.row["prompt"]] == ["go", "b", "after b"]
    assert [message["content"] for message in b.children[1].row["prompt"]] == ["go", "b", "after b", "b"]
    assert states.environment.begun == 1 + 2 * 3  # the start, and each turn that was tried


def test_playouts_add_what_follows_and_ask_in_no_state_twice():
    states, asked = make("ba")
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=3, exploration=1.0, playout_turns=5)
    b, a = root.children
    # First proposals are b: after b a playout reaches bb, after a it reaches ab; then both are expanded.
    assert (b.visits, b.total) == (3, pytest.approx(1.0 + 1.0 + 0.0))
    assert (a.visits, a.total) == (3, pytest.approx(0.3 + 0.3 + 0.4))
    assert sorted(name for names in asked for name in names) == ["p", "p/0", "p/1"]
    states, _ = make("ba")
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=1, exploration=1.0, playout_turns=5)
    assert plan(root) == ["b", "b"]  # found by a playout, outside of the tree
    assert len(list(root.list_all())) == 3


def test_later_rewards_are_discounted():
    states, _ = make(gamma=0.5)
    root = states.plant(PROBLEM)
    search_beam([root], states, Guide(), width=2)
    assert {node.row["id"]: node.earned for node in root.list_all()} == pytest.approx(
        {"p": 0, "p/0": 0.3, "p/1": 0, "p/0/0": 0.35, "p/0/1": 0.3, "p/1/0": 0, "p/1/1": 0.5}
    )
    assert rate_below(root)[root] == pytest.approx(0.5)
    assert [rate_below(root)[node] for node in root.children] == pytest.approx([0.35, 0.5])


def test_a_judge_guides_by_its_weight():
    def judge(rows, texts):
        assert [row["id"] for row in rows[:2]] == ["p", "p"] or len(rows[0]["prompt"]) > 1
        return [0.5 if text == "b" else None for text in texts]

    for weight, expected in ((0.5, ["a", "a"]), (0.7, ["b", "b"])):  # 0.3 against weight · 0.5
        states, _ = make()
        root = states.plant(PROBLEM)
        search_beam([root], states, Guide(judge, weight), width=1)
        assert plan(root) == expected


def test_new_states_come_before_those_that_were_reached_earlier():
    """`x` is proposed twice and refused, which leads back to the start; `b` earns nothing either, but is new."""
    states, asked = make("xxb", env={"penalty": 0.0})
    root = states.plant(PROBLEM)
    search_best_first([root], states, Guide(), expansions=3)
    assert asked == [["p"], ["p/1"], ["p/0"]]
    states, asked = make("xxb", env={"penalty": 0.0})
    search_beam([states.plant(PROBLEM)], states, Guide(), width=1)
    assert asked == [["p"], ["p/1"], ["p/1/0"], ["p/1/0/0"]]  # `bb` has ended, `x` leads back to `b`


def test_among_equal_promises_the_turn_proposed_most_often_is_gone_on_from():
    """The judge makes up for what `b` earns less than `a`."""
    guide = Guide(lambda rows, texts: [0.3 * (text == "b") for text in texts], 1.0)
    for texts, expected in (("abb", "p/1"), ("aab", "p/0"), ("ab", "p/0")):
        for search in (
            lambda roots, states: search_beam(roots, states, guide, width=1),
            lambda roots, states: search_best_first(roots, states, guide, expansions=2),
        ):
            states, asked = make(texts)
            search([states.plant(PROBLEM)], states)
            assert asked == [["p"], [expected]]


@pytest.mark.parametrize(
    "search",
    [
        lambda roots, states: search_beam(roots, states, Guide(), width=2),
        lambda roots, states: search_best_first(roots, states, Guide(), expansions=3),
        lambda roots, states: search_mcts(roots, states, Guide(), simulations=6, exploration=1.0, playout_turns=1),
    ],
)
def test_a_search_in_an_environment_without_saved_states_grows_the_same_tree(search):
    trees = []
    for use in ("Environment", "Unsaved"):
        states, _ = make(env={"use": f"{__name__}:{use}"})
        root = states.plant(PROBLEM)
        search([root], states)
        trees.append([(n.action, n.earned, n.visits, n.row["prompt"], n.closed) for n in root.list_all()])
    assert trees[0] == trees[1]
    assert len(trees[0]) > 4


def test_a_beam_of_one_is_an_episode():
    """A refused turn does not end it: it is asked again, up to `max_turns`."""
    says = iter(["x", "a", "x", "b", "a"])
    states, _ = make(env={"max_turns": 9})
    states.propose = lambda rows: [[Candidate(next(says))] for _ in rows]
    root = states.plant(PROBLEM)
    search_beam([root], states, Guide(), width=1)
    (*_, last) = root.list_all()
    assert [node.action for node in reversed(list(last.list_past()))][1:] == ["x", "a", "x", "b"]
    assert (last.saved, last.earned) == (None, pytest.approx(-0.5 + 0.3 - 0.5))


def test_what_the_length_limit_cut_is_not_carried_out_and_long_conversations_end():
    states, _ = make()
    states.propose = lambda rows: [[Candidate("a", finished=False), Candidate("b")] for _ in rows]
    root = states.plant(PROBLEM)
    states.grow([root])
    assert [child.action for child in root.children] == ["b"]
    states, _ = make(max_characters=len("go" + "a" + "after a") - 1)
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=9, **HOW)
    assert (len(root.children), root.closed, root.visits) == (2, True, 2)
    states, _ = make(env={"max_turns": 1})
    root = states.plant(PROBLEM)
    search_beam([root], states, Guide(), width=2)
    assert {node.depth for node in root.list_all()} == {0, 1}


def test_a_model_without_a_turn_ends_the_search():
    states, _ = make([])
    root = states.plant(PROBLEM)
    for search in (
        lambda: search_mcts([root], states, Guide(), simulations=5, exploration=1.0, playout_turns=2),
        lambda: search_beam([root], states, Guide(), width=2),
        lambda: search_best_first([root], states, Guide(), expansions=2),
    ):
        search()
        assert (find_best(root), root.children) == ([], [])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"use": f"{__name__}:Unsaved", "broken": "varies"}, "turn 1 of an episode had another outcome when it was"),
        ({"broken": "set"}, "the saved state of p is no JSON"),
        ({"broken": "nan"}, "the reward of a turn of p is nan"),
        ({"broken": "raises"}, "a step in the tree of p failed: ValueError: out of order"),
        ({"context": {"use": "window", "keep": 1}}, "`env.context` has no effect"),
    ],
)
def test_environments_that_cannot_be_searched_are_refused(env, message):
    def search():
        states, _ = make(env=env)
        search_mcts([states.plant(PROBLEM)], states, Guide(), simulations=2, **HOW)

    with pytest.raises(StepError, match=message):
        search()


def test_hostile_turns_are_texts_like_others():
    turns = ["<|im_end|>", "\x00", "a" * 100_000, "]}", '{"past": "bb"}', ""]
    states, _ = make(turns)
    root = states.plant(PROBLEM)
    search_mcts([root], states, Guide(), simulations=2, **HOW)
    assert [node.action for node in root.children] == turns
    assert all(json.loads(node.saved) == {"past": ""} for node in root.list_all())
    assert root.children[2].closed  # longer than max_characters
