"""BFS-Prover-V2: tactics of medium perplexity are kept, a plateau restarts from the base, provers share their proofs.

The search, the filter, the restart and the team are those of the recipe; perplexities and proposals are given. Not
shown: that the prover becomes better, which is measured, and Lean.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.curation.score_limits import find_limits
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Divisible
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from learning.problems.rewriting_goals import RULES
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.python import Python
from tasks.context import Context
from tasks.python import run as run_python
from tasks.synthesize import accept_samples

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "bfs-prover-v2.yaml")
STAGES = LOADED.stages
FOUND, KEPT, START, TUNED = (STAGES[f"rounds-2-{name}"] for name in ("found", "informative", "start", "tuned"))
PLANNED = STAGES["planned"].solvers["planned"]


def read(step, port):
    """The step that a port of another one reads."""
    (found,) = [one for one in LOADED.ports(step) if one.path == port]
    return found.steps[0]


def make_row(goal, name="r"):
    return {
        "id": name,
        "prompt": [{"role": "user", "content": goal}],
        "answer": None,
        "family": "f",
        "metadata": json.dumps({"goal": goal, "rules": RULES}),
    }


def test_the_middle_of_ten_perplexities_is_kept():
    (score,) = KEPT.scores
    assert score.use == "perplexity"
    assert read("rounds-2-informative", "scores.0.model") == "rounds-1-tuned"
    values = np.array([1.1, 1.2, 1.4, 1.7, 2.1, 2.6, 3.3, 4.5, 7.0, 20.0])
    limits = find_limits(score, values)
    kept = values[(values >= limits.low) & (values <= limits.high)]
    assert kept.tolist() == values[2:8].tolist()
    assert (limits.low, limits.high) == (pytest.approx(1.2 + 0.8 * 0.2), pytest.approx(4.5 + 0.2 * 2.5))


def test_the_filter_is_of_single_tactics_and_drops_nothing_else():
    assert read("rounds-2-informative", "data") == "rounds-2-found"
    assert read("rounds-2-tuned", "data") == "rounds-2-informative"
    assert (KEPT.exact_dedup, KEPT.decontaminate, KEPT.filters, KEPT.limit) == (False, None, [], None)
    # What is filtered are turns: each with the goal that was left as its prompt.
    stage = FOUND.model_copy(update={"search": FOUND.search.model_copy(update={"expansions": 4})})
    turns = accept_samples(stage, search([make_row("a+0+0 = 0+a")])[0])
    assert [row["text"] for row in turns] == ["zero", "swap"]
    assert [row["prompt"][-1]["content"] for row in turns] == ["a+0+0 = 0+a", "a+0 = 0+a"]


def search(rows, worth=None):
    """What the search of the recipe returns, and the ids that it asked in, where turns have these log-probabilities."""
    worth = worth or {"zero": -0.5, "swap": -1.0, "one": -0.2}
    asked = []

    def ask(shown):
        asked.extend(row["id"] for row in shown)
        return [[AnswerSample(text, "stop") for text in worth] for _ in shown]

    return bind(FOUND.search)(rows, ask, lambda shown, texts: [worth[text] for text in texts]), asked


def test_the_search_goes_on_where_the_way_so_far_is_likeliest():
    assert (FOUND.search.use, FOUND.search.options["guidance"], FOUND.search.options["cumulative"]) == (
        "state_best_first",
        1.0,
        True,
    )
    (reward,) = FOUND.rewards
    assert (reward.use, reward.options["reduce"]) == ("likelihood.completion", "mean")
    assert read("rounds-2-found", "model") == read("rounds-2-found", "rewards.0.model") == "rounds-1-tuned"
    rows, asked = search([make_row("a+0+0+0+0 = b")], {"zero": -0.4, "swap": -1.0})
    # zero (-0.4), zero zero (-0.8), then swap (-1.0) before zero zero zero (-1.2).
    assert asked[:4] == ["r", "r/0", "r/0/0", "r/1"]
    assert rows == []  # what proves nothing gives no tactics
    # A tactic that is not possible ends its branch: `one` is the likeliest, and is never gone on from.
    rows, asked = search([make_row("a+0+0 = 0+a")])
    assert "r/2" not in asked
    assert {row["score"] for row in rows} == {1.0}


@pytest.fixture
def restart(tmp_path):
    """The step of the recipe that chooses what a round begins from, after an exam with these results."""

    def make(before, after):
        inputs = {}
        for name in ("base", "previous", "exam"):
            inputs[f"inputs.{name}"] = tmp_path / name
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps({"of": name}))
        values = {"before": before, "after": after}
        table = [{"model": n, "family": "all", "metric": "accuracy", "value": v} for n, v in values.items()]
        (tmp_path / "exam" / "results.json").write_text(json.dumps({"table": table}))
        context = Context(inputs, tmp_path / f"out{before}{after}", tmp_path / "checkpoints", seed=0)
        metrics = run_python(Python.model_validate(START.model_dump()), context).metrics
        return metrics, json.loads((context.output("model") / "config.json").read_text())["of"]

    return make


def test_a_plateau_restarts_from_the_base_and_anything_else_goes_on(restart):
    limit = START.function.options["min_gain"]
    assert limit == 0.02
    assert restart(0.5, 0.5) == ({"gain": 0.0, "restarts": True}, "base")
    assert restart(0.5, 0.5 + limit / 2)[1] == "base"
    assert restart(0.5, 0.4)[1] == "base"
    assert restart(0.5, 0.6) == ({"gain": pytest.approx(0.1), "restarts": False}, "previous")


def test_a_round_begins_from_what_was_chosen_and_searches_with_the_last_model():
    inputs = {name: read("rounds-2-start", f"inputs.{name}") for name in ("base", "previous", "exam")}
    assert inputs == {"base": "cold_start", "previous": "rounds-1-tuned", "exam": "rounds-2-exam"}
    exam = [read("rounds-2-exam", f"models.{name}") for name in ("before", "after")]
    assert exam == ["rounds-1-start", "rounds-1-tuned"]
    assert [read(f"rounds-{i}-tuned", "model") for i in (1, 2, 3)] == [f"rounds-{i}-start" for i in (1, 2, 3)]
    assert [read(f"rounds-{i}-found", "model") for i in (1, 3)] == ["cold_start", "rounds-2-tuned"]
    exam, report = (STAGES[name].tasks[0].options for name in ("rounds-2-exam", "report"))
    assert (exam["split"], report["split"]) == ("train", "test")


def prove(goals, answers, *, plan="a+0"):
    """What the solver of the recipe answers, and what its provers were asked: the goal, and which prover it was."""
    asked = []

    def ask(rows):
        asked.extend((row["prompt"][-1]["content"], row["id"].split("~")[1][0]) for row in rows)
        return [answers.get((row["prompt"][-1]["content"], row["id"].split("~")[1][0]), "none") for row in rows]

    use = PLANNED.model_copy(update={"planner": f"{__name__}:{plan_of.__name__}"})
    plan_of.text = plan
    rows = [make_row(goal, f"r{i}") for i, goal in enumerate(goals)]
    return [json.loads(text) for text in bind(use)(rows, ask)], asked


def plan_of(row, rng):
    """Write the plan of the test."""
    return plan_of.text


def test_a_part_that_one_prover_has_proved_is_read_by_the_other():
    assert (PLANNED.use, PLANNED.options["provers"], PLANNED.options["plans"]) == ("planned_search", 2, 2)
    first, second = "a+0+0 = a+0", "a+0 = 0+a"
    turns, asked = prove(["a+0+0 = 0+a"], {(first, "0"): "zero", (second, "1"): "swap"})
    assert turns == [["zero", "swap"]]
    by_prover = {number: [goal for goal, who in asked if who == number] for number in "01"}
    # Prover 0 has proved the first part, so that prover 1 expands none of its states; the second is proved by prover 1.
    assert first in by_prover["0"]
    assert first not in by_prover["1"]
    assert set(by_prover["1"]) == {second}
    assert len(by_prover["0"]) == 2 * PLANNED.options["candidates"]


def test_provers_of_another_problem_read_the_same_proof():
    turns, asked = prove(["a+0+0 = 0+a", "a+0+0 = a"], {("a+0+0 = a+0", "0"): "zero"})
    assert turns == [["zero"], ["zero"]]
    assert sum(goal == "a+0+0 = a+0" for goal, _ in asked) == PLANNED.options["candidates"]


def test_the_reward_checks_the_whole_proof():
    (reward,) = STAGES["planned"].rewards
    row = make_row("a+0+0 = 0+a")
    proofs = [["zero", "swap"], ["zero"], ["one", "zero", "swap"], ["swap", "one"]]
    scores = bind(reward).ask(0, {"rows": [row] * 4, "completions": [json.dumps(proof) for proof in proofs]})
    assert scores == [1.0, 0.0, 0.0, 0.0]


def test_the_three_ways_use_one_model_and_the_plan_has_no_more_proposals():
    stage = STAGES["planned"]
    assert {read("planned", f"models.{name}") for name in ("single", "search", "planned")} == {"rounds-3-tuned"}
    single, best, planned = (stage.solvers[name].options for name in ("single", "search", "planned"))
    assert (single["width"], single["candidates"]) == (1, 1)
    parts = STAGES["planned"].solvers["planned"].options["planner"]["parts"] + 1  # a part is planned once more
    most = planned["provers"] * planned["expansions"] * planned["candidates"] * parts
    assert most <= best["expansions"] * best["candidates"]
    assert PLANNED.options["env"] == FOUND.search.options["env"]
    assert isinstance(build_environment(STAGES["report"].env, {}), Divisible)


def test_the_comparator_differs_in_the_filter_and_the_restarts_alone():
    names = {name for name in STAGES if name.startswith("plain-2")}
    assert names == {"plain-2-found", "plain-2-tuned"}
    plain_found, plain_tuned = STAGES["plain-2-found"], STAGES["plain-2-tuned"]
    assert (read("plain-2-tuned", "model"), read("plain-2-tuned", "data")) == ("plain-1-tuned", "plain-2-found")
    same = {"model", "data"}
    assert plain_tuned.model_dump(exclude=same) == TUNED.model_dump(exclude=same)
    assert plain_found.model_dump() == FOUND.model_dump()
    assert read("plain-2-found", "rewards.0.model") == read("plain-2-found", "model") == "plain-1-tuned"
    assert read("plain-1-tuned", "model") == read("plain-1-found", "model") == "cold_start"
    assert sum(name.endswith("-tuned") for name in STAGES) == 6
    models = {name: read("report", f"models.{name}") for name in STAGES["report"].models}
    assert models == {"start": "cold_start", "plain": "plain-3-tuned", "trained": "rounds-3-tuned"}
    report = STAGES["report"]
    uses = [use.model_copy(update={"size": 30}) for use in (STAGES["goals"].problems[0], report.tasks[0])]
    train, held_out = (bind(use)() for use in uses)
    assert not {row["id"] for row in train} & {row["id"] for row in held_out}


def test_a_broken_report_stops_the_round(tmp_path, restart):
    restart(0.5, 0.6)
    (tmp_path / "exam" / "results.json").write_text(json.dumps({"table": []}))
    context = Context({f"inputs.{n}": tmp_path / n for n in ("base", "previous", "exam")}, tmp_path / "o", tmp_path, 0)
    with pytest.raises(StepError, match="has no accuracy"):
        run_python(Python.model_validate(START.model_dump()), context)
