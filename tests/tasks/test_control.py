"""Kinds collect, control and evaluate_control: what is collected, trained and compared, and that it comes back."""

import json

import numpy as np
import pytest
import torch

from learning.control import training
from learning.control.policies.policy import act, load_control_policy, load_networks
from learning.control.stepping.transitions import read_transitions
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.collect import Collect
from schemas.stages.control import Control
from schemas.stages.evaluate_control import EvaluateControl
from tasks import collect, control, evaluate_control
from tasks.context import Context

FALLING = {"linear": {"from": 1, "to": 0.1, "steps": 40}}
LINE, CORRIDOR = "tests.control_worlds:line", "tests.control_worlds:corridor"
GAME = {"use": "two_step"}
SMALL = {"networks": {"hidden_sizes": [16]}, "batch_size": 16, "learning_starts": 20, "logging_steps": 20}


@pytest.fixture
def execute(tmp_path):
    """Run a stage in a folder of its own, which is returned with the result."""

    def execute(kind, module, inputs=None, name="step", seed=3, **settings):
        stage = kind.model_validate({"kind": kind.model_fields["kind"].annotation.__args__[0], **settings})
        context = Context(inputs or {}, tmp_path / name, tmp_path / name / "checkpoints", seed=seed)
        context.folder.mkdir(exist_ok=True)
        return tmp_path / name / "outputs", module.run(stage, context)

    return execute


@pytest.fixture
def gather(execute):
    def gather(name="data", env=LINE, **settings):
        settings = {"policy": "random", "environment_steps": 60} | settings
        return execute(Collect, collect, env=env, name=name, **settings)[0] / "transitions"

    return gather


@pytest.fixture
def train(execute):
    def train(name="trained", inputs=None, env=LINE, **settings):
        folder, result = execute(Control, control, inputs, name, env=env, **(SMALL | settings))
        return folder / "model", result

    return train


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"loss": "td3", "environment_steps": 60}, [(20, 60), (40, 60), (60, 60)]),
        ({"loss": "ppo", "rollout_steps": 16}, [(32, 48), (48, 48)]),
    ],
)
def test_progress_counts_environment_steps_as_the_curves_do(settings, ends, tmp_path):
    settings = {"kind": "control", "env": LINE, "environment_steps": 48} | SMALL | settings
    seen = []
    context = Context({}, tmp_path / "step", tmp_path / "checkpoints", seed=0, on_progress=seen.append)
    context.folder.mkdir()
    control.run(Control.model_validate(settings), context)
    assert [(event["step"], event["total"]) for event in seen if "total" in event] == ends


def test_collected_steps_follow_each_other_and_add_up(gather):
    t = read_transitions(gather(num_envs=3))
    assert len(t) == 60
    assert np.bincount(t.episode).tolist() == [8, 8, 4] * 3  # episodes of 8 steps, 20 steps of each world
    inside = t.step[1:] > 0
    assert np.array_equal(t.next_observation[:-1][inside], t.observation[1:][inside])
    assert np.allclose(t.reward, -(t.next_observation[:, 0].astype(float) ** 2), atol=1e-6)
    assert t.compute_returns().sum() == pytest.approx(t.reward.sum())
    assert t.truncated.sum() == 9
    assert not t.terminated.any()


def test_whole_episodes_are_shared_out_before_and_not_the_first_that_end(gather):
    t = read_transitions(gather(env=CORRIDOR, environment_steps=None, episodes=7, num_envs=3))
    assert len(np.unique(t.episode)) == 7
    last = np.append(np.diff(t.episode) != 0, True)
    assert (t.terminated | t.truncated)[last].all()
    assert not (t.terminated | t.truncated)[~last].any()
    alone = read_transitions(gather("alone", env=CORRIDOR, environment_steps=None, episodes=3, num_envs=1))
    assert np.array_equal(alone.observation[:1], t.observation[:1])  # world 0 starts alike


def test_offline_training_learns_from_the_better_of_the_data(gather, train, execute):
    data = {"data.0": gather(environment_steps=400)}
    settings = {"loss": {"use": "td3_bc", "gamma": 0.5}, "data": ["d"], "learning_rate": 3e-3, "batch_size": 64}
    model, result = train("td3", data, max_steps=300, **settings)
    cloned, _ = train("bc", data, loss={"use": "bc", "stochastic": False}, data=["d"], max_steps=300)
    gate = {"metric": "mean_return", "against": "cloned", "min_delta": 0}
    _folder, report = execute(
        EvaluateControl,
        evaluate_control,
        {"models.cloned": cloned, "models.td3": model},
        "report",
        env=LINE,
        models={"cloned": "c", "td3": "t"},
        episodes=10,
        num_bootstrap=200,
        gate=[gate],
    )
    assert report.metrics["mean_return.td3"] > report.metrics["mean_return.cloned"] + 0.1
    assert report.metrics["gates_failed"] == 0
    assert result.metrics["updates"] == 300
    assert report.metrics["mean_return"] == report.metrics["mean_return.td3"]


