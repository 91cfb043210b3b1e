"""SRL: actor, policy and trainer workers joined by streams give the batches and weights of one process.

Not shown: thousands of cores, GPUs for policy workers, the throughput.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from learning.control import dataflow
from learning.control.buffers.rollouts import add_previous_policy
from learning.control.dataflow import ActorStream, PolicyStream, PolicyWorker, WorldsActor
from learning.control.losses.standard import ppo
from learning.control.networks.build import Networks
from learning.control.sample_stream import Collection, Sample, SampleStream
from learning.control.stepping.worlds import Worlds
from learning.control.training import ControlLoop
from learning.lookup import bind
from learning.parallel.actors import Threads
from lineage.layout import Layout
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/srl.yaml").stages
SHORT = {"environment_steps": 96, "rollout_steps": 16, "batch_size": 16, "num_iterations": 2}
"""Three rollouts of two worlds."""


def count_workers(stage):
    """Threads in the place of a stage's workers."""
    return Threads({name: role.workers for name, role in stage.resources.roles()})


def train(folder, name, monkeypatch, *, actors=None, seed=1, **changes):
    """Train a stage of the recipe for a short time; return the digests of what it wrote, and of its batches."""
    stage = STAGES[name].model_copy(update={**SHORT, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    context = Context({}, folder, folder / "checkpoints", seed=seed, actors=actors)
    batches, update, act = [], ControlLoop.update, PolicyWorker.act

    def act_elsewhere(self, observation, state):
        """Threads share random numbers, which processes do not."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            return act(self, observation, state)

    def note(self, batch, iteration):
        batches.append(hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in ("observation", "action"))))
        update(self, batch, iteration)

    with monkeypatch.context() as patch:
        patch.setattr(ControlLoop, "update", note)
        patch.setattr(PolicyWorker, "act", act_elsewhere)
        result = control.run(stage, context)
    written = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(context.output("model").iterdir())}
    if actors is not None:
        actors.close()
    return written, [one.hexdigest() for one in batches], result


@pytest.mark.parametrize("name", ["dataflow", "a2c"])
def test_the_dataflow_gives_the_batches_and_weights_of_one_process(name, tmp_path, monkeypatch):
    workers = count_workers(STAGES[name])
    assert workers.sizes == {"actor": 2, "policy": 1}
    alone, batches, _ = train(tmp_path / "alone", name, monkeypatch)
    spread, same_batches, result = train(tmp_path / "spread", name, monkeypatch, actors=workers)
    assert len(batches) > 3
    assert batches == same_batches
    assert alone == spread
    assert result.metrics["environment_steps"] == 96
    other, *_ = train(tmp_path / "other", name, monkeypatch, seed=2)
    assert other["actor.safetensors"] != alone["actor.safetensors"]


def test_a_loss_on_kept_steps_is_the_same_with_workers_too(tmp_path, monkeypatch):
    """The workers do not know what the trainer does with steps: deep Q-learning keeps them."""
    dqn = {"loss": type(STAGES["dataflow"].loss).model_validate("dqn"), "learning_starts": 16, "batch_size": 8}
    dqn |= {"environment_steps": 60}
    alone = train(tmp_path / "alone", "dataflow", monkeypatch, **dqn)[:2]
    workers = count_workers(STAGES["dataflow"])
    assert train(tmp_path / "spread", "dataflow", monkeypatch, actors=workers, **dqn)[:2] == alone


def test_a_training_that_was_stopped_goes_on_with_other_workers(tmp_path, monkeypatch):
    whole, *_ = train(tmp_path / "whole", "dataflow", monkeypatch)
    saved = {"save_steps": 32}
    train(tmp_path / "cut", "dataflow", monkeypatch, actors=Threads({"actor": 2, "policy": 1}), **saved)
    assert list((tmp_path / "cut/checkpoints").iterdir())
    again, *_ = train(tmp_path / "cut", "dataflow", monkeypatch, actors=Threads({"actor": 1, "policy": 1}), **saved)
    assert again == whole


def test_actors_hold_no_networks_and_one_call_acts_for_both(tmp_path, monkeypatch):
    calls, made = [], []
    act, begin = PolicyWorker.act, WorldsActor.begin

    def note_act(self, observation, state):
        calls.append(observation.shape)
        return act(self, observation, state)

    def note_begin(self, first, count):
        made.append(self)
        return begin(self, first, count)

    monkeypatch.setattr(PolicyWorker, "act", note_act)
    monkeypatch.setattr(WorldsActor, "begin", note_begin)
    train(tmp_path / "spread", "dataflow", monkeypatch, actors=count_workers(STAGES["dataflow"]))
    assert calls == [(2, 4)] * 48
    assert [len(one.worlds.worlds) for one in made] == [1, 1]
    held = [value for one in made for value in vars(one).values()]
    assert not [value for value in held if isinstance(value, torch.nn.Module | torch.Tensor)]
    tensors, _ = made[0].worlds.save()
    assert not [name for name in tensors if "weight" in name or "bias" in name]


def test_another_algorithm_changes_the_trainer_alone(tmp_path, monkeypatch):
    """Actors and policy worker of PPO and of A2C are made of the same."""
    made, start = {}, Threads.start
    for name in ("dataflow", "a2c"):
        with monkeypatch.context() as patch:
            patch.setattr(
                Threads,
                "start",
                lambda self, *args, n=name, **k: (made.setdefault(n, []).append(args), start(self, *args, **k))[1],
            )
            train(tmp_path / name, name, monkeypatch, actors=count_workers(STAGES[name]))
    assert made["dataflow"] == made["a2c"]
    assert [args[:2] for args in made["a2c"]] == [("actor", WorldsActor), ("policy", PolicyWorker)]
    assert STAGES["dataflow"].loss != STAGES["a2c"].loss


def test_samples_older_than_the_bound_are_dropped():
    stream = SampleStream(1)
    for version in (0, 1):
        stream.put(Sample(version, version))
    assert stream.take(1).batch == 0
    stream.put(Sample(2, 2))
    assert stream.take(3).batch == 2
    assert stream.dropped == 1
    stream.put(Sample(5, 5))
    with pytest.raises(StepError, match="version 5 reached a trainer of version 4"):
        stream.take(4)
    stream.put(StepError("env: broken"))
    with pytest.raises(StepError, match="env: broken"):
        stream.take(4)
    strict = SampleStream(0)
    strict.put(Sample(3, "now"))
    assert strict.take(3).batch == "now"
    assert strict.samples.maxsize == 1


@pytest.fixture
def streams():
    """Two actors and a policy worker for CartPole, and the actor that is trained."""
    workers = Threads({"actor": 2, "policy": 1})
    use = WorldUse.model_validate(STAGES["dataflow"].env.model_dump())
    worlds = ActorStream(workers.start("actor", WorldsActor, use, {}, 1), 2)
    torch.manual_seed(0)
    algorithm = ppo(Networks(worlds.spaces, NetworkSettings(hidden_sizes=[8])))
    remote = workers.start(
        "policy", PolicyWorker, "make_stochastic_actor", worlds.spaces, NetworkSettings(hidden_sizes=[8])
    )
    yield worlds, PolicyStream(remote[0], algorithm.actor), algorithm.actor
    workers.close()


def test_a_sample_has_the_log_probabilities_of_the_weights_that_drew_it(streams):
    worlds, policy, actor = streams
    collection = Collection(worlds, policy, 8, SampleStream(1))
    before = dataflow.copy_weights(actor)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(1.0)
    sample = collection.collect()
    assert (sample.version, sample.batch.batch_size) == (0, (2, 8))
    drawn = sample.batch["action_log_prob"].clone()
    actor.load_state_dict(before, strict=False)
    with torch.no_grad():
        add_previous_policy(actor, sample.batch)
    assert torch.equal(drawn, sample.batch["action_log_prob"])
    with torch.no_grad():
        next(iter(actor.parameters())).add_(1.0)
    collection.publish(4)
    newer = collection.collect()
    assert newer.version == 4
    drawn = newer.batch["action_log_prob"].clone()
    with torch.no_grad():
        add_previous_policy(actor, newer.batch)
    assert torch.equal(drawn, newer.batch["action_log_prob"])


def test_asynchronous_training_uses_no_sample_older_than_the_bound(tmp_path, monkeypatch):
    taken, take = [], SampleStream.take

    def note(self, version):
        sample = take(self, version)
        taken.append((sample.version, version))
        return sample

    monkeypatch.setattr(SampleStream, "take", note)
    _, batches, result = train(
        tmp_path / "spread", "asynchronous", monkeypatch, actors=count_workers(STAGES["asynchronous"]), save_steps=32
    )
    assert [version for _, version in taken] == [0, 1, 2]
    assert all(0 <= version - drawn <= 1 for drawn, version in taken)
    assert len(batches) == 3 * 2 * 2
    assert result.metrics["dropped_samples"] >= 0
    assert STAGES["asynchronous"].max_staleness == 1


def test_an_error_of_an_actor_ends_the_training(tmp_path, monkeypatch):
    def fail(self, action):
        raise ValueError("the road ends here")

    monkeypatch.setattr(WorldsActor, "step", fail)
    for name in ("dataflow", "asynchronous"):
        with pytest.raises(StepError, match="the road ends here"):
            train(tmp_path / name, name, monkeypatch, actors=count_workers(STAGES[name]))


def test_worlds_of_actors_are_those_of_one_process():
    use = WorldUse.model_validate(STAGES["dataflow"].env.model_dump())
    make = bind(use, "env")
    whole, workers = Worlds(make, 3, 1, "control"), Threads({"actor": 2})
    parts = ActorStream(workers.start("actor", WorldsActor, use, {}, 1), 3)
    assert [len(places) for places in parts.places] == [2, 1]
    assert np.array_equal(whole.observation, parts.observation)
    rng, ended = np.random.default_rng(0), []
    for _ in range(40):
        action = rng.integers(2, size=3)
        one, other = whole.step(action), parts.step(action)
        assert all(np.array_equal(vars(one)[name], vars(other)[name]) for name in vars(one) if name != "ended")
        assert one.ended == other.ended
        ended += one.ended
    assert {number for number, *_ in ended} == {0, 1, 2}
    tensors, state = whole.save()
    theirs, same = parts.save()
    assert state == same
    assert tensors.keys() == theirs.keys()
    assert all(torch.equal(tensors[name], theirs[name]) for name in tensors)
    fewer = ActorStream(Threads({"actor": 1}).start("actor", WorldsActor, use, {}, 1), 3)
    fewer.restore(theirs, state)
    assert np.array_equal(fewer.step(action).next_observation, whole.step(action).next_observation)
    with pytest.raises(StepError, match="2 workers share 1 worlds"):
        ActorStream(parts.remotes, 1)
    workers.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"resources": {"actor": {"workers": 2}}}, "`actor` and `policy`"),
        ({"resources": {"actor": {"workers": 2}, "policy": {"workers": 2}}}, "one policy worker"),
        ({"num_envs": 1}, "`num_envs`"),
        ({"max_staleness": 1, "relabel": "shape_by_progress"}, "`relabel`"),
        ({"teacher": "random"}, "`teacher`"),
        ({"environment_steps": 0, "max_steps": 1, "data": ["x"]}, "own steps"),
    ],
)
def test_what_workers_cannot_do_is_refused(changes, named):
    given = {"kind": "control", "env": "CartPole-v1", "loss": "ppo", "num_envs": 2, "environment_steps": 2000}
    given["resources"] = {"actor": {"workers": 2}, "policy": {"workers": 1}}
    Control.model_validate(given)
    with pytest.raises(ValidationError, match=named):
        Control.model_validate({**given, **changes})


def test_asynchronous_losses_are_those_with_advantages(tmp_path, monkeypatch):
    dqn = {"loss": type(STAGES["asynchronous"].loss).model_validate("dqn"), "learning_starts": 16}
    with pytest.raises(StepError, match="max_staleness: loss dqn"):
        train(tmp_path / "x", "asynchronous", monkeypatch, actors=count_workers(STAGES["asynchronous"]), **dqn)
    # Without workers they are threads.
    _, batches, result = train(tmp_path / "y", "asynchronous", monkeypatch, actors=Threads({}))
    assert (len(batches), "dropped_samples" in result.metrics) == (12, True)


def test_arms_differ_in_workers_and_staleness_alone():
    settings = {name: STAGES[name].model_dump() for name in ("inline", "dataflow", "asynchronous")}
    workers = {name: one.pop("resources") for name, one in settings.items()}
    assert workers["dataflow"] == workers["asynchronous"]
    assert (workers["dataflow"]["actor"]["workers"], workers["dataflow"]["policy"]["workers"]) == (2, 1)
    assert (workers["inline"]["actor"], workers["inline"]["policy"]) == (None, None)
    assert settings["asynchronous"].pop("max_staleness") == 1
    assert settings["inline"].pop("max_staleness") is settings["dataflow"].pop("max_staleness") is None
    assert settings["inline"] == settings["dataflow"] == settings["asynchronous"]
    assert STAGES["inline"].num_envs == 2


@pytest.mark.slow
def test_processes_of_ray_give_the_weights_of_one_process(tmp_path, monkeypatch):
    """The recipe's stages on Ray and in one process; the asynchronous one ends, too."""
    monkeypatch.chdir(tmp_path)
    path = Path(__file__).parents[2] / "recipes/papers/srl.yaml"
    written = {}
    for executor in ("inprocess", "ray"):
        layout = Layout(tmp_path / executor)
        plan = plan_recipe(path, layout, overrides=["vars.steps=256", "stages.report.episodes=2"])
        outcome = run_plan(plan, layout, executor=executor, prefect=False)
        assert outcome.exit_code == 0, outcome.states
        models = sorted((tmp_path / executor).glob(".posttrain/artifacts/control-*/outputs/model/actor.safetensors"))
        written[executor] = {p.parents[2].name: hashlib.sha256(p.read_bytes()).hexdigest() for p in models}
    same = {name for name, digest in written["ray"].items() if written["inprocess"].get(name) == digest}
    assert len(written["ray"]) == 3
    assert len(same) >= 2
