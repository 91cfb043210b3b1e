"""kind: rl — sample groups of completions, score them, follow the policy gradient.

Everything that varies between algorithms is a function bound in `learning.algorithm.composition` (from rewards to the
loss) or
`learning.rl.collection` (from problems to samples); this file is the loop.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from learning.agents.acting import env_at, rows_at
from learning.algorithm.composition import Algorithm, bind_algorithm
from learning.data.chat import decode, encode_prompt
from learning.data.rows import read_rows
from learning.data.rows_used import write_used
from learning.data.stored_rows import rows_at_hand
from learning.environments.making import in_environment
from learning.generation.replicas.engine_loading import make_engine
from learning.generation.replicas.shared_engine import acting_policy, by_main, engine_of_rank
from learning.generation.services.local_rollouts import LocalRollouts
from learning.models.forwards import economical
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, load_policy, set_determinism
from learning.models.sharded_model import Trained
from learning.models.trained_policy import save_trained
from learning.parallel.group import ALONE, Group
from learning.parallel.random_states import own_randomness
from learning.rl.auxiliaries import Auxiliaries
from learning.rl.collect_batch import harvest
from learning.rl.collection import Collecting, bind_collecting, processor_of, score_all, services
from learning.rl.curves import Curves
from learning.rl.learn import in_pieces, learn
from learning.rl.metrics import describe
from learning.rl.placed_rewards import placed
from learning.rl.references import References
from learning.rl.state import TrainingState, resume, save, step_back, sync
from learning.rl.update import regulate
from learning.rl.watchdogs import Watchdogs
from learning.samples.engine_protocol import EngineProtocol, Sampling
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.trajectories import Trajectories, path_advantages
from learning.streaming.stream import Stream
from learning.streaming.stream_metrics import TIMED, staleness
from schemas.errors import StepError
from schemas.stages.rl import Rl
from tasks.context import Context, Result
from tasks.remote import Bills, desk_of

Row = dict[str, Any]


def run(stage: Rl, context: Context) -> Result:
    """Train `stage.model` on `stage.prompts`; continues from the step's own checkpoints."""
    stage = stage.model_copy(update={"env": env_at(context.inputs.get("agent"), stage.env)})
    training, bills = prepare(stage, context), Bills(context, desk_of(context))
    try:
        for step in range(resume(training), stage.max_steps):
            if training.stopped is None:
                iterate(training, stage, context, step)
                bills.tell(training.group.main)
            if training.stopped is None and (step + 1) % stage.save_steps == 0 and step + 1 < stage.max_steps:
                save(training, step + 1)
        return publish(training, stage, context)
    finally:
        training.close()


