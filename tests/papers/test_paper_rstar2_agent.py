"""rStar2-Agent: of a group that is larger than needed the cleanest successes and random failures are trained on.

Episodes are laid out by hand; the resampling, the advantages and the loss are those of the recipe. Not shown: that
calls become better, which is measured.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.lookup import bind
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rstar2-agent.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
FIRST, TRAINED, PLAIN_FIRST, PLAIN = (STAGES[name] for name in ("first", "trained", "plain_first", "plain"))
NO_CALL = []
CLEAN, MIXED, BROKEN = [True, True], [True, True, False, True, True], [False]
"""Whether each call succeeded: penalties 0, 0.2 and 1; without a call 0.5."""


def episode(number, reward, calls, group=0):
    turns = [Turn(1, 1, ok=ok) for ok in calls] + [Turn(1)]
    size = 2 * len(calls) + 1
    made = Sample({"id": str(group)}, group, "policy", [9], [number] * size, [-1.0] * size, "stop", "", turns=turns)
    made.versions, made.scores, made.reward = [0] * size, {"answers.exact": reward}, reward
    return made


def make_group(calls=(CLEAN, NO_CALL, MIXED, BROKEN), failures=4, group=0):
    successes = [episode(number, 1.0, of, group) for number, of in enumerate(calls)]
    return successes + [episode(len(calls) + i, 0.0, CLEAN, group) for i in range(failures)]


def resample(samples, stage=TRAINED, seed=0):
    (use,) = stage.resample
    part = bind(use)
    supplies = {"samples": samples, "rng": np.random.default_rng(seed)}
    return part.function(*[supplies[name] for name in part.asks], **part.options)


def numbers(samples):
    return [sample.completion_ids[0] for sample in samples]


def test_of_eight_the_two_cleanest_successes_and_two_failures_are_kept():
    """Penalties 0, 0.5, 0.2 and 1: the first and the third success."""
    seen = set()
    for seed in range(40):
        kept, more = resample(make_group(), seed=seed)
        assert more == []
        assert numbers(kept)[:2] == [0, 2]
        assert len(numbers(kept)) == 4
        seen |= {tuple(numbers(kept)[2:])}
    # Failures are drawn uniformly: every pair of four occurs.
    assert seen == {(a, b) for a in range(4, 8) for b in range(a + 1, 8)}


def test_rewards_stay_those_of_the_answer():
    kept, _ = resample(make_group())
    assert [sample.reward for sample in kept] == [1.0, 1.0, 0.0, 0.0]
    assert {type(use.use) for use in TRAINED.rewards} == {str}
    assert [use.use for use in TRAINED.rewards] == ["answers.exact"]


@pytest.mark.parametrize(("successes", "kept_successes"), [(1, 1), (2, 1), (3, 2), (6, 3), (7, 4), (8, 4), (0, 0)])
def test_successes_and_failures_keep_their_shares(successes, kept_successes):
    """A single success is never lost: failures are rounded down."""
    kept, _ = resample(make_group([CLEAN] * successes, 8 - successes))
    assert [sample.reward for sample in kept] == [1.0] * kept_successes + [0.0] * (4 - kept_successes)


def test_groups_are_resampled_apart_and_small_ones_stay():
    groups = make_group() + make_group([BROKEN], 7, group=1) + make_group([BROKEN, CLEAN], 1, group=2)
    kept, _ = resample(groups)
    assert [[s.reward for s in kept if s.group == group] for group in range(3)] == [
        [1.0, 1.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 0.0],
        [1.0, 1.0, 0.0],
    ]


def test_advantages_are_normalised_over_what_is_kept():
    """Six successes and two failures: of 3 and 1 the mean is 0.75."""
    kept, _ = resample(make_group([CLEAN] * 6, 2))
    algorithm = bind_algorithm(TRAINED, {port.path: Path("p") for port in LOADED.ports("trained")})
    batch = with_advantages(algorithm, forest(kept), 0)
    values = [float(batch.sampled("advantage")[batch.path_T == path][0]) for path in range(4)]
    assert values == pytest.approx([0.25 / (0.5 + 1e-4)] * 3 + [-0.75 / (0.5 + 1e-4)])


def test_the_stages_and_what_they_train_without():
    models = {"first": "start", "trained": "first", "plain_first": "start", "plain": "plain_first"}
    assert {name: STAGES[name].model for name in models} == models
    assert [s.max_completion_length for s in (FIRST, TRAINED, PLAIN_FIRST, PLAIN)] == [96, 144, 96, 144]
    for stage in (FIRST, TRAINED):
        assert (stage.num_generations, stage.resample[0].options) == (8, {"keep": 4})
        assert stage.loss_terms == []
        options = stage.policy_loss.options
        assert (options["epsilon"], options["epsilon_high"]) == (0.2, 0.28)
    for ours, theirs in ((FIRST, PLAIN_FIRST), (TRAINED, PLAIN)):
        a, b = (one.model_dump(exclude={"model"}) for one in (ours, theirs))
        for of in (a, b):
            keep = of.pop("resample")[0]["keep"] if of["resample"] else of.pop("resample") or of["num_generations"]
            assert keep * (of.pop("generation_batch_size") // of.pop("num_generations")) == 64
        assert a == b
    assert dict(STAGES["report"].models) == {"start": "start", "trained": "trained", "plain": "plain"}


def test_questions_of_training_and_report_are_disjoint():
    asked, reported = bind(STAGES["questions"].problems[0])(), bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in reported}