@pytest.mark.parametrize(
    ("loss", "env", "settings"),
    [
        ("sac", LINE, {"buffer_size": 50, "updates_per_step": 0.5}),
        ("td3", LINE, {"exploration": {"use": "gaussian", "std": 0.2}, "num_envs": 2}),
        ("dqn", CORRIDOR, {"exploration": {"use": "epsilon_greedy", "epsilon": FALLING}}),
        ("ppo", CORRIDOR, {"num_envs": 2, "rollout_steps": 10, "num_iterations": 2}),
        ("iql", LINE, {"data": ["d"], "data_share": 0.5}),
        ("dqn", CORRIDOR, {"priority": "td_error", "priority_correction": FALLING, "buffer_size": 50}),
        ("sac", LINE, {"priority": {"use": "td_error", "alpha": 1.0}, "data": ["d"], "data_share": 0.5}),
        ({"use": "redq", "num_critics": 3, "actor_period": 2}, LINE, {"updates_per_step": 2}),
        ({"use": "mbpo", "models": 2}, LINE, {"data": ["d"], "loss_terms": {"model": "dynamics_likelihood"}}),
        ("mappo", GAME, {"num_envs": 2, "rollout_steps": 10, "num_iterations": 2}),
        ("qmix", GAME, {"exploration": {"use": "epsilon_greedy", "epsilon": FALLING}, "num_envs": 2}),
        ("decision_transformer", CORRIDOR, {"data": ["d"], "environment_steps": 0, "max_steps": 120}),
    ],
)
def test_an_interrupted_training_ends_with_the_same_bits(loss, env, settings, gather, train, monkeypatch):
    inputs = {"data.0": gather(env=env)} if "data" in settings else None
    settings = {
        "loss": loss,
        "environment_steps": 120,
        "save_steps": 40,
        "eval_steps": 60,
        "eval_episodes": 2,
    } | settings
    whole, first = train("whole", inputs, env, **settings)
    kept, stop = training.ControlLoop.iterate, {"after": 2 if loss in ("ppo", "mappo") else 40}

    def iterate(self, iteration):
        if iteration > stop["after"]:
            raise KeyboardInterrupt
        kept(self, iteration)

    monkeypatch.setattr(training.ControlLoop, "iterate", iterate)
    with pytest.raises(KeyboardInterrupt):
        train("cut", inputs, env, **settings)
    stop["after"] = 10_000
    cut, second = train("cut", inputs, env, **settings)
    for file in ("actor.safetensors", "networks.safetensors", "config.json"):
        assert (whole / file).read_bytes() == (cut / file).read_bytes(), file
    assert first.metrics == second.metrics
    curves = [
        [json.loads(line) for line in (folder.parents[1] / "metrics.jsonl").read_text().splitlines()]
        for folder in (whole, cut)
    ]
    plain = [{p["step"]: {k: v for k, v in p.items() if k != "time"} for p in curve} for curve in curves]
    assert plain[0] == plain[1]


def test_td3_trains_its_actor_and_moves_its_targets_at_every_second_update(train, monkeypatch):
    """The targets move by tau (0.5 here) of their distance, also that of the critics, which every update trains."""
    kept, moved = training.ControlLoop.update, []

    def weights(loop, beginning):
        state = loop.algorithm.loss.state_dict()
        return torch.cat([value.flatten() for name, value in sorted(state.items()) if name.startswith(beginning)])

    def update(self, batch, iteration):
        names = ("actor_network_params", "qvalue_network_params", "target_actor", "target_qvalue")
        before = [weights(self, name) for name in names]
        kept(self, batch, iteration)
        after = [weights(self, name) for name in names]
        moved.append([not torch.equal(old, new) for old, new in zip(before, after, strict=True)])
        if moved[-1][2]:
            torch.testing.assert_close(after[2], (before[2] + after[0]) / 2)

    monkeypatch.setattr(training.ControlLoop, "update", update)
    train(loss={"use": "td3", "tau": 0.5}, environment_steps=23)
    assert moved == [[True] * 4, [False, True, False, False]] * 2