def prepare(stage: Rl, context: Context) -> TrainingState:
    """Load the policy, its engine, the prompts and the functions that the recipe names."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    group = context.group or ALONE
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    economical(policy.model, stage)
    algorithm, collecting = bind_algorithm(stage, context.inputs), bind_collecting(stage, context.inputs)
    refuse_incomplete(stage, algorithm, collecting, group)
    rows, held_out = problems(stage, context, policy)
    # Networks beside the policy copy its body as it is without adapters.
    beside = Auxiliaries(stage, policy, context.inputs, context.seed, group)
    if stage.use_peft:
        from learning.models.adapters import attach  # peft takes long to import, and few need it

        policy.model = attach(policy.model, stage)
    collecting = replace(collecting, rewards=placed(collecting.rewards, context.actors if group.main else None))
    references = References(stage, algorithm, policy, context.inputs, context.actors, group)
    apart = collecting.needs("stream") or (context.actors is not None and context.actors.size("rollout") > 0)
    acting = acting_policy(policy, group, apart)
    trained = Trained(policy.model, group)
    own_randomness(group, context.seed)
    return TrainingState(
        policy=policy,
        trained=trained,
        acting=acting,
        optimizer=make_optimizer(policy.model, stage),
        engine=engine_of_rank(group, apart, lambda: sampling(collecting, stage, context, acting)),
        algorithm=algorithm,
        collecting=collecting,
        references=references,
        beside=beside,
        rows=rows,
        held_out_rows=held_out,
        trajectories=trajectories(stage, context, policy),
        curves=Curves(context.log, stage.logging_steps, stage.max_steps),
        watchdogs=Watchdogs(stage.watch),
        checkpoints=context.checkpoints,
    )


def trajectories(stage: Rl, context: Context, policy: Policy) -> Trajectories:
    """What will have been sampled; with the texts of turns, where completions are episodes."""
    read = partial(decode, policy.tokenizer) if stage.env else None
    return Trajectories(context.checkpoints / "trajectories", stage.log_trajectories, context.seed, read)


def refuse_incomplete(stage: Rl, algorithm: Algorithm, collecting: Collecting, group: Group) -> None:
    """Raises StepError for parts that ask for what this stage, or this many trainers, do not have."""
    if stage.critic is None and algorithm.needs("value_T"):
        raise StepError("a part of the algorithm asks for `value_T`: give the stage a `critic:`")
    if group.size > 1 and collecting.needs("consume"):
        raise StepError("drive: one that trains on groups as they come has one trainer; leave `train` out of resources")


def sampling(collecting: Collecting, stage: Rl, context: Context, acting: Policy) -> EngineProtocol:
    """What samples; with a drive that asks ahead, something that goes on beside the trainer."""
    apart = context.actors is not None and context.actors.size("rollout") > 0
    around = partial(in_environment, use=stage.env, tokenizer=acting.tokenizer, inputs=context.inputs)
    if collecting.needs("stream") and not apart:
        return Stream(LocalRollouts(stage.engine, acting, around))
    places = {"folder": context.input("model"), "scratch": context.checkpoints / "weights", "training": stage}
    engine = around(make_engine(stage.engine, acting, context.actors, **places))
    return Stream(engine) if collecting.needs("stream") else engine


def problems(stage: Rl, context: Context, policy: Policy) -> tuple[Sequence[Row], Sequence[Row]]:
    """The problems and the held-out ones, as the model is shown them. Raises StepError as `checked` does."""
    agent = context.inputs.get("agent")
    rows = rows_at_hand(context.input("prompts"), "prompts", context.checkpoints / "prompts")
    held_out = read_rows(context.input("eval_prompts"), "prompts") if stage.eval_prompts else []
    return checked(rows_at(agent, rows), policy, stage), rows_at(agent, held_out)


def checked(rows: Sequence[dict[str, Any]], policy: Policy, stage: Rl) -> Sequence[dict[str, Any]]:
    """The problems; raises StepError when there is none or one leaves no room for a completion."""
    if not rows:
        raise StepError("prompts: no rows to sample completions for; look at what the stage before it dropped")
    longest = max(len(encode_prompt(policy.tokenizer, row["prompt"])) for row in rows)
    if longest + stage.max_completion_length > policy.max_length:
        raise StepError(
            f"prompts: the longest has {longest} tokens and max_completion_length is {stage.max_completion_length}, "
            f"but the model holds {policy.max_length}; drop long prompts in a curate stage or lower that length"
        )
    return rows


def iterate(training: TrainingState, stage: Rl, context: Context, step: int) -> None:
    """One iteration: sample, score, gate, update, tell the engine, look at the bands."""
    began = time.perf_counter()
    have = supplied(training, stage, context, step)
    controls = regulate(training.algorithm, step, have)
    pieces = in_pieces(training, stage, step, controls, have) if training.collecting.needs("consume") else None
    have |= {"consume": pieces.add} if pieces else {}
    samples, trained, tokens = harvest(training, sampler_of(training, stage, context, step, controls), controls, have)
    sampled_at = time.perf_counter()
    kept = [sample for sample in samples if sample.reward is not None]
    advantages: dict[int, float] = {}
    points = {f"control/{name}": value for name, value in controls.items()}
    if trained.num_paths:
        mine = {**have, "rows": [kept[path].row for path in trained.paths["path"].tolist()]}
        trained, more = learn(training, stage, trained, step, controls, mine, pieces)
        advantages, points = path_advantages(trained), points | more
    sync(training, step + 1)
    places = {id(sample): place for place, sample in enumerate(kept)}
    if training.group.main:
        training.trajectories.add(step, samples, [advantages.get(places.get(id(sample), -1)) for sample in samples])
    points |= describe(samples, trained, played=stage.env is not None) | held_out(
        training, stage, context, step, controls
    )
    points |= staleness(samples, step)
    if isinstance(training.engine, Stream):
        points |= training.engine.points()
    training.sampled += tokens
    context.spend(tokens)
    points |= {
        "sampled_tokens": float(training.sampled),
        "tokens_per_second": tokens / (time.perf_counter() - began),
        "generation_seconds": sampled_at - began,
        "learning_rate": training.optimizer.param_groups[0]["lr"],
    }
    points = training.group.broadcast(points)
    watch(training, step, points)
    if training.stopped is None and stage.max_sampled_tokens and training.sampled >= stage.max_sampled_tokens:
        training.stopped = f"{training.sampled} tokens sampled at iteration {step + 1}"
    remember(training, stage, context, step, points, samples)


def supplied(training: TrainingState, stage: Rl, context: Context, step: int) -> dict[str, Any]:
    """What plans, rewards, follow-ups, sources and controllers may ask for by name."""
    n = stage.num_generations
    return {
        "rows": training.rows,
        "num_groups": stage.generation_batch_size // n,
        "n": n,
        "seed": context.seed,
        "step": step,
        "states": training.states,
        "metrics": training.curves.last,
        "max_steps": stage.max_steps,
        "desk": desk_of(context, stage.max_tokens_total, stage.max_cost),
    }


def sampler_of(training: TrainingState, stage: Rl, context: Context, step: int, controls: dict[str, float]) -> Sampler:
    """A sampler for one iteration; entropies are asked of the engine where some part asks for them."""
    wanted = training.algorithm.needs("entropy_behav_T")
    process = processor_of(training.collecting, step, controls, training.curves.last)
    sampling = Sampling(stage.temperature, stage.max_completion_length, entropy=wanted, processor=process)
    return Sampler(training.engine, training.acting, sampling, context.seed, step)


def held_out(
    training: TrainingState, stage: Rl, context: Context, step: int, controls: dict[str, float]
) -> dict[str, float]:
    """Reward on the held-out problems, looked at every `eval_steps` iterations, and how far training is above it."""
    if not training.held_out_rows or (step + 1) % stage.eval_steps:
        return {}
    sampler = sampler_of(training, stage, context, step, {}).at(
        Sampling(stage.temperature, stage.max_completion_length)
    )
    have = {**supplied(training, stage, context, step), **services(sampler, training.history), "states": {}}

    def examine() -> list[float]:
        samples = sampler.sample([SampleRequest(row) for row in training.held_out_rows])
        score_all(training.collecting, samples, controls, have)
        return [t.reward for t in samples if t.reward is not None]

    values = by_main(training.group, training.engine, None, examine)
    return {"eval_reward": sum(values) / len(values)} if values else {}


def watch(training: TrainingState, step: int, points: dict[str, float]) -> None:
    """See whether a band was left, and do what its watch says."""
    if "eval_reward" in points and "reward" in points:
        points["reward_gap"] = points["reward"] - points["eval_reward"]
    for tripped, said in training.watchdogs.look(points):
        points[f"watch/{tripped.metric}"] = 1.0
        if tripped.action == "warn":
            continue
        back = step_back(training, step)
        sync(training, step + 1)
        if tripped.action == "stop":
            training.stopped = f"{said}; stopped at iteration {step + 1} with the weights of iteration {back}"
            return
        training.rate *= tripped.factor
        training.watchdogs.reset()
        return


def remember(
    training: TrainingState, stage: Rl, context: Context, step: int, points: dict[str, float], samples: list[Sample]
) -> None:
    """Add to the curves, keep samples of the first and the last iteration, tell progress."""
    if step == 0 or step + 1 == stage.max_steps:
        firsts = {t.group: t for t in reversed(samples)}
        training.samples["first" if step == 0 else "last"] = [
            {"prompt": t.row["prompt"], "completion": t.text, "reward": t.reward}
            for t in [firsts[group] for group in sorted(firsts)][:4]
        ]
    training.curves.add(step, points)
    if training.stopped is not None:
        training.curves.close(step)
    told = {key: points[key] for key in ("reward", "tokens_per_second") if key in points}
    context.progress(step + 1, stage.max_steps, **told)


def publish(training: TrainingState, stage: Rl, context: Context) -> Result:
    """Write the trained policy, the published networks beside it, and the trajectories; rank 0 writes."""
    if not training.group.main:
        return Result()
    for part in training.beside.parts.values():
        if part.block.publish:
            part.save(training.policy, context.output(part.type))
    save_trained(training.acting, context.output("model"), adapted=stage.use_peft)
    training.trajectories.publish(context.output("trajectories"), training.parts)
    write_used(context.folder, training.trajectories.used(training.parts))
    last = training.curves.lines[-1]
    timed = ("step", "tokens_per_second", "generation_seconds", *TIMED)
    final = {key: value for key, value in last.items() if key not in timed}
    told = {"stopped": training.stopped} if training.stopped else {}
    final |= describe_forward(training.trained.model)
    return Result(
        {"steps": int(last["step"]), "tokens": training.sampled, **final}, {"samples": training.samples, **told}
    )
