"""The Y-Combinator for LLMs: the plan has 16 bounded calls and gives the right count where a single call gives a wrong
one.

Not shown: frontier models' accuracy and latency against generated control code.
"""

import inspect
import random
from pathlib import Path

import pytest

from learning.lookup import bind
from learning.rewards.answers import exact
from learning.solvers import combinators, recursion
from learning.solvers.recursion import Plan, iterate_leaves, plan_split, take_apart
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "lambda-rlm.yaml"
WINDOW = 200


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


class Leaf:
    """A model that counts rightly in what it can see, and sees so many characters."""

    def __init__(self):
        self.bodies, self.ids = [], []

    def __call__(self, rows):
        self.ids += [row["id"] for row in rows]
        prompts = [row["prompt"][-1]["content"].partition("|") for row in rows]
        self.bodies += [body for _, _, body in prompts]
        return [str(body[:WINDOW].split(",").count(question)) for question, _, body in prompts]


def test_the_plan_is_the_closed_form(stages):
    options = stages["recursive"].solver.options
    assert (options["window"], options["cost_input"], options["cost_compose"]) == (WINDOW, 1, 100)
    # k* = ⌈√(1600·1/100)⌉ = 4 and d = ⌈log₄(1600/200)⌉ = ⌈1.5⌉ = 2
    assert plan_split(1600, WINDOW, 1, 100) == Plan(pieces=4, depth=2, window=WINDOW)
    assert plan_split(1600, WINDOW, 1, 100).calls == 16


def test_sixteen_bounded_calls_give_the_true_count_and_one_call_does_not(stages):
    problems = bind(stages["recursive"].tasks[0])()
    program, leaf = bind(stages["recursive"].solver), Leaf()
    assert {len(row["prompt"][0]["content"].partition("|")[2]) for row in problems} == {1600}
    assert exact(problems, program(problems, leaf)) == [1.0] * len(problems)
    assert len(leaf.bodies) == 16 * len(problems)
    assert max(map(len, leaf.bodies)) <= WINDOW
    # An answer's random stream hangs on its row's id.
    assert len(set(leaf.ids)) == len(leaf.ids)
    # The direct call of the recipe's other stage: the same problems, the same model.
    assert stages["direct"].solver is None
    assert stages["direct"].tasks == stages["recursive"].tasks
    counted = [row for row in problems if row["prompt"][0]["content"].partition("|")[2][WINDOW:].count("key,")]
    assert len(counted) > 20
    assert exact(counted, Leaf()(counted)) == [0.0] * len(counted)


def test_it_ends_whatever_the_text_and_whatever_the_model_says(stages):
    rng = random.Random(4)
    program = bind(stages["recursive"].solver)
    for _ in range(200):
        text = "".join(rng.choice("key,") for _ in range(rng.randint(0, 5000)))
        how = plan_split(len(text), WINDOW, 1, 100)
        pieces = list(iterate_leaves(take_apart(text, how, ",")))
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= WINDOW
        row = {"id": "x", "prompt": [{"role": "user", "content": f"key|{text}"}]}
        assert program([row], lambda rows: ["again"] * len(rows)) == [""]


def test_between_the_calls_no_code_is_generated():
    source = inspect.getsource(combinators) + inspect.getsource(recursion)
    assert not {"eval", "exec", "compile", "__import__"} & set(source.replace("(", " ").split())