def test_redq_trains_its_actor_rarely_and_moves_the_targets_of_its_critics_always(train, monkeypatch):
    kept, moved = training.ControlLoop.update, []
    names = ("actor_network_params", "log_alpha", "qvalue_network_params", "target_qvalue")

    def update(self, batch, iteration):
        before = {name: value.clone() for name, value in self.algorithm.loss.state_dict().items()}
        kept(self, batch, iteration)
        after = self.algorithm.loss.state_dict()
        changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
        moved.append([any(one.startswith(name) for one in changed) for name in names])

    monkeypatch.setattr(training.ControlLoop, "update", update)
    settings = {"environment_steps": 22, "updates_per_step": 2}
    _, result = train(loss={"use": "redq", "num_critics": 3, "actor_period": 3}, **settings)
    assert moved == [[True] * 4, [False, False, True, True], [False, False, True, True]] * 2
    assert result.metrics["updates"] == 6


def test_priorities_are_the_errors_of_the_last_update_and_new_steps_come_first(gather, train, monkeypatch):
    """Masses are |δ| where a batch was, the largest one so far where none was."""
    loops, batches, kept = [], [], training.ControlLoop.update

    def update(self, batch, iteration):
        kept(self, batch, iteration)
        loops.append(self)
        batches.append(batch)

    monkeypatch.setattr(training.ControlLoop, "update", update)
    settings = {"loss": "dqn", "priority": {"use": "td_error", "alpha": 1.0}, "priority_correction": 1.0}
    train(env=CORRIDOR, inputs={"data.0": gather(env=CORRIDOR)}, data=["d"], environment_steps=26, **settings)
    tree = loops[-1].priorities
    expected, largest = np.ones(60 + 26), 1.0
    for update_number, batch in enumerate(batches):
        error = batch["td_error"].reshape(-1).double().numpy() ** 0.5 + 1e-6
        expected[batch["place"].numpy()] = error
        largest = max(largest, error.max())
        later = 60 + 20 + update_number
        expected[later:] = np.where(np.arange(later, 86) == later, largest, expected[later:])
    assert len(batches) == 7
    np.testing.assert_allclose(tree.tree[tree.size :][:86], expected)
    assert tree.largest == largest
    assert len({tuple(batch["place"].tolist()) for batch in batches}) == 7


@pytest.mark.parametrize("loss", ["redq", "iql"])
def test_priorities_need_a_loss_that_weights_its_errors(loss, train):
    with pytest.raises(StepError, match=f"loss {loss} gives no weighted errors"):
        train(loss=loss, priority="td_error", environment_steps=40)


def test_a_priority_must_be_a_finite_number_for_each_step(train, monkeypatch):
    monkeypatch.setattr("learning.control.buffers.replay.td_error", lambda error_B: error_B[:1])
    with pytest.raises(StepError, match="priority td_error: it must give 16 finite numbers from 0 on"):
        train(loss="td3", priority="td_error", environment_steps=40)


def test_training_goes_on_from_a_policy_with_all_its_networks(train):
    first, _ = train("first", loss="td3", environment_steps=40)
    second, result = train("second", {"model": first}, loss="td3", model="m", environment_steps=21)
    start, end = load_networks(first), load_networks(second)
    assert result.metrics["updates"] == 2
    assert not result.notices
    moved = [name for name in start if not torch.equal(start[name], end[name])]
    assert moved
    assert all(torch.allclose(start[name], end[name], atol=0.05) for name in start)


def test_networks_that_a_policy_lacks_are_named(gather, train):
    cloned, _ = train("bc", {"data.0": gather()}, loss={"use": "bc", "stochastic": False}, data=["d"], max_steps=30)
    model, result = train("td3", {"model": cloned}, loss="td3", model="m", environment_steps=20, exploration=None)
    assert result.metrics["updates"] == 1
    assert result.notices
    assert all("starts with new weights" in notice and "actor" not in notice for notice in result.notices)
    observation = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    before, after = (load_control_policy(folder).act(observation, explore=False) for folder in (cloned, model))
    assert np.abs(before - after).max() < 0.05  # one update from the cloned actor, not from a new one
    networks = load_networks(model)
    pairs = [(t, networks[f"target_{n}"]) for n, t in networks.items() if n.startswith("actor_network")]
    assert pairs
    assert all(torch.allclose(*pair, atol=0.01) for pair in pairs)


def test_an_actor_of_another_form_is_refused(train):
    first, _ = train("first", loss="td3", environment_steps=20)
    with pytest.raises(StepError, match="make_deterministic_actor, and the loss needs one of make_stochastic_actor"):
        train("second", {"model": first}, loss="sac", model="m", environment_steps=20)


def test_data_and_models_of_other_worlds_are_refused(gather, train):
    data = {"data.0": gather(env=CORRIDOR)}
    with pytest.raises(StepError, match=r"data.0 has other spaces than the env: .*2 choices"):
        train(inputs=data, loss="td3", data=["d"], max_steps=5)


