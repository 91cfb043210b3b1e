"""OER: which steps a model keeps for a policy, wherever it goes, and a clone that no value pulls at.

Not shown: D4RL's sequences, many heads.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import Buffer
from learning.control.losses.experience_selection import (
    choose_nearest,
    fit_dynamics,
    take_steps,
    visit_states,
)
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import join_transitions, read_transitions, write_transitions
from learning.lookup import bind
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect, control
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/oer.yaml")
STAGES = RECIPE.stages
SPACES = Spaces(2, 2, (-1.0, -1.0), (1.0, 1.0), (2,))


def line(*places):
    return np.array(places, np.float32)[:, None]


def walk(by, length):
    """States of a policy that always moves by a number, in the exact model, from 0 on."""
    return visit_states(line(0), lambda shown: np.full_like(shown, by), lambda shown, action: shown + action, length)


def test_the_exact_model_keeps_the_states_that_the_policy_visits():
    """States 0, 1, 2, 9: to the right 0, 1, 2. A policy that goes elsewhere keeps others; random choices may keep 9."""
    states = line(0, 1, 2, 9)
    assert sorted(choose_nearest(walk(1, 3), states, 3)) == [0, 1, 2]
    assert sorted(choose_nearest(walk(9, 3), states, 3)) == [0, 2, 3]
    states = line(0, 1, 2, 3, -1, -2, -3, 0.5, 0.2, -0.1)
    assert sorted(states[choose_nearest(walk(1, 4), states, 4), 0]) == [0, 1, 2, 3]
    assert sorted(states[choose_nearest(walk(-1, 4), states, 4), 0]) == [-3, -2, -1, 0]


def test_late_states_of_rollouts_are_kept_as_often_as_early_ones():
    """Ten rollouts of five steps, a buffer of five among many steps near the start: one of each step."""
    start = np.zeros((10, 1), np.float32)
    visited = visit_states(start, lambda shown: shown * 0 + 1, lambda shown, action: shown + action, 5)
    assert visited[:, 0].tolist() == [float(step) for step in range(5) for _ in range(10)]
    states = np.concatenate([np.random.default_rng(0).normal(0, 0.1, (100, 1)), line(1, 2, 3, 4)])
    kept = states[choose_nearest(visited, states, 5), 0]
    assert kept.round().tolist() == [0, 1, 2, 3, 4]


def test_no_step_is_kept_twice():
    assert sorted(choose_nearest(walk(0, 4), line(5, 6, 7, 8), 4)) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The first task's steps, good and random ones."""
    made = {}
    for name in ("first_good_steps", "first_random_steps"):
        folder = tmp_path_factory.mktemp("oer") / name
        folder.mkdir()
        collect.run(STAGES[name], Context({}, folder, folder / "checkpoints", seed=1))
        made[name] = folder / "outputs/transitions"
    return made


def push_always(folder, by):
    """Write a policy that always pushes a point in a direction."""
    settings = NetworkSettings(hidden_sizes=[])
    actor = Networks(SPACES, settings).make_deterministic_actor()
    with torch.no_grad():
        for name, parameter in actor.named_parameters():
            parameter.zero_()
            if name.endswith("bias"):
                parameter.copy_(torch.atanh(torch.tensor(by)))
    folder.mkdir()
    ControlPolicy(SPACES, settings, "make_deterministic_actor", actor).save(folder, {})
    return folder


def select(name, folder, inputs):
    """Run a stage of the recipe that selects steps."""
    folder.mkdir()
    given = {**inputs, **{f"inputs.{port}": path for port, path in inputs.items()}}
    context = Context(given, folder, folder / "checkpoints", seed=1)
    return bind(STAGES[name].function, "function")(context), read_transitions(context.output("transitions"))


def give(data, policy, **more):
    return {"data": data["first_good_steps"], "data_random": data["first_random_steps"], "policy": policy, **more}


