"""RLPA: every turn is rewarded for the profile that it states and for a reply that suits the stated profile.

Episodes are dictated; the user, the rewards and the advantages are those of the recipe. Not shown: that a model learns
more from them, which is measured.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.lookup import bind
from learning.models.policy import Policy
from schemas.recipe.load import load_recipe
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "rlpa.yaml")
STAGES = LOADED.stages
TRAINED = STAGES["trained"]
TRUE = {"pet": "cat", "city": "rome", "job": "chef"}


@pytest.fixture(scope="module")
def row():
    return bind(STAGES["people"].problems[0])()[0] | {"metadata": json.dumps({"facts": TRUE})}


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def earn(policy, row, *scripts, stage=TRAINED):
    """Return what each turn of each script earned, and the samples."""
    samples, _ = play(policy, stage, row, list(scripts))
    return [[turn.reward for turn in sample.turns] for sample in samples], samples


def test_the_profile_reward_is_the_f1_of_slots_and_values(policy, row):
    """Two slots stated, one right of three: P = 1/2, R = 1/3, F1 = 0.4."""
    says = ["<p>pet=cat, city=oslo</p>hm", "<p>city=rome</p>hm", "<p></p>hm", "<p>pet=cat,city=rome,job=chef</p>hm"]
    ((*earned,),), _ = earn(policy, row, says)
    assert earned == pytest.approx([0.4, 2 * 1 / 4, 0.0, 1.0])


def test_every_turn_has_a_reward_and_a_correction_raises_the_later_ones_only(policy, row):
    wrong, right = "<p>pet=cat,city=oslo</p>hm", "<p>pet=cat,city=rome</p>hm"
    (never, corrected), samples = earn(policy, row, [wrong] * 4, [wrong, wrong, right, right])
    assert [len(one) for one in (never, corrected)] == [4, 4]
    assert corrected[:2] == never[:2] == pytest.approx([0.4, 0.4])
    assert corrected[2:] == pytest.approx([0.8, 0.8])
    assert never[2:] == pytest.approx([0.4, 0.4])
    assert [sample.reward for sample in samples] == pytest.approx([1.6, 2.4])
    assert {sample.finish for sample in samples} == {"stop"}


def test_the_reply_is_judged_by_the_stated_profile(policy, row):
    """A reply for a wrong profile suits it; the same reply does not suit the right one."""
    ((fits_wrong, fits_right, misses, asks),), _ = earn(
        policy,
        row,
        ["<p>city=oslo</p>Go skiing in Oslo.", "<p>city=rome</p>See Rome.", "<p>city=rome</p>See Oslo.", "<p></p>pet?"],
    )
    assert fits_wrong == pytest.approx(0.0 + 1.0)
    assert fits_right == pytest.approx(0.5 + 1.0)
    assert misses == pytest.approx(0.5 + 0.0)
    assert asks == pytest.approx(0.0 + 1.0)


def test_the_user_tells_what_it_is_asked_for(policy, row):
    says = ["<p></p>What is your job?", "<p>job=chef</p>your pet?", "<p>job=chef,pet=cat</p>A chef!", "no profile"]
    samples, contexts = play(policy, TRAINED, row, [says])
    (last,) = [seen[-1] for seen in contexts.values()]
    assert "job: chef" in last
    assert "pet: cat" in last
    assert "rome" not in last
    assert [turn.ok for turn in samples[0].turns] == [True, True, True, False]
    assert samples[0].turns[-1].reward == 0


def test_the_other_trainings_have_one_of_the_two_rewards(policy, row):
    says = ["<p>pet=cat</p>job?"] * 4
    for name, each in (("trained", 1.5), ("profile", 0.5), ("response", 1.0)):
        (earned,), _ = earn(policy, row, says, stage=STAGES[name])
        assert earned == pytest.approx([each] * 4)
    dumped = [STAGES[name].model_dump(exclude={"env"}) for name in ("trained", "profile", "response")]
    assert dumped[0] == dumped[1] == dumped[2]


def test_a_turn_has_the_advantage_of_its_own_and_later_rewards(policy, row):
    wrong, right = "<p>pet=cat,city=oslo</p>hm", "<p>pet=cat,city=rome</p>hm"
    earned, samples = earn(policy, row, [wrong, right, right, wrong])
    algorithm = bind_algorithm(TRAINED, {port.path: Path("p") for port in LOADED.ports("trained")})
    batch = forest(samples)
    values = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64)
    turns_T = batch.sampled("turn")
    batch = batch.with_tokens(value=values[turns_T]).with_paths(value_end=torch.zeros(1, dtype=torch.float64))
    made_T = with_advantages(algorithm, batch, 0, states={}, rows=[row]).sampled("advantage")
    deltas = [
        r + after - now for r, now, after in zip(earned[0], values.tolist(), [*values[1:].tolist(), 0], strict=True)
    ]
    gae = torch.tensor([sum(0.95 ** (k - t) * deltas[k] for k in range(t, 4)) for t in range(4)], dtype=torch.float64)
    each_T = gae[turns_T]
    expected_T = (each_T - each_T.mean()) / each_T.std()
    torch.testing.assert_close(made_T.double(), expected_T, atol=1e-5, rtol=1e-5)


def test_lessons_err_and_ask_and_the_reports_measure_profiles():
    rows = bind(STAGES["lessons"].problems[0])()
    assert len(rows) == 4 * 300
    teacher = STAGES["lessons"].teacher
    assert (teacher.options["slips"], teacher.options["repeats"], teacher.options["tag"]) == (0.3, 0.3, "p")
    early, report = STAGES["early"], STAGES["report"]
    assert (early.env.max_turns, report.env.max_turns) == (2, 4)
    for stage in (early, report):
        assert stage.env.options.get("response") is None
        assert set(stage.models) == {"start", "trained", "profile", "response"}
        assert [metric.use for metric in stage.metrics] == ["mean_score"]
    asked = bind(STAGES["people"].problems[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in bind(report.tasks[0])()}
