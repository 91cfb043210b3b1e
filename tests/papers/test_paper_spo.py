"""SPO: an episode's reward is its share of wins against the others of its rollout, which leads to the minimax winner.

Not shown: continuous control, noisy or non-Markovian preferences of people.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.control.policies.policy import load_control_policy
from learning.control.rewards.segment_duels import by_table, higher_return
from learning.control.rewards.segments import (
    Segment,
    compare,
    cut_segments,
    describe_segments,
    fit_bradley_terry,
    learned_score,
    reward_segments,
    win_rate,
)
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import gather_episodes, write_transitions
from learning.control.stepping.worlds import Steps, Worlds
from learning.control.tables.counts import read_table
from learning.control.worlds.preference_games import preference_game
from learning.lookup import Inner, bind
from schemas.control import SegmentDuelUse, SegmentRewardUse, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/spo.yaml").stages
CYCLE = [[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]]
"""Rock, paper, scissors: P(row beats column)."""
ROCK, PAPER, SCISSORS = range(3)


def choose(*choices):
    """Segments of one step each, in a world with one observation."""
    return [Segment(np.ones((1, 1), np.float32), np.array([choice]), np.zeros(1)) for choice in choices]


def rate(table):
    return Inner(bind(SegmentDuelUse.model_validate({"use": "by_table", "table": table})), 0, {})


def test_rewards_are_shares_of_wins_against_the_others():
    """(R, R, P): a rock draws against the other and loses to the paper. Every batch adds up to n / 2."""
    assert win_rate(choose(ROCK, ROCK, PAPER), by=rate(CYCLE)).tolist() == [0.25, 0.25, 1]
    rng = np.random.default_rng(0)
    for n in (2, 5, 9):
        assert win_rate(choose(*rng.integers(3, size=n)), by=rate(CYCLE)).sum() == pytest.approx(n / 2)


def test_expected_rewards_are_those_of_the_preference_game():
    """Against π = (.6, .2, .2): rock .5, paper .7, scissors .3."""
    choices = [ROCK] * 600 + [PAPER] * 200 + [SCISSORS] * 200
    rates = (np.array(CYCLE)[choices][:, choices].sum(1) - 0.5) / 999
    assert win_rate(choose(*choices[::50]), by=rate(CYCLE)).mean() == pytest.approx(0.5)
    assert rates[[0, 600, 800]].tolist() == pytest.approx([0.5, 0.7, 0.3], abs=0.002)
    few = win_rate(choose(*choices[::10]), by=rate(CYCLE))
    assert few[[0, 60, 80]].tolist() == pytest.approx([0.5, 0.7, 0.3], abs=0.01)


def test_a_reward_model_sees_nothing_in_a_cycle():
    """Bradley-Terry on all pairs alike is flat; on the recipe's table it prefers what wins most duels."""
    flat = fit_bradley_terry(np.eye(3), np.array(CYCLE), 0.1)
    assert flat.tolist() == pytest.approx([0, 0, 0], abs=1e-9)
    table = np.array(STAGES["selfplay"].segment_reward.options["by"]["table"])
    weights = fit_bradley_terry(np.eye(4), table, 0.1)
    assert weights.argmax() == 1
    assert table.min(1).argmax() == 0
    slope = sum(
        (table[i, j] - 1 / (1 + np.exp(weights[j] - weights[i]))) * (np.eye(4)[i] - np.eye(4)[j])
        for i in range(4)
        for j in range(i + 1, 4)
    )
    assert slope == pytest.approx(0.1 * weights, abs=1e-9)


def test_multiplicative_weights_on_the_rewards_average_to_the_minimax_winner():
    """Hedge on win rates against twelve drawn choices: the mean policy is uniform within .05."""
    rng, logits, policies = np.random.default_rng(0), np.array([0.8, 0.0, -0.4]), []
    for _ in range(300):
        policy = np.exp(logits - logits.max())
        policies.append(policy / policy.sum())
        drawn = rng.choice(3, p=policies[-1], size=12)
        rewards = win_rate(choose(*drawn, ROCK, PAPER, SCISSORS), by=rate(CYCLE))[-3:]
        logits = logits + 0.1 * rewards
    assert np.mean(policies, 0).tolist() == pytest.approx([1 / 3] * 3, abs=0.05)
    assert max(np.ptp(policy) for policy in policies[:50]) > 0.2


def test_a_rollout_is_cut_at_ends_and_every_segment_shares_its_reward_over_its_steps():
    """Two worlds, three steps; the first world's episode ends after the second step."""
    ended = np.array([[False, False], [True, False], [False, False]])
    rollout = [
        Steps(
            np.full((2, 1), 10.0 * s + np.arange(2)[:, None]),
            np.array([s, s]),
            np.array([1.0, 2.0]),
            np.zeros((2, 1)),
            ended[s],
            np.zeros(2, bool),
            (),
        )
        for s in range(3)
    ]
    segments, place = cut_segments(rollout)
    assert place.tolist() == [[0, 2], [0, 2], [1, 2]]
    assert [one.observation[:, 0].tolist() for one in segments] == [[0, 10], [20], [1, 11, 21]]
    assert [one.action.tolist() for one in segments] == [[0, 1], [2], [0, 1, 2]]
    assert [one.reward.sum() for one in segments] == [2, 1, 6]
    use = SegmentRewardUse.model_validate({"use": "win_rate", "by": {"use": "higher_return"}})
    made = reward_segments(rollout, bind(use), 0, Spaces(1, 4), np.random.default_rng(0))
    assert np.stack([steps.reward for steps in made]).tolist() == [[0.25, 1 / 3], [0.25, 1 / 3], [0.0, 1 / 3]]
    assert rollout[0].reward.tolist() == [1, 2]