def test_what_is_kept_follows_the_policy_in_the_learned_model(data, tmp_path):
    """The goal is to the right: one policy goes there, another one down, away from most steps."""
    both = join_transitions([read_transitions(path) for path in data.values()])
    kept = {}
    for name, by in (("right", (0.5, 0.0)), ("down", (0.0, -0.5)), ("nowhere", (0.0, 0.0))):
        policy = push_always(tmp_path / f"policy-{name}", by)
        metrics, kept[name] = select("first_kept", tmp_path / name, give(data, policy))
        assert len(kept[name]) == metrics["steps"] == 50
        assert metrics["distance"] < metrics["data_distance"]
    means = {name: one.observation.mean(0) for name, one in kept.items()}
    assert means["right"][0] > means["nowhere"][0] + 0.4 > means["nowhere"][0]
    assert means["down"][1] < means["nowhere"][1] - 0.2
    late = {name: (one.observation[:, 0] > 0).mean() for name, one in kept.items()}
    assert late["right"] > 0.12
    assert late["nowhere"] == 0
    policy = tmp_path / "policy-right"
    _, random = select("first_kept_random", tmp_path / "random", give(data, policy))
    assert len(random) == 50
    assert random.observation.mean(0) == pytest.approx(both.observation.mean(0), abs=0.25)
    whole = {tuple(row) for row in both.observation.tolist()}
    assert {tuple(row) for row in kept["right"].observation.tolist()} <= whole


def test_the_next_tasks_buffer_has_what_was_kept_before(data, tmp_path):
    policy = push_always(tmp_path / "policy", (0.5, 0.0))
    _, before = select("first_kept", tmp_path / "first", give(data, policy))
    elsewhere = push_always(tmp_path / "elsewhere", (0.0, -0.5))
    inputs = give(data, elsewhere, buffer=tmp_path / "first/outputs/transitions")
    metrics, both = select("tasks-1-kept", tmp_path / "second", inputs)
    assert metrics["steps"] == len(both) == 100
    assert both.observation[:50].tolist() == before.observation.tolist() != both.observation[50:].tolist()
    (tmp_path / "few").mkdir()
    write_transitions(tmp_path / "few", take_steps(before, np.arange(30)))
    with pytest.raises(StepError, match="size 50, and the data have 30"):
        select("first_kept", tmp_path / "third", {"data": tmp_path / "few", "policy": policy})


def test_the_model_predicts_where_a_push_leads(data):
    torch.manual_seed(0)
    both = join_transitions([read_transitions(path) for path in data.values()])
    advance = fit_dynamics(both, 500, 1e-2, 64)
    shown, action = both.observation[:50], both.action[:50]
    assert advance(shown, action) == pytest.approx(both.next_observation[:50], abs=0.05)
    assert take_steps(both, np.array([3, 7])).truncated.all()


def make(name):
    torch.manual_seed(0)
    return bind(STAGES[name].loss, "loss")(Networks(SPACES, NetworkSettings(hidden_sizes=[8])))


def ask(name, term, algorithm, batch, **inputs):
    """A term of a stage of the recipe."""
    bound = bind(
        STAGES[name].loss_terms[term], f"loss_terms.{term}", {f"loss_terms.{term}.{k}": v for k, v in inputs.items()}
    )
    return bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})


@pytest.fixture
def batch(data):
    both = join_transitions([read_transitions(path) for path in data.values()])
    buffer = Buffer(len(both), both.spaces)
    buffer.add(both)
    return buffer.make_batch(torch.arange(0, len(both), 10))


