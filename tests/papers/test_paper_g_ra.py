"""G-RA: rewards of steps are withheld from an episode whose outcome is below the gate, and so is their gradient.

Episodes are dictated; the games, the rewards and the advantages are those of the recipe. Not shown: that training is
more stable, which is measured.
"""

from pathlib import Path

import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.rewards.environment import carried_out
from learning.samples.engine_protocol import Sampling, Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler, score
from learning.text_game.rows import make_row
from learning.text_game.world import Goal, Holder, State, World
from schemas.recipe.load import load_recipe
from tests.papers.dictated import Dictated

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "g-ra.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, DIRECT = STAGES["trained"], STAGES["direct"]
WORLD = World(
    exits={"hall": {"north": "attic"}, "attic": {"south": "hall"}},
    doors={},
    holders={"table": Holder("attic")},
    fixtures={},
    items=("cup",),
    goal=Goal("cup", "table"),
)
ROW = make_row(WORLD, State("hall", ("hall",)), 3)
SOLVED = ["take cup", "go north", "put cup in table"]
WALKS = ["go north", "go south"] * 4
STUMBLES = ["take cup", "fly", "take moon", "go north", "sing", "hum", "dig", "wait"]


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def play(policy, stage, scripts):
    """Samples of a game, one per script, with the rewards of a stage."""
    engine = Dictated(policy.tokenizer, scripts)
    episodes = wrap_in_environment(engine, stage.env, policy.tokenizer, {}, policy.max_length)
    samples = Sampler(episodes, policy, Sampling(1.0, 2000), 0, 0).sample([SampleRequest(ROW, len(scripts))])
    score([bind(use) for use in stage.rewards], [use.weight for use in stage.rewards], samples, {"step": 0})
    return samples


def find_advantages(stage, samples):
    name = next(name for name, one in STAGES.items() if one is stage)
    algorithm = bind_algorithm(stage, {port.path: Path("p") for port in LOADED.ports(name)})
    batch = with_advantages(algorithm, forest(samples), 0, rows=[ROW] * len(samples))
    return [float(batch.sampled("advantage")[batch.path_T == path][0]) for path in range(len(samples))]


def test_steps_count_only_where_the_outcome_reaches_the_gate(policy):
    """Three steps of 0.2 and the outcome 1: 1.6. Eight steps or two without the outcome: 0, and 1.6 or 0.4 directly."""
    scripts = [SOLVED, WALKS, STUMBLES]
    assert [sample.reward for sample in play(policy, TRAINED, scripts)] == pytest.approx([1.6, 0.0, 0.0])
    direct = play(policy, DIRECT, scripts)
    assert [sample.reward for sample in direct] == pytest.approx([1.6, 1.6, 0.4])
    assert [sample.num_turns for sample in direct] == [3, 8, 8]
    # Walking to and fro is worth as much as the solution where nothing is withheld.
    assert direct[0].reward == pytest.approx(direct[1].reward)


def test_a_group_that_fails_has_no_gradient_though_its_steps_differ(policy):
    scripts = [WALKS, STUMBLES, WALKS[:2] + STUMBLES[1:3] * 3]
    assert find_advantages(TRAINED, play(policy, TRAINED, scripts)) == [0.0, 0.0, 0.0]
    direct = find_advantages(DIRECT, play(policy, DIRECT, scripts))
    assert direct[0] > 0.5 > 0 > direct[1]


def test_among_successes_more_steps_are_paid_more(policy):
    """The gate is no judge of efficiency: R = O + Σ S has the numbers of the formula, wherever it is open."""
    longer = [*WALKS[:2], *SOLVED]
    with_errors = ["fly", *SOLVED]
    samples = play(policy, TRAINED, [SOLVED, longer, with_errors])
    assert [sample.reward for sample in samples] == pytest.approx([1.6, 2.0, 1.6])
    assert all(set(sample.scores) == {"environment.earned", "composite.gated"} for sample in samples)


def test_a_memory_is_no_step():
    """Three turns, the second of which wrote a memory."""
    sample = Sample({"id": "a"}, 0, "policy", [1], [2, 3, 4], [-1.0] * 3, "stop", "")
    sample.turns = [Turn(1, asks="memory"), Turn(1), Turn(1, ok=False)]
    assert carried_out([sample]) == [1.0]


def test_the_trainings_differ_in_the_gate_and_in_nothing_else():
    trained, direct = (stage.model_dump() for stage in (TRAINED, DIRECT))
    outcome, gated = trained.pop("rewards")
    steps = {"use": "environment.carried_out", "weight": 0.2}
    assert {name: gated[name] for name in ("of", "by", "at_least")} == {
        "of": steps,
        "by": "environment.earned",
        "at_least": 0.5,
    }
    assert direct.pop("rewards") == [outcome, {**steps, "optional": False}]
    assert trained == direct
    report = STAGES["report"]
    assert dict(report.models) == {"start": "cold_start", "trained": "trained", "direct": "direct"}
    assert [use.use for use in report.rewards] == ["environment.earned"]


def test_games_of_training_and_report_are_disjoint():
    trained, reported = bind(STAGES["games"].problems[0])(), bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in trained} & {row["id"] for row in reported}