def test_a_loss_on_the_newest_steps_takes_no_data(gather, train):
    with pytest.raises(StepError, match="loss ppo takes the newest steps alone"):
        train(inputs={"data.0": gather(env=CORRIDOR)}, env=CORRIDOR, loss="ppo", data=["d"], max_steps=5)


def test_a_term_replaces_the_losses_own_or_joins_it(gather, train):
    data, settings = {"data.0": gather()}, {"data": ["d"], "max_steps": 20}
    td3 = {"loss": "td3", **settings}
    plain, _ = train("plain", data, **td3)
    joined, result = train("joined", data, loss_terms={"clone": {"use": "cloning", "coef": 2.0}}, **td3)
    replaced, _ = train("replaced", data, loss_terms={"loss_actor": "cloning"}, **td3)
    assert "clone" in result.metrics
    nothing, _ = train("nothing", data, loss_terms={"clone": {"use": "cloning", "coef": 0.0}}, **td3)
    files = [(folder / "actor.safetensors").read_bytes() for folder in (plain, joined, replaced, nothing)]
    assert files[0] == files[3]
    assert len(set(files)) == 3
    cloned, _ = train("cloned", data, loss={"use": "bc", "stochastic": False}, **settings)
    assert (load_control_policy(cloned).actor_form) == "make_deterministic_actor"


def test_a_term_of_the_users_may_ask_for_the_spaces_offline(gather, train):
    settings = {"loss": {"use": "bc", "stochastic": False}, "data": ["d"], "max_steps": 300, "learning_rate": 0.01}
    terms = {"loss_bc": "tests.control_worlds:outside"}
    folder, _ = train(inputs={"data.0": gather()}, loss_terms=terms, **settings)
    policy = load_control_policy(folder)
    action_N = act(policy.actor, np.array([[0.5], [-0.5]], np.float32), explore=False)
    np.testing.assert_allclose(action_N, [[1.0], [1.0]], atol=0.05)


def test_both_sides_of_a_batch_have_their_share(gather, train, monkeypatch):
    seen = []
    kept = training.ControlLoop.update

    def update(self, batch, iteration):
        known = {float(x) for x in self.data.columns["observation"][:, 0]}
        seen.append(sum(float(x) in known for x in batch["observation"][:, 0]))
        kept(self, batch, iteration)

    monkeypatch.setattr(training.ControlLoop, "update", update)
    train(inputs={"data.0": gather()}, loss="td3", data=["d"], data_share=0.25, environment_steps=60)
    assert seen
    assert set(seen) == {4}


def test_a_loss_that_is_not_finite_ends_the_step(gather, train, monkeypatch):
    monkeypatch.setattr(training, "value_at", lambda number, step: float("nan"))
    with pytest.raises(StepError, match=r"the loss of update 0 is not finite .*clone nan"):
        train(inputs={"data.0": gather()}, loss="td3", data=["d"], max_steps=5, loss_terms={"clone": "cloning"})


@pytest.mark.parametrize("damage", ["config", "actor", "form"])
def test_a_damaged_policy_is_an_error_with_its_name(damage, train, execute):
    model, _ = train(loss="td3", environment_steps=20)
    if damage == "config":
        (model / "config.json").write_text("{")
    elif damage == "actor":
        (model / "actor.safetensors").write_bytes(b"12345678nothing")
    else:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"actor": "__init__"}))
    with pytest.raises(StepError, match="control_policy: model cannot be read"):
        execute(EvaluateControl, evaluate_control, {"models.a": model}, "report", env=LINE, models={"a": "m"})


def test_a_pendulum_swings_up_by_its_energy(execute):
    _, result = execute(Collect, collect, env="Pendulum-v1", policy="swing_up", episodes=10, name="expert")
    _, chance = execute(Collect, collect, env="Pendulum-v1", policy="random", episodes=10, name="chance")
    assert result.metrics["mean_return"] > -350
    assert result.metrics["min_return"] > -700
    assert chance.metrics["mean_return"] < -900


def test_the_preset_of_extreme_q_learning_is_iql_with_another_loss_of_values(tmp_path):
    (tmp_path / "r.yaml").write_text(
        f"""stages:
  data: {{kind: collect, env: "{LINE}", policy: random, environment_steps: 20}}
  policy: {{kind: control, env: "{LINE}", algorithm: xql, data: [data], max_steps: 2}}
"""
    )
    stage = load_recipe(tmp_path / "r.yaml").stages["policy"]
    assert stage.loss.use == "iql"
    assert {name: (term.use, term.options) for name, term in stage.loss_terms.items()} == {
        "loss_value": ("gumbel", {"clip": 7.0})
    }