def test_the_clones_loss_is_two_mean_squares(data, batch, tmp_path):
    """Of the clone's from the task policy's actions on the task's steps, and from the kept actions on kept steps."""
    policy = push_always(tmp_path / "policy", (0.5, -0.25))
    _, kept = select("first_kept", tmp_path / "first", give(data, policy))
    algorithm = make("tasks-1-continual")
    with torch.no_grad():
        acted = algorithm.actor(batch.select("observation"))["action"]
        on_kept = load_actions(algorithm.actor, kept.observation)
    follow = ask("tasks-1-continual", "loss_bc", algorithm, batch, policy=policy)
    assert follow.item() == pytest.approx((acted - torch.tensor([0.5, -0.25])).square().mean().item(), rel=1e-5)
    replay = ask("tasks-1-continual", "kept", algorithm, batch, buffer=tmp_path / "first/outputs/transitions")
    assert replay.item() == pytest.approx(
        (on_kept - torch.from_numpy(kept.action.copy())).square().mean().item(), rel=1e-5
    )
    terms = STAGES["tasks-1-continual"].loss_terms
    assert (terms["loss_bc"].coef, terms["kept"].coef) == (1.0, 1.0)
    drawn = bind(STAGES["tasks-1-continual"].loss.model_validate("bc"), "loss")(Networks(SPACES, NetworkSettings()))
    with pytest.raises(StepError, match="deterministic"):
        ask("tasks-1-continual", "loss_bc", drawn, batch, policy=policy)


def load_actions(actor, observation):
    from tensordict import TensorDict

    return actor(TensorDict({"observation": torch.from_numpy(observation.copy())}, [len(observation)]))["action"]


def test_no_value_pulls_at_the_clone_and_one_pulls_at_the_single_policy(batch, data, tmp_path):
    """The clone has no critics: its gradient is that of the two squares alone. The single policy's loss has −λQ."""
    algorithm = make("tasks-1-continual")
    assert {name.split(".")[0] for name, _ in algorithm.loss.named_parameters()} == {"actor_network"}
    policy = push_always(tmp_path / "policy", (0.5, 0.0))
    sum_of_terms = ask("tasks-1-continual", "loss_bc", algorithm, batch, policy=policy)
    assert set(algorithm.terms) - set(STAGES["tasks-1-continual"].loss_terms) == set()
    sum_of_terms.backward()
    acted = algorithm.actor(batch.select("observation"))["action"]
    wanted = torch.autograd.grad((acted - torch.tensor([0.5, 0.0])).square().mean(), list(algorithm.actor.parameters()))
    found = [parameter.grad for parameter in algorithm.actor.parameters()]
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(found, wanted, strict=True))
    single = make("tasks-1-single")
    single.loss(batch)["loss_actor"].backward()
    before = [p.grad.clone() for n, p in single.loss.named_parameters() if n.startswith("actor_network")]
    with torch.no_grad():
        for name, parameter in single.loss.named_parameters():
            if name.startswith("qvalue_network"):
                parameter.mul_(3.0)
    single.loss.zero_grad()
    single.loss(batch)["loss_actor"].backward()
    after = [p.grad for n, p in single.loss.named_parameters() if n.startswith("actor_network")]
    assert not all(torch.allclose(a, b) for a, b in zip(before, after, strict=True))


def test_a_clone_learns_a_task_and_keeps_the_one_before(data, tmp_path):
    """The recipe's stage: after it the clone follows the task policy on its steps and the kept steps on theirs."""
    policy = push_always(tmp_path / "task", (0.5, 0.0))
    _, kept = select("first_kept", tmp_path / "first", give(data, policy))
    moved = replace(kept, observation=kept.observation - np.array([0, 2.4], np.float32), action=0 * kept.action - 0.5)
    (tmp_path / "moved").mkdir()
    write_transitions(tmp_path / "moved", moved)
    stage = STAGES["tasks-1-continual"].model_copy(update={"max_steps": 120, "model": None})
    inputs = {"data.0": data["first_good_steps"], "data.1": data["first_random_steps"]}
    inputs |= {"loss_terms.loss_bc.policy": policy, "loss_terms.kept.buffer": tmp_path / "moved"}
    context = Context(inputs, tmp_path / "run", tmp_path / "run/checkpoints", seed=1)
    context.folder.mkdir()
    control.run(stage, context)
    actor = load_control_policy(context.output("model")).actor
    with torch.no_grad():
        at_old = load_actions(actor, moved.observation).mean(0)
        at_new = load_actions(actor, kept.observation).mean(0)
    assert at_old.tolist() == pytest.approx([-0.5, -0.5], abs=0.12)
    assert at_new.tolist() == pytest.approx([0.5, 0.0], abs=0.12)


