"""IterResearch: each round sees the question, the report and the last result, and earns the discounted outcome.

Episodes are dictated; the environment, contexts, rewards, advantages and weights of the loss are those of the recipe.
Not shown: that reports are better than histories, which is measured.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_prompt
from learning.lookup import bind
from learning.models.policy import Policy
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "iterresearch.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, REACT, REPORT = STAGES["trained"], STAGES["react"], STAGES["report"]
GAMMA = 0.95


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)


@pytest.fixture(scope="module")
def question():
    """A question of three look-ups, and its script of reports and searches."""
    row = next(row for row in bind(STAGES["questions"].problems[0])() if json.loads(row["metadata"])["hops"] == 3)
    return row, json.loads(row["metadata"])["script"]


def with_first_result(row, query, text):
    """The same problem, whose first search finds another document."""
    notes = json.loads(row["metadata"])
    notes["documents"] = [f"{query} {text}", *(d for d in notes["documents"] if not d.startswith(query))]
    return row | {"metadata": json.dumps(notes)}


def test_a_round_sees_the_question_the_report_and_the_last_result_only(policy, question):
    row, script = question
    (sample,), contexts = play(policy, TRAINED, row, [script])
    assert (sample.finish, sample.reward, sample.num_turns, len(sample.contexts)) == ("stop", 1.0, 4, 4)
    text, trail = row["prompt"][0]["content"], json.loads(row["metadata"])["trail"]
    for number, context in enumerate(contexts[0][1:], 1):
        report = script[number - 1].partition("<report>")[2].partition("</report>")[0]
        assert f"{text} {report} " in context
        assert trail[number - 1] in context
        assert "search:" not in context
    assert [script[k].startswith(f"<report>{k}") for k in range(3)] == [True] * 3


def test_another_result_in_the_first_round_changes_no_later_prompt_while_the_report_is_the_same(policy, question):
    """In the growing context it changes every prompt after it."""
    row, script = question
    query = script[0].rpartition("search: ")[2]
    other = with_first_result(row, query, "xyz")
    for stage, differ in ((TRAINED, [False, True, False, False]), (REACT, [False, True, True, True])):
        (_, one), (_, two) = play(policy, stage, row, [script]), play(policy, stage, other, [script])
        assert [a != b for a, b in zip(one[0], two[0], strict=True)] == differ


def test_the_report_is_the_last_that_a_round_wrote(policy, question):
    row, script = question
    twice = ["<report>x</report>" + script[0], *script[1:]]
    (_, one), (_, two) = play(policy, TRAINED, row, [script]), play(policy, TRAINED, row, [twice])
    assert one[0] == two[0]


def weigh(samples):
    """The batch of samples with the advantages and weights of the recipe, and its algorithm."""
    algorithm = bind_algorithm(TRAINED, {port.path: Path("p") for port in LOADED.ports("trained")})
    batch = with_advantages(algorithm, with_dropped(forest(samples), False), 0, rows=[s.row for s in samples])
    return algorithm, with_weights(algorithm, batch, 0, TRAINED.max_completion_length)


def per_round(values_T, batch, path):
    """The one value of each round's tokens of a path."""
    own_T = batch.path_T == path
    turns_T = batch.sampled("turn")[own_T]
    found = [values_T[own_T][turns_T == turn].unique() for turn in turns_T.unique()]
    assert all(len(values) == 1 for values in found)
    return [float(values[0]) for values in found]


def test_a_round_earns_the_discounted_outcome_normalised_over_all_rounds_of_the_question(policy, question):
    """γ^(T−t)·R: rounds count once, whatever their length, and a shorter success is worth more in its first round."""
    row, script = question
    quick, wrong = [script[0], row["answer"]], [*script[:2], "never"]
    samples, _ = play(policy, TRAINED, row, [script, quick, wrong])
    assert [sample.reward for sample in samples] == [1.0, 1.0, 0.0]
    _, batch = weigh(samples)
    raw = [[GAMMA ** (3 - t) for t in range(4)], [GAMMA, 1.0], [0.0] * 3]
    flat = torch.tensor([value for of in raw for value in of], dtype=torch.float64)
    for path, values in enumerate(raw):
        expected = [float((value - flat.mean()) / (flat.std() + 1e-6)) for value in values]
        assert per_round(batch.sampled("advantage"), batch, path) == pytest.approx(expected)
    assert per_round(batch.sampled("advantage"), batch, 1)[0] > per_round(batch.sampled("advantage"), batch, 0)[0]


