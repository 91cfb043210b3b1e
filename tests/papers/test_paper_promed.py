"""ProMed: questions are paid the Shapley worth of the facts that they learn, more if the diagnosis is right.

Episodes are dictated; the partner, what it pays, the rewards and the advantages are those of the recipe. Not shown:
that a model diagnoses better, which is measured.
"""

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView, of_rewards
from learning.data.shapley import compute_shapley, weigh_softly
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from schemas.recipe.load import load_recipe
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "promed.yaml")
STAGES = LOADED.stages
TRAINED, OUTCOME, EXPLORED = STAGES["trained"], STAGES["outcome"], STAGES["explored"]
VALUES = [0.25, 0.25, 0.25, 1.0, 0.25, 0.25, 0.25, 1.0]
"""P(correct) by the known ones of three facts, as bits: 1 where a and b are known, else a guess among four."""
WORTH = [0.3535, 0.3535, 0.2931]
NAMES = ("fever", "cough", "rash")


@pytest.fixture(scope="module")
def row():
    """A case of which nothing is shown, with the worth of the proof's game."""
    first = bind(STAGES["cases"].problems[0])()[0]
    metadata = {
        "facts": json.loads(first["metadata"])["facts"],
        "worth": dict(zip(NAMES, weigh_softly(compute_shapley(VALUES, 3)), strict=True)),
    }
    return first | {"answer": "flu", "metadata": json.dumps(metadata)}


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def pay(batch):
    """Return what the recipe's operation gives the tokens before the baseline."""
    return bind(TRAINED.advantage[0]).ask(0, ColumnView(batch), of_rewards(batch), batch).values_X


def per_turn(values_T, batch, path):
    own_T = batch.path_T == path
    turns_T = batch.sampled("turn")[own_T]
    found = [values_T[own_T][turns_T == turn].unique() for turn in turns_T.unique()]
    assert all(len(values) == 1 for values in found)
    return [float(values[0]) for values in found]


def test_the_worth_of_facts_is_the_softmax_of_their_shapley_values():
    shapley = compute_shapley(VALUES, 3)
    assert shapley == pytest.approx([0.375, 0.375, 0])
    assert sum(shapley) == pytest.approx(0.75)
    orders = list(permutations(range(3)))
    for member in range(3):
        gains = [
            VALUES[sum(1 << m for m in order[: order.index(member) + 1])]
            - VALUES[sum(1 << m for m in order[: order.index(member)])]
            for order in orders
        ]
        assert shapley[member] == pytest.approx(sum(gains) / len(orders))
    assert weigh_softly(shapley) == pytest.approx(WORTH, abs=1e-4)


def test_the_cases_of_the_recipe_have_such_worth():
    rows = bind(STAGES["cases"].problems[0])()
    pairs = {tuple(round(value, 4) for value in sorted(json.loads(row["metadata"])["worth"].values())) for row in rows}
    # One hidden fact decides with the shown one: its chance rises from 1/2 to 1. Or both decide, and share.
    expected = weigh_softly([0.0, 0.5])
    assert pairs == {tuple(round(value, 4) for value in expected), (0.5, 0.5)}


@pytest.mark.parametrize(("answer", "asked", "concluded"), [("= flu", 1.060, 3.0), ("= gout", 0.707, 0.0)])
def test_a_question_earns_more_if_the_diagnosis_is_right(policy, row, answer, asked, concluded):
    samples, _ = play(policy, TRAINED, row, [["fever?", answer], ["how are you?", answer], [answer]])
    assert [sample.reward for sample in samples] == [float(concluded > 0)] * 3
    batch = forest(samples)
    values_T = pay(batch)
    assert per_turn(values_T, batch, 0) == pytest.approx([asked, concluded], abs=1e-3)
    assert per_turn(values_T, batch, 1) == [0.0, concluded]
    assert per_turn(values_T, batch, 2) == [concluded]
    assert len(values_T) == sum(turn.sampled for sample in samples for turn in sample.turns)


