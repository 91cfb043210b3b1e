"""Planning in finite worlds: UCB-VI, Dyna, counts and models, against values written down independently."""

import math

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.policies.policy import act
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Worlds
from learning.control.tables import dyna, factored, planning
from learning.control.tables.counts import count_steps, find_states, read_table, write_table
from learning.control.worlds.tabular import draw_process, evaluate, solve
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.stages.control import Control
from tasks import control
from tasks.context import Context

TABLE = NetworkSettings(hidden_sizes=[])


def keep(rows, states, terminated=None):
    """Columns of kept steps from (state, action, reward, next state)."""
    before, action, reward, after = (np.array(column) for column in zip(*rows, strict=True))
    ended = np.zeros(len(rows), bool) if terminated is None else np.array(terminated)
    return {
        "observation": torch.eye(states)[before],
        "action": torch.from_numpy(action),
        "reward": torch.from_numpy(reward).float()[:, None],
        "next_observation": torch.eye(states)[after],
        "terminated": torch.from_numpy(ended)[:, None],
        "truncated": torch.zeros(len(rows), 1, dtype=torch.bool),
    }


def make(build, states, actions, **options):
    torch.manual_seed(0)
    return build(Networks(Spaces(states, actions), TABLE), **options)


def test_steps_are_counted_and_ends_lead_nowhere():
    kept = keep([(0, 1, 0.5, 1), (0, 1, 0.25, 0), (1, 0, 1.0, 0), (0, 1, 0.0, 1)], 2, [False, False, True, False])
    counts = count_steps(kept, Spaces(2, 2))
    assert counts.visits_SA.tolist() == [[0, 3], [1, 0]]
    assert counts.reward_SA.tolist() == [[0, 0.75], [1, 0]]
    assert counts.next_SAS.tolist() == [[[0, 0], [1, 2]], [[0, 0], [0, 0]]]
    with pytest.raises(StepError, match="numbers of states"):
        find_states(torch.tensor([[0.5, 0.5]]))


def test_an_actor_is_a_table_that_acts_by_its_largest_value():
    actor, value = Networks(Spaces(3, 2), TABLE).make_choice_values(), np.array([[0.0, 1.0], [2.0, 1.0], [-3.0, -2.0]])
    write_table(actor, value)
    assert read_table(actor).tolist() == value.tolist()
    assert act(actor, np.eye(3, dtype=np.float32), explore=False).tolist() == [1, 0, 1]


def test_ucb_vi_adds_the_papers_bonus_and_never_raises_a_value():
    """Two steps in two states; (0, 0) taken twice, (0, 1) once, state 1 never: all by hand."""
    algorithm = make(planning.ucb_vi, 2, 2, horizon=2, bonus=0.01, delta=0.1)
    assert read_table(algorithm.actor).tolist() == [[2, 2], [2, 2]]
    kept = keep([(0, 0, 1.0, 1), (0, 0, 0.0, 0), (0, 1, 0.25, 0)], 2)
    algorithm.fit(kept, None)
    scale = 0.01 * 2 * math.log(5 * 4 * 3 / 0.1)
    first = [0.5 + scale / math.sqrt(2), 0.25 + scale]
    value = [min(2, max(first)), 2.0]
    expected = [min(2, first[0] + 0.5 * value[1] + 0.5 * value[0]), min(2, first[1] + value[0])]
    assert read_table(algorithm.actor)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert read_table(algorithm.actor)[1].tolist() == [2, 2]
    before = read_table(algorithm.actor)
    write_table(algorithm.actor, before - 1)
    algorithm.fit(kept, None)
    assert (read_table(algorithm.actor) <= before - 1 + 1e-6).all()


def test_with_many_counts_and_no_bonus_ucb_vi_has_the_values_of_backward_induction():
    process = draw_process(4, 2, 3, 0)
    chances, rows = np.round(process.transition_SAS * 400).astype(int), []
    for step in range(3):
        for (state, action, after), count in np.ndenumerate(chances):
            following = min(step + 1, 2) * 4 + after
            rows += [(step * 4 + state, action, process.reward_SA[state, action], following, step == 2)] * count
    kept = keep([row[:4] for row in rows], 12, [row[4] for row in rows])
    algorithm = make(planning.ucb_vi, 12, 2, horizon=3, bonus=0.0)
    algorithm.fit(kept, None)
    assert read_table(algorithm.actor) == pytest.approx(solve(process).reshape(12, 2), abs=0.01)