def test_worlds_follow_each_other_and_none_is_behind_the_last():
    goals = [tuple(bind(STAGES[name].env)().goal.tolist()) for name in ("first_good_steps", "tasks-1-good_steps")]
    goals.append(tuple(bind(STAGES["tasks-2-random_steps"].env)().goal.tolist()))
    assert [(x, round(y, 1)) for x, y in goals] == [(1, 1.2), (-1, 0), (1, -1.2)]
    none = {"use": "nth_of", "worlds": [{"use": "point"}], "number": 2}
    with pytest.raises(StepError, match="no world 2"):
        bind(WorldUse.model_validate(none))()
    good = bind(STAGES["tasks-2-good_steps"].policy)
    shown = np.array([[-1.0, -1.2], [1.0, 0.0]], np.float32)
    assert good.ask(0, {"observation_NO": shown, "spaces": SPACES}) == pytest.approx(
        np.array([[0.5, 0.0], [-0.5, 0.0]]), abs=1e-6
    )


def read_inputs(name):
    """The steps that a step reads, by port."""
    return {port.path: port.steps for port in RECIPE.ports(name)}


@pytest.mark.parametrize(("n", "before"), [(1, "first_"), (2, "tasks-1-")])
def test_the_arms_differ_in_what_is_kept_or_in_the_number_of_policies(n, before):
    reads = {name: read_inputs(f"tasks-{n}-{name}") for name in ("continual", "random", "single", "task", "kept")}
    steps = {"data.0": (f"tasks-{n}-good_steps",), "data.1": (f"tasks-{n}-random_steps",)}
    starts = {"continual": f"{before}continual", "random": f"{before}random" if n > 1 else "first_continual"}
    starts["single"] = f"{before}single" if n > 1 else "first_task"
    kept = {"continual": f"{before}kept", "random": f"{before}kept_random", "single": f"{before}kept_random"}
    for name, start in starts.items():
        expected = {**steps, "model": (start,), "loss_terms.kept.buffer": (kept[name],)}
        followed = {} if name == "single" else {"loss_terms.loss_bc.policy": (f"tasks-{n}-task",)}
        assert {path: tuple(names) for path, names in reads[name].items()} == expected | followed
    assert {path: tuple(names) for path, names in reads["task"].items()} == steps
    assert tuple(reads["kept"]["inputs.buffer"]) == (f"{before}kept",)
    assert tuple(reads["kept"]["inputs.policy"]) == (f"tasks-{n}-task",)
    continual, random, single = (STAGES[f"tasks-{n}-{name}"].model_dump() for name in ("continual", "random", "single"))
    for settings in (continual, random, single):
        settings.pop("loss_terms"), settings.pop("model")
    assert continual == random
    assert (continual.pop("loss"), single.pop("loss")) == ({"use": "bc", "stochastic": False}, {"use": "td3_bc"})
    assert (continual.pop("algorithm"), single.pop("algorithm")) == (None, "td3_bc")
    assert continual == single


def test_the_report_is_of_all_tasks_and_buffers_have_fifty_steps_of_each():
    assert STAGES["first_kept"].function.options == {"size": 50}
    assert STAGES["first_kept_random"].function.options == {"size": 50, "by": "random"}
    assert [use.options["x"] for use in (STAGES["report"].env, *STAGES["report"].other_envs)] == [1, -1, 1]
    assert STAGES["forgetting"].env == STAGES["first_good_steps"].env
    assert list(STAGES["forgetting"].models) == ["first", "single", "random", "continual"]
