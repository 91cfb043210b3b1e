"""Actions weighted by their duration change the policy equally, however many fit into the time; unfinished programs are
rewarded by milestones that the environment itself observed.

Not shown: Kaggle; a frozen language model that inserts milestones into programs; the paper's credit of 0.1 for each of
seven beside −10 for a failure: the recipe shares 0.3 among three.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from learning.algorithm.advantage_shaping import duration
from learning.algorithm.loss import micro_loss, with_weights
from learning.environments.making import wrap_in_environment
from learning.environments.protocol import Outcome
from learning.generation.services.local_rollouts import LocalRollouts
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from learning.sandbox.run import available
from learning.toy_tasks.environments.program import Environment, Mark, limit_log
from learning.toy_tasks.fits import fits, make_table, score_method
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from schemas.use import EnvUse, RewardUse
from tests.papers.loops import Update, letters

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rl-mle-agents.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
ROW = fits(size=1, split="train")[0]
CREDIT = 0.3
guarded = pytest.mark.skipif(available() is not None, reason=str(available()))


# (1) durations


def test_ten_quick_actions_weigh_as_one_slow_one():
    """In 10 units one worker ends 10 actions of 1, another 1 of 10, all with A = 1 (closed form)."""
    seconds_T = torch.tensor([1.0] * 10 + [10.0])
    weighed_T = duration(torch.ones(11), seconds_T)
    assert weighed_T[:10].sum() == weighed_T[10:].sum() == 10
    two_T = duration(torch.tensor([2.0, -3.0]), torch.tensor([4.0, 0.5]), unit=10)
    assert two_T.tolist() == pytest.approx([0.8, -0.15])
    assert duration(torch.tensor([2.0]), torch.tensor([0.0]), unit=10, least=5).tolist() == [1.0]


def action(policy, place, seconds):
    """A completion of one turn that earned 1; all alike but for the time that they took."""
    ids = [*policy.tokenizer("ab", add_special_tokens=False).input_ids, policy.tokenizer.eos_token_id]
    prompt = policy.tokenizer("b", add_special_tokens=False).input_ids
    made = Sample({"id": str(place)}, place, "policy", prompt, ids, [-4.5] * len(ids), "stop", "ab")
    made.versions, made.turns = [0] * len(ids), [Turn(len(ids), reward=1.0, seconds=seconds)]
    made.scores, made.reward = {"environment.earned": 1.0}, 1.0
    return made


def masses(stage, policy, samples):
    """Of each sample, the derivatives of the stage's loss by the log-probabilities of its tokens, added up."""
    step = Update(stage, policy)
    batch = step.prepared(samples)[1]
    batch = with_weights(step.algorithm, batch, 0, stage.max_completion_length)
    _, columns = micro_loss(step.algorithm, step.trained.model, batch, step=0, temperature=1.0)
    mass_P = torch.zeros(len(samples), dtype=torch.float64)
    return mass_P.index_add(0, batch.path_T, columns["policy_grad_T"].abs().double()).tolist()


@pytest.mark.parametrize(("name", "ratio"), [("timed", 1), ("untimed", 10)])
def test_the_gradient_of_a_batch_has_the_masses_of_the_formula(tiny_policy, name, ratio):
    samples = [action(tiny_policy, i, 1.0) for i in range(10)] + [action(tiny_policy, 10, 10.0)]
    mass = masses(STAGES[name], tiny_policy, samples)
    assert mass[10] > 0.01
    assert sum(mass[:10]) == pytest.approx(ratio * mass[10], rel=1e-5)


@pytest.mark.parametrize("name", ["timed", "untimed"])
def test_the_weights_move_as_the_masses_say(tiny_policy, name):
    """The update itself: of a batch of both, what the quick ones do to every weight, and what the slow one does."""
    moved = []
    for kept in (range(10), [10]):
        samples = [action(tiny_policy, i, 10.0 if i == 10 else 1.0) for i in range(11)]
        for i in set(range(11)) - set(kept):
            samples[i].turns = [Turn(3, reward=0.0, seconds=samples[i].turns[0].seconds)]
        moved.append(Update(STAGES[name], tiny_policy).at_once(samples))
    quick, slow = moved
    ratio = 1 if name == "timed" else 10
    assert max(float(g.abs().max()) for g in slow.values()) > 1e-3
    for parameter in quick:
        torch.testing.assert_close(quick[parameter], ratio * slow[parameter], atol=1e-5, rtol=1e-4)


class Workshop:
    """The row `0a` takes 10 units, all others 1; whatever was said earns 1."""

    def begin(self, row, seed):
        return Job(10.0 if row["id"] == "0a" else 1.0)


class Job:
    def __init__(self, seconds):
        self.seconds = seconds

    def step(self, action):
        return Outcome(done=True, reward=1.0, seconds=self.seconds)