@pytest.mark.parametrize(
    ("loss", "bar"),
    [
        ({"use": "ucb_vi", "horizon": 4, "bonus": 0.01}, 0.99),
        ({"use": "dyna", "experience": "counted", "gamma": 1.0}, 0.97),
        ({"use": "dr_rpo", "horizon": 4, "radius": 0.0, "step_size": 50.0, "bonus": 2.0}, 0.9),
        ({"use": "contrastive_ucb", "horizon": 4, "rank": 16, "bonus": 0.3}, 0.95),
        ({"use": "policy_mirror_descent", "gamma": 1.0, "updates": 2}, 0.97),
    ],
    ids=lambda value: value["use"] if isinstance(value, dict) else "",
)
def test_a_policy_that_plans_comes_near_the_best_values_and_a_killed_one_ends_alike(loss, bar, tmp_path, monkeypatch):
    """The share of the best mean return over all starts, exactly; a checkpoint in the middle changes no bit."""
    from learning.control import training
    from learning.control.policies.policy import load_control_policy

    process = draw_process(4, 2, 4, 1)
    settings = {"networks": {"hidden_sizes": []}, "environment_steps": 1200, "learning_starts": 1, "save_steps": 500}
    explores = loss["use"] in ("dyna", "contrastive_ucb", "policy_mirror_descent")
    settings |= {"exploration": {"use": "epsilon_greedy", "epsilon": 0.3}} if explores else {}
    stage = Control.model_validate({"kind": "control", "env": {"use": "finite", "number": 1}, "loss": loss, **settings})
    (tmp_path / "whole").mkdir()
    result = control.run(stage, Context({}, tmp_path / "whole", tmp_path / "a", seed=2))
    assert result.metrics["updates"] == {"dyna": 12000, "policy_mirror_descent": 600}.get(loss["use"], 300)
    actor = load_control_policy(tmp_path / "whole/outputs/model").actor
    choice = act(actor, np.eye(16, dtype=np.float32), explore=False).reshape(4, 4)
    share = evaluate(process, np.eye(2)[choice]).mean() / solve(process)[0].max(1).mean()
    assert share > bar
    iterate = training.ControlLoop.iterate

    def interrupt(self, iteration):
        if iteration == 700:
            raise KeyboardInterrupt
        iterate(self, iteration)

    monkeypatch.setattr(training.ControlLoop, "iterate", interrupt)
    (tmp_path / "cut").mkdir()
    with pytest.raises(KeyboardInterrupt):
        control.run(stage, Context({}, tmp_path / "cut", tmp_path / "b", seed=2))
    monkeypatch.setattr(training.ControlLoop, "iterate", iterate)
    again = control.run(stage, Context({}, tmp_path / "cut", tmp_path / "b", seed=2))
    for file in ("actor.safetensors", "networks.safetensors"):
        first, second = (tmp_path / name / "outputs/model" / file for name in ("whole", "cut"))
        assert first.read_bytes() == second.read_bytes(), file
    assert result.metrics == again.metrics


def test_dyna_updates_by_the_rule_of_q_learning(monkeypatch):
    """One step drawn again and again: Q becomes r (1 − (1 − α)^n) with a next state of value 0."""
    stage = Control.model_validate(
        {"kind": "control", "env": {"use": "finite"}, "environment_steps": 4, "learning_starts": 1}
        | {"loss": {"use": "dyna", "experience": "replayed", "step_size": 0.5, "updates": 3, "gamma": 0.5}}
    )
    from learning.lookup import bind

    algorithm = bind(stage.loss, "loss")(Networks(Spaces(2, 2), TABLE))
    algorithm.fit(keep([(0, 1, 2.0, 1)], 2), np.random.default_rng(0))
    assert read_table(algorithm.actor).tolist() == [[0, 1.75], [0, 0]]
    write_table(algorithm.actor, np.array([[0.0, 0.0], [0.0, 8.0]]))
    algorithm.fit(keep([(0, 1, 2.0, 1)], 2, [True]), np.random.default_rng(0))
    assert read_table(algorithm.actor)[0].tolist() == [0, 1.75]  # nothing follows an end
    algorithm.fit(keep([(0, 0, 2.0, 1)], 2), np.random.default_rng(0))
    assert read_table(algorithm.actor)[0, 0] == 6 * 0.875  # 2 + 0.5 · 8