def test_a_group_without_a_success_has_no_gradient(policy, question):
    row, script = question
    samples, _ = play(policy, TRAINED, row, [["never"], [*script[:2], "never"]])
    _, batch = weigh(samples)
    assert not batch.sampled("advantage").any()


def test_rounds_are_cut_to_a_multiple_of_the_trainers(policy, question):
    """Eleven rounds on four trainers: eight are trained on, whole, and three have no weight."""
    row, script = question
    samples, _ = play(policy, TRAINED, row, [script, script, [*script[:2], "never"]])
    assert sum(sample.num_turns for sample in samples) == 11
    _, batch = weigh(samples)
    weights = [weight for path in range(3) for weight in rounds_with_weight(batch, path)]
    assert (len(weights), sum(weights)) == (11, 8)


def rounds_with_weight(batch, path):
    own_T = batch.path_T == path
    turns_T, weights_T = batch.sampled("turn")[own_T], batch.sampled("w")[own_T]
    kept = [weights_T[turns_T == turn] != 0 for turn in turns_T.unique()]
    assert all(bool(of.all()) or not of.any() for of in kept)
    return [bool(of.all()) for of in kept]


def test_a_round_is_one_sequence_of_gspo(policy, question):
    """Its ratio is the geometric mean over its own tokens; a change in another round leaves it."""
    row, script = question
    samples, _ = play(policy, TRAINED, row, [script, ["never"]])
    algorithm, batch = weigh(samples)
    generator = torch.Generator().manual_seed(0)
    behav_T = batch.sampled("lp_behav")
    lp_T = behav_T + torch.rand(len(behav_T), generator=generator, dtype=torch.float64)
    columns = {"lp_behav_T": behav_T, "path_T": batch.path_T, "turn_T": batch.sampled("turn")}
    ratio_T = algorithm.ratio.ask(0, columns | {"lp_T": lp_T})
    for path in (0, 1):
        own_T = batch.path_T == path
        for turn in batch.sampled("turn")[own_T].unique():
            at_T = own_T & (batch.sampled("turn") == turn)
            expected = float((lp_T - behav_T)[at_T].mean())
            assert ratio_T[at_T].tolist() == pytest.approx([expected] * int(at_T.sum()))
    assert len(ratio_T.unique()) == 5
    assert TRAINED.policy_loss.model_dump() == STAGES["trained"].policy_loss.model_dump()
    assert (TRAINED.policy_loss.use, TRAINED.policy_loss.options["epsilon"]) == ("clipped", 3e-4)


def test_the_cold_start_learns_in_the_workspaces_of_training(policy):
    """Every lesson's prompt is the context that an episode shows at that round."""
    lessons = bind(STAGES["report_lessons"].problems[0])()
    starts = [i for i, row in enumerate(lessons) if row["id"].endswith(".0")]
    for start, end in pairwise(starts[:20]):
        rows = lessons[start:end]
        _, contexts = play(policy, TRAINED, rows[0], [json.loads(rows[0]["metadata"])["script"]])
        shown = [decode(policy.tokenizer, encode_prompt(policy.tokenizer, row["prompt"])) for row in rows]
        assert contexts[0] == shown


def test_react_differs_in_the_context_and_in_nothing_else():
    trained, react = (stage.model_dump(exclude={"model"}) for stage in (TRAINED, REACT))
    assert trained["env"].pop("context")["use"] == "state"
    assert react["env"].pop("context") is None
    assert trained == react
    starts = [STAGES[name].model_dump(exclude={"data"}) for name in ("with_report", "with_history")]
    assert starts[0] == starts[1]
    assert [STAGES[name].data for name in ("with_report", "with_history")] == ["report_lessons", "history_lessons"]
    assert REPORT.env == TRAINED.env
    assert REPORT.envs["react"] == REACT.env
    assert dict(REPORT.models) == {"start": "with_report", "trained": "trained", "react": "react"}


def test_questions_of_training_lessons_and_report_are_disjoint():
    asked = bind(STAGES["questions"].problems[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in bind(REPORT.tasks[0])()}
    worlds = [use.model_dump()["of"]["world"] for use in STAGES["report_lessons"].problems]
    assert worlds == [use.model_dump()["of"]["world"] for use in STAGES["history_lessons"].problems] == [1, 2, 3, 4]
