"""SPRING: a graph of questions is answered in order before every action, and graph and document are both needed.

Answers are those of rules that read nothing but the prompt; questions, document and worlds are those of the recipe. Not
shown: GPT-4 in Crafter.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.toy_tasks.crafting import ACTIONS
from learning.toy_tasks.meadows import RuleAnswerer
from schemas.errors import RecipeError
from schemas.question_graph import Question, order_questions
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "spring.yaml"
STAGES = load_recipe(RECIPE).stages
REPORT, UNKNOWN = STAGES["report"], STAGES["unknown"]
OPTIONS = REPORT.solvers["spring"].options
QUESTIONS = {name: Question.model_validate(one) for name, one in OPTIONS["questions"].items()}
ROWS = bind(REPORT.tasks[0].model_copy(update={"size": 6}))()
SCORE, COUNT = bind(REPORT.rewards[0]), bind(UNKNOWN.rewards[0])


def play(name="spring", answerer=None, rows=ROWS, **changed):
    """What the solver of a model returns, and every prompt with its answer."""
    use = REPORT.solvers[name]
    use = use.model_copy(update=changed)
    ask = answerer or RuleAnswerer(QUESTIONS)
    return bind(use)(rows, ask), ask.asked


def scores(plans, rows=ROWS, reward=SCORE):
    return reward.ask(0, {"rows": rows, "completions": plans, "step": 0})


class Saying(RuleAnswerer):
    """Says one thing to the last question, and the rules' answers to all others."""

    def __init__(self, text):
        super().__init__(QUESTIONS)
        self.text = text

    def answer(self, prompt):
        return self.text if prompt.endswith(QUESTIONS["act"].ask) else super().answer(prompt)


def test_every_step_asks_each_question_once_in_topological_order():
    (plan,), asked = play(rows=ROWS[:1])
    turns = json.loads(plan)
    names = [row["id"].split(".")[1:] for row, _ in asked]
    assert order_questions(QUESTIONS) == ["needs", "have", "next", "where", "act"]
    expected = [[str(turn), name] for turn in range(len(turns)) for name in order_questions(QUESTIONS)]
    assert names == expected, "five calls for every step of the environment"
    for name, question in QUESTIONS.items():
        assert all(
            order_questions(QUESTIONS).index(one) < order_questions(QUESTIONS).index(name) for one in question.after
        )
    # Written in another order it is asked in an order that the edges allow.
    turned = dict(reversed(QUESTIONS.items()))
    order = order_questions(turned)
    assert order[-1] == "act"
    assert all(order.index(one) < order.index(name) for name, question in turned.items() for one in question.after)


def test_a_prompt_has_the_document_what_is_seen_and_its_parents_answers_and_nothing_else():
    _, asked = play(rows=ROWS[:1])
    for start in range(0, len(asked), 5):
        rows = dict(zip(QUESTIONS, asked[start : start + 5], strict=True))
        for name, (row, _) in rows.items():
            document, seen, *earlier, last = row["prompt"][-1]["content"].split("\n\n")
            assert document == OPTIONS["document"].strip()
            assert seen.splitlines()[-1].startswith("have: ")
            assert last == QUESTIONS[name].ask
            assert earlier == [f"{QUESTIONS[one].ask}\n{rows[one][1]}" for one in QUESTIONS[name].after]
    assert len(OPTIONS["document"].strip().splitlines()) == 5
    _, bare = play("no_document", rows=ROWS[:1])
    assert not any(OPTIONS["document"][:20] in row["prompt"][-1]["content"] for row, _ in bare)


def test_without_an_edge_the_answer_is_not_shown():
    questions = {name: one.model_dump() for name, one in QUESTIONS.items()}
    questions["act"]["after"] = ["next"]
    questions["next"]["after"] = ["needs", "have", "where"]
    questions["where"]["after"] = []
    _, asked = play(rows=ROWS[:1], questions=questions)
    last = [row["prompt"][-1]["content"] for row, _ in asked if row["id"].endswith(".act")]
    assert last
    assert not any(QUESTIONS["where"].ask in text for text in last)
    assert all(QUESTIONS["next"].ask in text for text in last)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("vars.questions.needs.after=[act]", "wait for each other: remove an edge of the cycle"),
        ("vars.questions.next.after=[needs, want]", "comes after `want`, which is no question"),
        ("vars.questions.next.after=[needs, needs]", "comes after a question twice"),
        ("vars.questions.where.after=[act]", "wait for each other"),
        ("vars.questions.act.after=[next]", "end the graph; the answer to exactly one"),
        ("vars.questions.next.before=[needs]", "before"),
    ],
)
def test_a_graph_that_cannot_be_asked_is_refused_when_the_recipe_is_read(change, says):
    with pytest.raises(RecipeError) as caught:
        load_recipe(RECIPE, overrides=[change])
    assert any(says in problem.message + problem.advice for problem in caught.value.problems)


