"""kind: control — train a policy for a world."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from learning.control.buffers.buffer import fill_buffer
from learning.control.dataflow import ACTOR, POLICY, ActorStream, PolicyStream, start_actors, start_policy
from learning.control.losses.critics import find_critic, value_starts
from learning.control.losses.standard import Algorithm
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy, load_control_policy, load_networks
from learning.control.sample_stream import Collection, SampleStream
from learning.control.stepping.episode_tasks import EpisodeTasks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.stepping.worlds import Worlds, require_libraries
from learning.control.training import ControlLoop
from learning.lookup import Bound, asked_of, bind
from learning.models.policy import set_determinism
from learning.parallel.actors import Actors, Threads
from schemas.errors import StepError
from schemas.stages.control import Control
from schemas.use import Use
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, open_account

NETWORKS_BESIDE_THE_ACTOR = (
    *("qvalue_", "value_", "critic_", "dynamics", "mixer_"),
    *("action_model", "state_value", "real_or_simulated"),
)
"""Beginnings of the names of networks; target networks are copies of these."""


def run(stage: Control, context: Context) -> Result:
    """Train from new networks or from `model`; continue from the step's own checkpoints."""
    with find_workers(stage, context.actors) as actors:
        return train(stage, replace(context, actors=actors))


@contextmanager
def find_workers(stage: Control, actors: Actors | None) -> Iterator[Actors | None]:
    """Return the step's workers; where what is asynchronous has none, threads of this process."""
    if stage.max_staleness is None or (actors is not None and actors.size(ACTOR)):
        yield actors
        return
    with closing(Threads({ACTOR: 1, POLICY: 1})) as threads:
        yield threads


def train(stage: Control, context: Context) -> Result:
    """Train with the workers of the context."""
    require_libraries()
    set_determinism(context.seed, context.num_threads)
    make = bind_optional(stage.env, "env", context)
    teacher = bind_optional(stage.teacher, "teacher", context)
    tasks = None if teacher is None else EpisodeTasks(teacher, context.seed)
    worlds = make_worlds(stage, context, make, tasks)
    data = [read_transitions(context.input(f"data.{i}")) for i in range(len(stage.data))]
    spaces = data[0].spaces if worlds is None else worlds.spaces
    for i, part in enumerate(data):
        spaces.require(part.spaces, f"data.{i}")
    start = load_control_policy(context.input("model")) if stage.model is not None else None
    if start is not None:
        spaces.require(start.spaces, "model")
    settings = start.settings if start is not None else stage.networks
    algorithm: Algorithm = bind(stage.loss, "loss")(Networks(spaces, settings))
    if tasks is not None and isinstance(worlds, Worlds):
        tasks.value_of = value_starts(worlds.worlds[0], find_critic(algorithm.loss))
    terms = {name: bind(use, f"loss_terms.{name}", context.inputs) for name, use in stage.loss_terms.items()}
    unused = data and not algorithm.fit_newest and not any("data_batch" in asked_of(bound) for bound in terms.values())
    if algorithm.is_on_policy and (unused or not stage.environment_steps):
        raise StepError(
            f"loss {stage.loss.use} takes the newest steps alone: remove `data` or give a term that asks for "
            "`data_batch`, as cloning_of_data; give `environment_steps`"
        )
    require_fitting_loss(stage, algorithm, spaces)
    notices = [] if start is None else [*continue_from(start, algorithm, context.input("model"))]
    account = open_account(context)
    spending = SpendingReporter(context, account)
    policy_worker = start_policy(context.actors, algorithm.actor_form, spaces, settings, algorithm.actor)
    collection = make_collection(stage, algorithm, worlds, policy_worker)
    loop = ControlLoop(
        stage=stage,
        account=account,
        algorithm=algorithm,
        make=make,
        spaces=spaces,
        worlds=worlds if stage.environment_steps else None,
        data=fill_buffer(data),
        terms=terms,
        exploration=bind_optional(stage.exploration, "exploration", context),
        relabel=bind_optional(stage.relabel, "relabel", context),
        segment_reward=bind_optional(stage.segment_reward, "segment_reward", context),
        priority=bind_optional(stage.priority, "priority", context),
        policy=policy_worker,
        collection=collection,
        reporter=context,
        checkpoints=context.checkpoints,
        seed=context.seed,
    )
    with nullcontext() if collection is None else closing(collection):
        loop.run()
    spending.report()
    policy = ControlPolicy(spaces, settings, algorithm.actor_form, algorithm.actor)
    policy.save(context.output("model"), algorithm.loss.state_dict())
    if worlds is not None:
        worlds.close()
    return Result(summarise(loop), notices=notices)