def test_a_model_of_counts_gives_their_shares_and_mean_rewards():
    kept = keep([(0, 0, 1.0, 1)] * 3 + [(0, 0, 3.0, 0)], 2, [False, True, False, False])
    drawn = dyna.counted(kept, np.random.default_rng(0), 8000, Spaces(2, 2))
    assert set(drawn.state_B.tolist()) == set(drawn.action_B.tolist()) == {0}
    assert set(drawn.reward_B.tolist()) == {1.5}
    assert drawn.goes_on_B.mean() == pytest.approx(0.75, abs=0.02)
    assert (drawn.next_B[drawn.goes_on_B] == 1).mean() == pytest.approx(2 / 3, abs=0.02)


def test_switches_turn_over_and_earn_the_sum_of_their_numbers():
    worlds = Worlds(lambda: factored.switches(factors=3, limit=5), 1, seed=0, purpose="test")
    state, rng = worlds.observation.argmax(), np.random.default_rng(0)
    for step in range(5):
        action = int(rng.integers(3))
        bits = [state >> i & 1 for i in range(3)]
        bits[action] = 1 - bits[action]
        steps = worlds.step(np.array([action]))
        state = steps.next_observation.argmax()
        assert state == bits[0] + 2 * bits[1] + 4 * bits[2]
        assert steps.reward[0] == pytest.approx((bits[0] + 2 * bits[1] + 3 * bits[2]) / 3)
        assert steps.truncated[0] == (step == 4)
        assert not steps.terminated[0]


@pytest.mark.parametrize("name", ["ucb_vi", "dr_rpo", "contrastive_ucb"])
def test_planning_needs_tables(name):
    with pytest.raises(StepError, match=f"loss {name} plans with tables of choices"):
        getattr(planning, name)(Networks(Spaces(3, 2), NetworkSettings(hidden_sizes=[4])), horizon=2)


@pytest.mark.parametrize("loss", [{"use": "ucb_vi", "horizon": 4}, {"use": "hybrid_npg"}], ids=lambda loss: loss["use"])
def test_terms_beside_a_plan_are_refused(loss, tmp_path):
    stage = Control.model_validate(
        {
            "kind": "control",
            "env": {"use": "finite"},
            "environment_steps": 4,
            "learning_starts": 1,
            "loss_terms": {"x": "cloning"},
        }
        | {"networks": {"hidden_sizes": []}, "loss": loss}
    )
    with pytest.raises(StepError, match=f"loss {loss['use']} fits the steps itself: remove loss_terms"):
        control.run(stage, Context({}, tmp_path, tmp_path / "c", seed=0))


def test_best_values_of_the_counted_model_are_exact_on_exact_counts():
    """Every transition as often as its chance, and a discount: against sweeps of the exact process."""
    process = draw_process(4, 2, 3, 0)
    chances = np.round(process.transition_SAS * 600).astype(int)
    rows = [
        (state, action, process.reward_SA[state, action], after)
        for (state, action, after), count in np.ndenumerate(chances)
        for _ in range(count)
    ]
    algorithm = planning.value_iteration(Networks(Spaces(5, 2), TABLE), gamma=0.8)
    made = algorithm.fit(keep(rows, 5), None)
    expected, model = np.zeros((4, 2)), chances / chances.sum(-1, keepdims=True)
    for _ in range(200):
        expected = process.reward_SA + 0.8 * model @ expected.max(1)
    assert read_table(algorithm.actor)[:4] == pytest.approx(expected, abs=1e-4)
    assert read_table(algorithm.actor)[4].tolist() == [0, 0]  # a state that was never seen
    assert made["visited"] == pytest.approx(0.8)


def test_values_without_end_or_discount_are_an_error():
    algorithm = planning.value_iteration(Networks(Spaces(1, 2), TABLE), gamma=1.0)
    with pytest.raises(StepError, match="lower gamma"):
        algorithm.fit(keep([(0, 0, 1.0, 0)], 1), None)