def test_graph_and_document_reach_a_stone_and_neither_does_alone():
    plans, _ = play()
    assert scores(plans) == [1.0] * len(ROWS)
    for plan in map(json.loads, plans):
        order = [action for action in plan if not action.startswith("move_")]
        assert order == ["do", "place_table", "do", "make_pickaxe", "do"]
    for name in ("no_document", "no_graph"):
        plans, asked = play(name)
        assert scores(plans) == [0.0] * len(ROWS)
        turns = REPORT.solvers[name].options["env"]["max_turns"]
        assert [len(json.loads(plan)) for plan in plans] == [turns] * len(ROWS)
        per_step = {"no_document": 5, "no_graph": 1}[name]
        assert len(asked) == per_step * turns * len(ROWS)


@pytest.mark.parametrize("said", ["climb the tree", "do it", "", "noop # do", '["do"]', "x" * 5_000])
def test_an_unknown_answer_does_nothing_and_is_counted(said):
    plans, _ = play(answerer=Saying(said), rows=ROWS[:1])
    (plan,) = map(json.loads, plans)
    turns = OPTIONS["env"]["max_turns"]
    assert plan == [f"noop # {' '.join(said.split())[:40]}".rstrip()] * turns
    assert scores(plans, ROWS[:1]) == [0.0]
    assert scores(plans, ROWS[:1], COUNT) == [float(turns)]


def test_the_world_gets_noop_in_place_of_an_action_that_is_not_offered():
    actions = [action for action in ACTIONS if action != "move_right"]
    plans, asked = play(answerer=Saying("move_right"), rows=ROWS[:1], actions=actions)
    assert set(json.loads(plans[0])) == {"noop # move_right"}
    assert len({row["prompt"][-1]["content"] for row, _ in asked if row["id"].endswith(".have")}) == 1, "nothing moves"
    _, moved = play(answerer=Saying(" Move_Right.\n"), rows=ROWS[:1])
    assert len({row["prompt"][-1]["content"] for row, _ in moved if row["id"].endswith(".have")}) > 1


def test_a_known_answer_is_the_action_whatever_its_case():
    plans, _ = play(answerer=Saying(" Move_Left.\n"), rows=ROWS[:1])
    assert set(json.loads(plans[0])) == {"move_left"}
    assert scores(plans, ROWS[:1], COUNT) == [0.0]
    assert tuple(OPTIONS["actions"]) == ACTIONS
    assert OPTIONS["noop"] == "noop"


def test_the_models_are_one_model_with_three_solvers():
    assert set(REPORT.models.values()) == set(UNKNOWN.models.values()) == {"answerer"}
    spring, graphless, blind = (REPORT.solvers[name].options for name in ("spring", "no_graph", "no_document"))
    assert {key for key in spring if spring[key] != graphless[key]} == {"questions"}
    assert {key for key in spring if spring[key] != blind[key]} == {"document"}
    assert blind["document"] == ""
    assert list(graphless["questions"]) == ["act"]
    assert REPORT.solvers == UNKNOWN.solvers
    assert SCORE.name == "plans.replayed"
    lessons = STAGES["lessons"].function.options
    assert (lessons["document"], lessons["questions"]) == (spring["document"], spring["questions"])
    text = RECIPE.read_text()
    assert not re.search(r"kind: (rl|preference)", text), "nothing is reinforced"


def test_direct_lessons_ask_for_the_same_action_without_the_graph(tmp_path):
    lessons = {}
    for direct in (False, True):
        folder = tmp_path / str(direct)
        for name in ("prompts", "lessons"):
            (folder / name).mkdir(parents=True)
        write_rows(folder / "prompts", "prompts", ROWS[:2])
        context = SimpleNamespace(seed=0, input=folder.joinpath, output=folder.joinpath)
        bind(STAGES["lessons"].function.model_copy(update={"direct": direct}))(context)
        lessons[direct] = read_rows(folder / "lessons", "chat")
    added = lessons[True][len(lessons[False]) :]
    assert lessons[True][: len(lessons[False])] == lessons[False]
    _, asked = play("no_graph", rows=ROWS[:2])
    assert added[0]["prompt"] == asked[0][0]["prompt"], "what the solver without a graph asks"
    _, steps = play(rows=ROWS[:2])
    actions = [text for row, text in steps if row["id"].endswith(".act")]
    shown = [row["prompt"][-1]["content"].split("\n\n")[1] for row, _ in steps if row["id"].endswith(".act")]
    known = dict(zip(shown, actions, strict=True))
    assert {row["prompt"][-1]["content"].split("\n\n")[1]: row["completion"][0]["content"] for row in added} == known