def test_the_asynchronous_drive_hands_out_quick_actions_first_and_durations_even_it_out(scripted, tiny_policy, loop):
    """Two workers for 10 units: one is busy with a slow action, the other ends ten quick ones, which are trained on."""
    stage = STAGES["timed"]
    policy = scripted({"a": 3})
    env = EnvUse(use=f"{__name__}:Workshop", workers=2, max_turns=1, decode_seconds=2**-10)
    source = LocalRollouts(
        stage.engine, policy, partial(wrap_in_environment, use=env, tokenizer=policy.tokenizer, inputs={})
    )
    options = {
        "rewards": [RewardUse(use="environment.earned")],
        "max_staleness": 20,
        "ahead": 10,
        "steps_per_update": 0,
    }
    one = loop(stage, policy, letters("a" * 11), num_groups=1, source=source, max_steps=11, **options)
    taken, masses_by = [], {"timed": {1.0: 0.0, 10.0: 0.0}, "untimed": {1.0: 0.0, 10.0: 0.0}}
    for _ in range(11):
        (sample,) = one.iterate()
        taken.append((sample.turns[0].seconds, sample.versions[0]))
        for name, by in masses_by.items():
            by[sample.turns[0].seconds] += masses(STAGES[name], tiny_policy, [sample])[0]
    took = [seconds for seconds, _ in taken]
    assert took[:9] == [1.0] * 9, "before the slow one, which was asked for first"
    assert sorted(took[9:]) == [1.0, 10.0], "both end after 10 units"
    assert {version for _, version in taken} == {0}, "all were asked for at once"
    assert source.engine.clock.now == pytest.approx(10, abs=0.1)
    timed, untimed = masses_by["timed"], masses_by["untimed"]
    assert timed[1.0] == pytest.approx(timed[10.0], rel=1e-5)
    assert untimed[1.0] == pytest.approx(10 * untimed[10.0], rel=1e-5)


@guarded
def test_an_episode_has_time_for_ten_quick_actions_or_a_slow_one():
    """Prices and budget of the recipe, with programs that run in the sandbox."""
    options = STAGES["timed"].env.options
    quick, slow = ([] for _ in range(2))
    for outcomes, turns in ((quick, ["load mean save"] * 11), (slow, ["load line save"] * 2)):
        episode = Environment(**options).begin(ROW, 0)
        for text in turns:
            outcomes.append(episode.step(text))
            if outcomes[-1].done:
                break
    assert [(o.seconds, o.done) for o in quick] == [(1.0, False)] * 9 + [(1.0, True)]
    assert [(o.seconds, o.done) for o in slow] == [(10.0, True)]
    table = make_table(ROW)
    assert quick[0].reward == pytest.approx(CREDIT + (1 - CREDIT) * score_method("mean", table))
    assert slow[0].reward == pytest.approx(CREDIT + (1 - CREDIT) * score_method("line", table))
    assert slow[0].reward > quick[0].reward + 0.2
    late = Environment(**options).begin(ROW, 0)
    late.step("load mean save")
    cut = late.step("load line save")
    assert (cut.seconds, cut.done, cut.ok, cut.observation) == (9.0, True, False, "time is over")
    assert cut.reward == pytest.approx(CREDIT / 3), "what was reached before the end counts"


# (2) progress


def earned(text, **options):
    return Environment(**options).begin(ROW, 5).step(text).reward


@guarded
def test_a_program_that_fails_later_earns_more_and_a_finished_one_most():
    nothing = earned("open save load")
    loaded = earned("load open save")
    fitted = earned("load mean open")
    finished = earned("load mean save")
    assert [nothing, loaded, fitted] == pytest.approx([0, CREDIT / 3, CREDIT * 2 / 3])
    assert nothing < loaded < fitted < CREDIT < finished


PYTHON = """
from kit import load, mean, save
{before}
table = load("train.csv")
raise ValueError
"""
FORGED = """
for name in ("data", "model", "saved"):
    print("reach " + name)
    print(" reach " + name)
print("begin mean 0.0")
"""


@guarded
def test_what_a_program_says_of_itself_does_not_count():
    honest = earned(PYTHON.format(before=""), language="python")
    assert honest == pytest.approx(CREDIT / 3)
    assert earned(PYTHON.format(before=FORGED), language="python") == honest
    assert earned(FORGED, language="python") == 0
    assert earned("print('x') or load('train.csv')" + FORGED, language="python") == 0, "nothing was loaded"


@guarded
def test_what_was_carried_out_is_noted_and_cut_at_the_end_of_the_time():
    program = """
from kit import line, load, mean
table = load("train.csv")
if len([]):
    mean(table)
cheap = line
for _ in range(2):
    cheap(table)
print(mean(table))
"""
    log = Environment(language="python", budget=30).tried(program, make_table(ROW)).log
    assert [(mark.name, mark.cost) for mark in log if mark.cost] == [("line", 10.0), ("line", 10.0), ("mean", 1.0)]
    assert [mark.name for mark in log if mark.cost is None] == ["data", "model", "model", "model"]
    assert limit_log(log, None) == (21.0, 2, True)
    assert limit_log(log, 15.0) == (15.0, 2, False)
    assert limit_log([Mark("line", 10.0), Mark("data", None)], 9.0) == (9.0, 0, False)


@guarded
@pytest.mark.parametrize("odd", ["\ud800", "\0", "load\0", "-" * 5000 + "1", "é ü", "load load.load ((", "x" * 30_000])
def test_whatever_a_model_writes_is_answered(odd):
    for language in ("words", "python"):
        outcome = Environment(language=language).begin(ROW, 0).step(odd)
        assert (outcome.ok, outcome.done, outcome.seconds) == (False, False, 1.0)


@guarded
@pytest.mark.slow
def test_the_slow_good_action_is_learnt_with_durations_while_it_is_not_without(tmp_path, monkeypatch):
    """In 20 iterations; without durations it takes some 40 (the recipe's header has figures)."""
    monkeypatch.chdir(tmp_path)
    plan = plan_recipe(RECIPE, Layout(tmp_path), profile="tiny")
    outcome = run_plan(plan, Layout(tmp_path), executor="inprocess", prefect=False)
    assert outcome.exit_code == 0
    metrics = outcome.states["report"].manifest.metrics
    assert metrics["accuracy.timed"] > 0.8
    assert metrics["accuracy.novice"] < 0.5
    assert metrics["accuracy.untimed"] < 0.6