def test_a_fact_is_paid_once_and_a_shown_one_never(policy, row):
    metadata = json.loads(row["metadata"])
    shown = row | {"metadata": json.dumps(metadata | {"shown": ["cough"]})}
    samples, _ = play(policy, TRAINED, shown, [["fever?", "fever?", "= flu"], ["cough?", "rash?", "= flu"]])
    batch = forest(samples)
    values_T = pay(batch)
    assert per_turn(values_T, batch, 0) == pytest.approx([3 * WORTH[0], 0, 3], abs=1e-3)
    assert per_turn(values_T, batch, 1) == pytest.approx([0, 3 * WORTH[2], 3], abs=1e-3)


def test_an_episode_without_a_diagnosis_has_questions_only(policy, row):
    samples, _ = play(policy, TRAINED, row, [["fever?", "cough?", "rash?"], ["fever?", "= flu"]])
    assert [sample.finish for sample in samples] == ["length", "stop"]
    batch = forest(samples)
    assert per_turn(pay(batch), batch, 0) == pytest.approx([2 * worth for worth in WORTH], abs=1e-3)


def test_the_baseline_is_the_mean_over_all_tokens_of_the_group(policy, row):
    samples, _ = play(policy, TRAINED, row, [["fever?", "= flu"], ["hello", "= gout"]])
    algorithm = bind_algorithm(TRAINED, {port.path: Path("p") for port in LOADED.ports("trained")})
    batch = forest(samples)
    made_T = with_advantages(algorithm, batch, 0, states={}, rows=[row] * 2).sampled("advantage")
    paid = torch.tensor([3 * WORTH[0], 3.0, 0.0, 0.0], dtype=torch.float64)
    counts = torch.tensor([turn.sampled for sample in samples for turn in sample.turns])
    assert len(set(counts.tolist())) > 1
    expected = paid - (paid * counts).sum() / counts.sum()
    turns = [*per_turn(made_T, batch, 0), *per_turn(made_T, batch, 1)]
    assert turns == pytest.approx(expected.tolist(), abs=1e-3)
    assert turns[0] > turns[2]


def test_the_search_is_guided_by_the_same_gain():
    env = EXPLORED.search.options["env"]
    assert EXPLORED.search.use == "state_mcts"
    row = bind(STAGES["cases"].problems[0])()[0]
    worth = json.loads(row["metadata"])["worth"]
    use = type(TRAINED.env).model_validate(env)
    episode = build_environment(use, {}).begin(row, 0)
    earned = [episode.step(text).reward for text in (f"{next(iter(worth))}?", f"= {row['answer']}")]
    assert earned == [pytest.approx(next(iter(worth.values()))), 1.0]
    assert STAGES["tuned"].data == "explored"
    assert EXPLORED.model == STAGES["tuned"].model == "cold_start"
    assert EXPLORED.min_reward == 1.5  # right, and half of the worth was learnt


def test_the_trainings_differ_in_the_advantage_alone():
    trained, outcome = (stage.model_dump() for stage in (TRAINED, OUTCOME))
    assert [part["use"] for part in trained.pop("advantage")] == ["outcome_weighted_turns", "center"]
    assert [part["use"] for part in outcome.pop("advantage")] == ["center", "scale"]
    assert trained == outcome
    assert TRAINED.model == "tuned"
    assert (TRAINED.env.options["gain"], TRAINED.env.options["right"], TRAINED.env.max_turns) == (1.0, 0.0, 3)
    report = STAGES["report"]
    assert report.env == TRAINED.env
    assert set(report.models) == {"start", "tuned", "trained", "outcome"}
    cases, held_out = bind(STAGES["cases"].problems[0])(), bind(report.tasks[0])()
    assert not {row["id"] for row in cases} & {row["id"] for row in held_out}