def test_duels_judge_choices_or_returns():
    first, second = choose(PAPER, ROCK)
    assert by_table(first, second, table=CYCLE) == 1
    more, less = (Segment(np.ones((2, 1)), np.zeros(2, int), np.array([1.0, r])) for r in (1.0, 0.0))
    assert (higher_return(more, less), higher_return(less, more), higher_return(less, less)) == (1, 0, 0.5)
    assert higher_return(more, less, scale=0.5) == pytest.approx(1 / (1 + np.exp(-2)))
    with pytest.raises(StepError, match="no probability"):
        compare(choose(ROCK, PAPER), rate([[2.0, 2.0], [2.0, 2.0]]))
    with pytest.raises(StepError, match="two segments"):
        win_rate(choose(ROCK), by=rate(CYCLE))


@pytest.fixture
def context(tmp_path):
    def context(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir()
        return made

    return context


@pytest.fixture
def scores(context, tmp_path):
    """The recipe's reward model, of fewer random episodes."""
    worlds = Worlds(bind(STAGES["random"].env), 1, 1, "collect")
    steps = [worlds.step(np.array([n % 4])) for n in range(40)]
    (tmp_path / "data").mkdir()
    write_transitions(tmp_path / "data", gather_episodes(steps, worlds.spaces))
    step = context("scores", transitions=tmp_path / "data")
    made = bind(STAGES["scores"].function)(step)
    assert (made["segments"], made["duels"]) == (40, 780)
    return step.output("result")


@pytest.mark.parametrize(("arm", "choice", "worst"), [("selfplay", 0, 0.5), ("modelled", 1, 0.4)])
def test_self_play_makes_the_choice_that_none_is_preferred_to(arm, choice, worst, context, scores):
    """The recipe's training: choice 0 loses no duel; the reward model's choice 1 wins most of random ones."""
    settings = STAGES[arm].model_dump(exclude_unset=True)
    settings["environment_steps"] = 1280
    if arm == "modelled":
        settings["segment_reward"] = {**settings["segment_reward"], "model": str(scores)}
    step = context(arm)
    control.run(Control.model_validate(settings), step)
    logits = read_table(load_control_policy(step.output("model")).actor)[0]
    policy = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert policy[choice] > 0.8
    table = np.array(settings["env"]["table"])
    assert (policy @ table).min() == pytest.approx(worst, abs=0.06)


def test_scores_are_linear_in_steps_and_a_foreign_model_is_refused(scores, tmp_path):
    table = np.array(STAGES["report"].env.options["table"])
    spaces, pieces = Spaces(1, 4), choose(0, 1, 2, 3)
    assert describe_segments(pieces, spaces).tolist() == np.eye(4).tolist()
    made = learned_score(pieces, spaces, model=scores)
    counts = np.repeat(np.arange(4), 10)
    expected = fit_bradley_terry(np.eye(4)[counts], table[np.ix_(counts, counts)], 1.0)
    assert made == pytest.approx(expected, abs=1e-6)
    twice = Segment(np.ones((2, 1)), np.array([1, 3]), np.zeros(2))
    assert learned_score([twice], spaces, model=scores)[0] == pytest.approx(made[1] + made[3])
    with pytest.raises(StepError, match="4 features"):
        learned_score(choose(0), Spaces(1, 3), model=scores)
    with pytest.raises(StepError, match="fit_scores"):
        learned_score(pieces, spaces, model=tmp_path)


def test_a_loss_on_single_steps_is_refused(context):
    settings = STAGES["selfplay"].model_dump(exclude_unset=True) | {"algorithm": "dqn", "loss": "dqn"}
    with pytest.raises(StepError, match="segment_reward"):
        control.run(Control.model_validate({**settings, "networks": {}, "learning_starts": 10}), context("dqn"))


def test_the_arms_differ_in_the_reward_and_ask_for_as_many_duels():
    selfplay, modelled = (STAGES[name].model_dump() for name in ("selfplay", "modelled"))
    assert selfplay.pop("segment_reward")["use"] == "win_rate"
    assert modelled.pop("segment_reward") == {"use": "learned_score", "model": "scores"}
    assert selfplay == modelled
    rollouts, n = selfplay["environment_steps"] // selfplay["num_envs"], selfplay["num_envs"]
    assert selfplay["rollout_steps"] == 1
    asked, given = rollouts * n * (n - 1) / 2, STAGES["random"].episodes * (STAGES["random"].episodes - 1) / 2
    assert asked == pytest.approx(given, rel=0.01)
    assert STAGES["scores"].function.options["segments"] == STAGES["random"].episodes
    assert STAGES["random"].policy.use == "random"


def test_the_report_plays_against_every_choice_with_drawn_actions():
    report = STAGES["report"]
    worlds = [bind(WorldUse.model_validate(use.model_dump()))() for use in (report.env, *report.other_envs)]
    assert [world.opponent for world in worlds] == [0, 1, 2, 3]
    assert report.explore
    assert [use.use for use in report.metrics] == ["worst_return", "mean_return"]
    world = preference_game(table=CYCLE, opponent=ROCK)
    world.reset(seed=0)
    assert world.step(PAPER)[:3] == (0, 1.0, True)
    with pytest.raises(StepError, match="square"):
        preference_game(table=[[0.5, 0.2], [0.5, 0.5]])
    with pytest.raises(StepError, match="no choice 3"):
        preference_game(table=CYCLE, opponent=3)
