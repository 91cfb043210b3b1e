"""Subgoals of a planner, proved by several provers that share a cache."""

import json

import pytest

from learning.lookup import bind
from learning.problems.rewriting_goals import RULES
from learning.solvers.planned_search import planned_search
from learning.tree_search.shared_proofs import Team, make_key, search_together
from learning.tree_search.states import Candidate, States
from schemas.errors import StepError
from schemas.evaluation_slots import SolverUse
from schemas.use import EnvUse

ENV = {"use": "prover", "mistakes": "end", "max_turns": 4}


def make_row(goal, name="r"):
    return {
        "id": name,
        "prompt": [{"role": "user", "content": goal}],
        "answer": None,
        "family": "f",
        "metadata": json.dumps({"goal": goal, "rules": RULES}),
    }


def halfway(row, rng):
    """Plan the term in the middle; the second half is planned again, wrongly."""
    return {"a+0+0 = a": "a+0", "a*1*b = b*a": "a*b", "a*b = b*a": "nothing"}.get(row["prompt"][0]["content"], "")


def stubborn(row, rng):
    """Plan what cannot be proved."""
    return "b"


def solve(rows, ask, planner="halfway", **options):
    use = {"use": "planned_search", "env": ENV, "planner": f"{__name__}:{planner}", "expansions": 2, "candidates": 1}
    return [json.loads(text) for text in bind(SolverUse.model_validate(use | options))(rows, ask)]


class Model:
    """Answers the goal that it is shown last; notes what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def __call__(self, rows):
        self.asked += [(row["id"], row["prompt"][-1]["content"]) for row in rows]
        return [self.answers.get(row["prompt"][-1]["content"], "none") for row in rows]


ANSWERS = {"a+0+0 = a+0": "zero", "a+0 = a": "zero", "a*1*b = a*b": "one", "a*b = b*a": "turn"}


def test_the_answer_is_the_proofs_of_all_parts():
    model = Model(ANSWERS)
    assert solve([make_row("a+0+0 = a", "p"), make_row("a*1*b = b*a", "q")], model) == [
        ["zero", "zero"],
        ["one", "turn"],
    ]
    # One prover found each part at once, so that the other was never asked.
    assert [name for name, _ in model.asked] == ["p/0~0~0", "q/0~0~0", "p/1~0~0", "q/1~0~0"]


def test_a_part_of_another_problem_is_read_from_the_cache():
    model = Model(ANSWERS)
    rows = [make_row("a+0+0 = a", "p"), make_row("a+0 = a", "q")]
    assert solve(rows, model) == [["zero", "zero"], ["zero"]]
    assert [shown for _, shown in model.asked] == ["a+0+0 = a+0", "a+0 = a"]


def test_a_part_that_fails_is_planned_and_planning_ends():
    model = Model(ANSWERS)
    (turns,) = solve([make_row("a = a*1")], model, planner="stubborn", plans=3, provers=1)
    assert turns == []
    # `a = b` is planned again as `a = b`, which is the same problem: nobody proves it.
    assert {shown for _, shown in model.asked} == {"a = b"}
    assert len(model.asked) == 3


def test_a_problem_without_a_plan_is_searched_as_a_whole():
    model = Model({"b+0 = b": "zero"})
    assert solve([make_row("b+0 = b")], model) == [["zero"]]
    assert solve([make_row("b+0 = b*1")], model, expansions=1) == [[]]


def test_an_environment_that_divides_nothing_is_refused():
    with pytest.raises(StepError, match="env guess has no `divide`"):
        solve([], Model({}), env={"use": "guess"})


def test_provers_stop_when_one_has_a_proof_and_the_next_reads_it():
    asked = []

    def propose(rows):
        asked.extend(row["id"] for row in rows)
        return [[Candidate("swap"), Candidate("zero" if "~1" in row["id"] else "turn")] for row in rows]

    states, cache = States(EnvUse.model_validate(ENV), propose), {}
    row = make_row("a*(b+0) = a*b")
    search_together([Team(row, states, 3)], states, cache, expansions=4, solved=1.0)
    assert cache == {make_key(row): ["zero"]}
    assert asked == ["r~0", "r~1"]
    again = Team(row | {"id": "other"}, states, 2)
    search_together([again], states, cache, expansions=4, solved=1.0)
    assert asked == ["r~0", "r~1"]
    assert not any(root.children for root in again.roots)
    search_together([], states, cache, expansions=1, solved=1.0)


def test_the_function_has_the_name_of_the_solver():
    assert planned_search.__name__ in SolverUse.model_validate("planned_search").use
