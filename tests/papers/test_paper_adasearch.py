"""AdaSearch: problems are solved in two ways by outcome alone; then the model learns to say which one it needs.

Answers are dictated; tools, labels, rewards, metric and the order of decisions are those of the recipe. Not shown:
transparency in medicine and finance.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.data.rows import write_rows
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.conversation import NextTurn, RoleTurn
from learning.sampling.scoring import scores_of
from learning.toy_tasks.atlas import atlas_facts
from schemas.recipe.load import load_recipe
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "adasearch.yaml")
STAGES = LOADED.stages
SOLVED, TRAINED, PENALISED = (STAGES[name] for name in ("solved", "trained", "penalised"))


@pytest.fixture
def facts(tmp_path):
    """The rows of a stage that takes problems from other stages, which are made first."""

    def make(name):
        inputs = {}
        for port in LOADED.ports(name):
            if port.steps and port.steps[0] != "solved":
                inputs[port.path] = tmp_path / port.steps[0]
                if not inputs[port.path].exists():
                    rows = make(port.steps[0])
                    inputs[port.path].mkdir()
                    write_rows(inputs[port.path], "prompts", rows)
            else:
                inputs[port.path] = tmp_path
        uses = STAGES[name].problems
        return [row for i, use in enumerate(uses) for row in bind(use, f"problems.{i}", inputs)()]

    return make


def columns(decisions, wanted, samples=1):
    """What the metric reads of decisions, 1 for yes, on problems where yes is right or not."""
    text_PN = np.array([["yes" if one else "no"] * samples for one in decisions], dtype=object)
    correct_PN = np.array([[float(one == want)] * samples for one, want in zip(decisions, wanted, strict=True)])
    return {"text_PN": text_PN, "correct_PN": correct_PN}


def measure(**supplies):
    return bind(STAGES["decisions"].metrics[1], "metrics.1").ask(0, supplies)


def test_awareness_is_the_f1_of_deciding_against_a_search():
    assert measure(**columns([1, 0, 0, 1], [1, 1, 0, 0])).mean() == 0.5
    assert measure(**columns([0, 0, 0, 0], [1, 1, 0, 0])).tolist() == [0.0] * 4
    assert measure(**columns([1, 1, 0, 0], [1, 1, 0, 0], samples=3)).mean() == 1.0
    # Always answering from memory is no awareness either: precision 1/4, recall 1.
    assert measure(**columns([1, 1, 1, 1], [1, 0, 0, 0])).mean() == pytest.approx(0.4)


def test_a_search_is_not_penalised_however_many_calls_it_has(tiny_policy):
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)
    row = atlas_facts(towns=15)[0]
    call = f"search: {row['prompt'][0]['content']}"
    scripts = [[call, row["answer"]], [call, call, call, row["answer"]], [row["answer"]], [call, "no"]]
    samples, _ = play(policy, SOLVED, row, scripts)
    assert [sample.reward for sample in samples] == [1.0, 1.0, 1.0, 0.0]
    # The comparator pays for each call.
    paid = [bind(use) for use in PENALISED.rewards]
    supplies = {"rows": [row] * 4, "completions": [s.text for s in samples], "samples": samples}
    totals = [
        sum(use.weight * score for use, score in zip(paid, of_one, strict=True))
        for of_one in zip(*(scores_of(use, 0, supplies, {}) for use in paid), strict=True)
    ]
    assert totals == pytest.approx([0.8, 0.6, 0.9, -0.2])


def test_each_question_is_asked_in_two_ways_one_of_which_has_nothing_to_search(facts, tiny_policy):
    rows, questions = facts("both_ways"), facts("questions")
    texts = [row["prompt"][0]["content"] for row in questions]
    assert [row["prompt"][0]["content"] for row in rows] == [
        f"{way} {text}" for way in ("recall", "find") for text in texts
    ]
    assert len({row["id"] for row in rows}) == 2 * len(questions) == 80
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)
    answers = []
    for row in (rows[0], rows[40]):
        query = " ".join(reversed(texts[0].rstrip("?").split(" of ")))
        _, contexts = play(policy, SOLVED, row, [[f"search: {query}", "x"]])
        answers.append(contexts[0][-1])
    assert answers[0].endswith("error: there are no documents to search")
    assert answers[1].endswith(f"{query} {questions[0]['answer']}")


@pytest.mark.parametrize(("right", "label"), [(0, "no"), (3, "no"), (4, "yes"), (8, "yes")])
def test_a_label_flips_when_the_solve_rate_from_memory_crosses_the_threshold(facts, monkeypatch, right, label):
    asked = []

    def replies(model, questions, *, n, sampling, seed):
        asked.extend(messages[-1]["content"] for messages in questions)
        rows = facts("questions")
        return [[row["answer"]] * right + ["wrong"] * (n - right) for row in rows]

    monkeypatch.setattr("learning.problems.solve_rates.sample_replies", replies)
    rows, questions = facts("labelled"), facts("questions")
    assert [row["answer"] for row in rows] == [label] * len(questions)
    assert [json.loads(row["metadata"])["solve_rate"] for row in rows] == [right / 8] * len(rows)
    texts = [row["prompt"][0]["content"] for row in questions]
    assert asked == [f"recall {text}" for text in texts]
    assert [row["prompt"][0]["content"] for row in rows] == [f"know {text}" for text in texts]
    (reward,) = (bind(use) for use in TRAINED.rewards)
    scores = scores_of(reward, 0, {"rows": rows[:3], "completions": ["yes", "no", "maybe"]}, {})
    assert scores == [float(label == "yes"), float(label == "no"), 0.0]


def test_a_decision_leads_to_memory_or_to_a_search():
    stage = STAGES["answers"]
    order, roles = bind(stage.turn_order, "turn_order"), list(stage.roles)
    assert roles == ["decider", "memory", "searcher"]

    def follow(*said):
        turns = [RoleTurn(role, text) for role, text in zip(("decider", "x"), said, strict=False)]
        return order.ask(0, {"roles": roles, "turns": turns})

    assert follow() == NextTurn("decider")
    assert follow(" yes") == NextTurn("memory")
    assert follow("no") == follow("yes and no") == follow("") == NextTurn("searcher")
    assert follow("yes", "zed") == NextTurn()
    assert [stage.roles[role].prompt.split()[0] for role in roles] == ["know", "recall", "find"]
    assert [stage.roles[role].env for role in roles] == [None, None, SOLVED.env]
    assert stage.rewards[0].use == "roles.outcome"


def test_the_decision_is_trained_after_solving_and_labels_are_those_of_the_solver(facts):
    assert (SOLVED.model, TRAINED.model) == ("start", "solved")
    assert (SOLVED.prompts, TRAINED.prompts) == ("both_ways", "labelled")
    assert TRAINED.env is None
    for name, data in (("labelled", "questions"), ("held_out_labels", "held_out")):
        (use,) = STAGES[name].problems
        assert {port.path: port.steps for port in LOADED.ports(name)} == {
            "problems.0.data": (data,),
            "problems.0.model": ("solved",),
        }
        assert (use.options["threshold"], use.options["n"]) == (0.5, 8)
    assert [use.use for use in SOLVED.rewards] == ["answers.exact"]


def test_half_of_the_facts_are_known_and_decisions_are_measured_on_others(facts):
    everything, known = facts("facts"), facts("memories")
    assert (len(everything), len(known)) == (60, 60)
    assert len({row["answer"] + row["prompt"][0]["content"].removeprefix("recall ") for row in known}) == 30
    questions, held_out = facts("questions"), facts("held_out")
    assert (len(questions), len(held_out)) == (40, 20)
    assert not {row["id"] for row in questions} & {row["id"] for row in held_out}
    in_weights = {row["id"].partition(":")[0] for row in known}
    assert len(in_weights & {row["id"] for row in held_out}) == 10
    assert STAGES["decisions"].prompts == "held_out_labels"


def test_the_comparator_has_as_many_iterations():
    assert PENALISED.max_steps == SOLVED.max_steps + TRAINED.max_steps
    assert PENALISED.model == SOLVED.model
    for key in ("generation_batch_size", "num_generations", "learning_rate", "algorithm", "max_completion_length"):
        assert len({getattr(stage, key) for stage in (SOLVED, TRAINED, PENALISED)}) == 1
    assert PENALISED.env == SOLVED.env
    assert dict(STAGES["decisions"].models) == {"start": "start", "solved": "solved", "trained": "trained"}
    assert dict(STAGES["answers"].models) == {"solved": "solved", "trained": "trained"}
    assert dict(STAGES["answers_free"].models) == {"start": "start", "penalised": "penalised"}