def summarise(loop: ControlLoop) -> dict[str, float]:
    """Return the last point of the curves, and what was done in all."""
    metrics = dict(loop.curve[-1][1]) if loop.curve else {}
    if loop.collection is not None:
        metrics["dropped_samples"] = loop.collection.stream.dropped
    counts = {"updates": loop.updates, "environment_steps": loop.total * loop.steps_per_iteration}
    return {**metrics, **counts, "trained_parameters": sum(p.numel() for p in loop.parameters.values())}


def make_worlds(
    stage: Control, context: Context, make: Bound | None, tasks: EpisodeTasks | None
) -> Worlds | ActorStream | None:
    """Return the stage's worlds, here or those of actors; None for a stage without."""
    if make is None or stage.env is None:
        return None
    spread = start_actors(context.actors, stage.env, context.inputs, context.seed, stage.num_envs)
    return spread or Worlds(make, stage.num_envs, context.seed, "control", tasks)


def require_fitting_loss(stage: Control, algorithm: Algorithm, spaces: Spaces) -> None:
    """Raise StepError if a loss trains no teams, or them alone, where it should not, or acts where it is offline."""
    if (spaces.agents > 1) != algorithm.is_for_teams:
        raise StepError(
            f"loss {stage.loss.use} does not train teams; {spaces.describe()}: use vdn, qmix, ippo or mappo"
        )
    if algorithm.is_offline and stage.environment_steps:
        raise StepError(f"loss {stage.loss.use} trains on data alone: give `data` and `max_steps`")


def make_collection(
    stage: Control, algorithm: Algorithm, worlds: Worlds | ActorStream | None, policy: PolicyStream | None
) -> Collection | None:
    """Return what collects rollouts while the stage trains; None where both take turns.

    Raise StepError for a loss that cannot train on the rollouts of earlier weights.
    """
    if stage.max_staleness is None:
        return None
    if algorithm.advantage is None:
        raise StepError(
            f"max_staleness: loss {stage.loss.use} has no advantages of rollouts; use ppo, a2c or remove it"
        )
    assert isinstance(worlds, ActorStream)
    assert policy is not None
    return Collection(worlds, policy, stage.rollout_steps, SampleStream(stage.max_staleness))


def bind_optional(use: Use | None, port: str, context: Context) -> Bound | None:
    """Return the function in a slot with its inputs; None for an empty slot."""
    return None if use is None else bind(use, port, context.inputs)


def continue_from(start: ControlPolicy, algorithm: Algorithm, folder: Path) -> list[str]:
    """Load the networks of a policy into an algorithm, and return what the user should know of the others.

    Raise StepError if its actor is of another form.
    """
    if start.actor_form != algorithm.actor_form:
        raise StepError(
            f"model: its actor was made by {start.actor_form}, and the loss needs one of {algorithm.actor_form}; "
            "choose a loss with the same actor"
        )
    given = load_networks(folder)
    own: dict[str, Tensor] = {n: t for n, t in algorithm.loss.state_dict().items() if isinstance(t, Tensor)}
    fitting = {name: tensor for name, tensor in given.items() if name in own and own[name].shape == tensor.shape}
    algorithm.loss.load_state_dict(fitting, strict=False)
    algorithm.actor.load_state_dict({n: t for n, t in start.actor.state_dict().items() if isinstance(t, Tensor)})
    # The actor's parameters are the loss's own; a target that the policy lacks starts where its network does.
    current = {n: t for n, t in algorithm.loss.state_dict().items() if isinstance(t, Tensor)}
    targets = {
        n: current[n.removeprefix("target_")]
        for n in own
        if n.startswith("target_") and n not in fitting and n.removeprefix("target_") in current
    }
    algorithm.loss.load_state_dict(targets, strict=False)
    missing = sorted({n.partition(".")[0] for n in own if n not in fitting and n.startswith(NETWORKS_BESIDE_THE_ACTOR)})
    return [f"model: {name} starts with new weights: the policy given has none of this shape" for name in missing]
