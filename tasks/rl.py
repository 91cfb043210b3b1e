"""kind: rl — sample groups of completions, score them, follow the policy gradient.

Everything that varies between algorithms is a function of a slot, bound in `learning.rl.sampling_slots` (from problems
to samples) or `learning.algorithm.composition` (from rewards to the loss). One iteration is in `learning.rl.iteration`;
this file sets up the stage, repeats iterations and publishes the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from learning.algorithm.composition import Algorithm, bind_algorithm
from learning.data.chat import decode, encode_prompt
from learning.data.chat_settings import apply_chat
from learning.data.rows import read_rows
from learning.data.rows_used import write_rows_used
from learning.data.stored_rows import open_rows
from learning.generation.replicas.engine_loading import make_engine
from learning.generation.replicas.shared_engine import make_rank_engine, select_sampling_policy
from learning.lookup import load_optional
from learning.models.forwards import apply_compute_options
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, add_adapters, load_trained_policy, save_trained, set_determinism
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Group
from learning.parallel.random_states import seed_rank
from learning.rl.iteration import run_iteration
from learning.rl.monitoring import TIMED, Curves, Watchdogs
from learning.rl.sampling_slots import SamplingSlots, bind_sampling_slots
from learning.rl.state import AuxiliaryNetworks, TrainingState, restore_best, resume, save
from learning.samples.engine_protocol import EngineProtocol
from learning.samples.sample import Row
from learning.sampling.placed_rewards import place_rewards
from learning.sampling.trajectories import Trajectories
from schemas.errors import StepError
from schemas.stages.rl import Rl
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, open_account


def run(stage: Rl, context: Context) -> Result:
    """Train `stage.model` on `stage.prompts`; continue from the step's own checkpoints."""
    if (environment_of_agent := load_optional(stage, "agent_environment")) is not None:
        stage = stage.model_copy(update={"env": environment_of_agent(context.input("agent"), stage.env)})
    training, spending = prepare(stage, context), SpendingReporter(context, open_account(context))
    try:
        for step in range(resume(training), stage.max_steps):
            if training.stopped is None:
                run_iteration(training, step)
                spending.report(training.group.main)
            # A new best is saved at once, so that a checkpoint never refers to weights that were replaced.
            due = (step + 1) % stage.save_steps == 0 or training.keeps(step + 1)
            if training.stopped is None and due and step + 1 < stage.max_steps:
                save(training, step + 1)
        if stage.load_best_model_at_end and training.evaluations:
            restore_best(training)
        return publish(training, context)
    finally:
        training.close()


def prepare(stage: Rl, context: Context) -> TrainingState:
    """Load the policy, its engine, the problems and the functions that the recipe names."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    group = context.group or ALONE
    policy = load_start(stage, context, group)
    algorithm, slots = bind_algorithm(stage, context.inputs), bind_sampling_slots(stage, context.inputs)
    refuse_incomplete(stage, algorithm, slots, group)
    rows, held_out = load_problems(stage, context, policy)
    apart = slots.overlap is not None or samples_elsewhere(context)
    whole = load_whole(stage, context, policy, group, apart)
    # Auxiliary models copy the body of the policy as it is without adapters.
    auxiliary_models = make_auxiliary_models(stage, whole, context, group)
    copied, policy = whole is not policy, add_adapters(policy, stage)
    slots = replace(slots, rewards=place_rewards(slots.rewards, context.actors if group.main else None))
    asked = algorithm.list_needed_names()
    make_references = load_optional(stage, "references", asked)
    references = make_references and make_references(stage, algorithm, policy, context.inputs, context.actors, group)
    acting = add_adapters(whole, stage) if copied else select_sampling_policy(policy, group, apart)
    trained = Trained(policy.model, group, policy.unread)
    if policy.unread is not None:
        trained.copy_to(acting.model)  # for adapters, which are drawn
    seed_rank(group, context.seed)
    return TrainingState(
        stage=stage,
        seed=context.seed,
        policy=policy,
        trained=trained,
        acting=acting,
        optimizer=make_optimizer(policy.model, stage),
        engine=make_rank_engine(group, apart, lambda: start_engine(slots, stage, context, acting)),
        algorithm=algorithm,
        slots=slots,
        references=references,
        auxiliary_models=auxiliary_models,
        rows=rows,
        held_out_rows=held_out,
        trajectories=make_trajectories(stage, context, policy),
        curves=Curves(context.log, stage.logging_steps, stage.max_steps),
        watchdogs=Watchdogs(stage.watch),
        checkpoints=context.checkpoints,
        account=open_account(context, stage.max_tokens_total, stage.max_cost),
        spend=context.spend,
        spending=context.spending,
        report_progress=context.progress,
    )


def load_start(stage: Rl, context: Context, group: Group) -> Policy:
    """Load the starting policy; in a group that shards it, without values until then.

    References that follow the policy are copies of it on every rank, and need it whole.
    """
    whole = describe_whole_copies(stage, group)
    if whole and group.main:
        print(*whole, sep="\n")
    return load_part(stage, context, ALONE if whole else group)


def describe_whole_copies(stage: Rl, group: Group) -> list[str]:
    """Return a notice if ranks that shard the policy load and keep whole copies of it as references."""
    names = [name for name, spec in stage.references.items() if spec.model is None and spec.sync_steps is not None]
    if not (group.shards and names):
        return []
    return [
        f"references {', '.join(names)}: `sync_steps` keeps a whole copy of the policy on every rank, and every rank "
        "loads the whole policy before it is sharded"
    ]


def load_whole(stage: Rl, context: Context, policy: Policy, group: Group, apart: bool) -> Policy:
    """Return the starting policy with its values, where a rank samples with it or copies it; else the policy itself.

    `apart` is whether separate workers sample, which rank 0 sends its weights to.
    """
    copies = group.main or not apart or "auxiliary_models" in stage.optional_code()
    return load_part(stage, context, ALONE) if policy.unread is not None and copies else policy


def load_part(stage: Rl, context: Context, group: Group) -> Policy:
    """Load `stage.model` with the stage's chat settings and compute options."""
    folder = context.input("model")
    policy = load_trained_policy(folder, stage, device=context.device, dtype=stage.dtype, group=group)
    apply_chat(policy.tokenizer, stage)
    apply_compute_options(policy.model, stage)
    return policy


def refuse_incomplete(stage: Rl, algorithm: Algorithm, slots: SamplingSlots, group: Group) -> None:
    """Raise StepError for slot functions that need a critic, or a single trainer, that the stage does not have."""
    if stage.critic is None and algorithm.needs("value_T"):
        raise StepError("a slot function of the algorithm needs `value_T`: give the stage a `critic:`")
    if group.size > 1 and slots.needs("consume"):
        raise StepError(
            "rollout: a rollout that trains on groups as they are completed needs a single trainer; "
            "remove `train` from resources"
        )


def make_auxiliary_models(stage: Rl, policy: Policy, context: Context, group: Group) -> AuxiliaryNetworks | None:
    """Return the critic and the auxiliary models of the stage; None if it has neither."""
    make = load_optional(stage, "auxiliary_models")
    return None if make is None else make(stage, policy, context.inputs, context.seed, group)


def samples_elsewhere(context: Context) -> bool:
    """Return whether separate workers sample."""
    return context.actors is not None and context.actors.size("rollout") > 0


def start_engine(slots: SamplingSlots, stage: Rl, context: Context, acting: Policy) -> EngineProtocol:
    """Return the engine; a stream, for a rollout that generates while the policy is trained."""
    wrap = environment_wrapper(stage, context, acting)
    if slots.overlap is not None and not samples_elsewhere(context):
        return slots.overlap.stream_local(stage, acting, wrap)
    engine = wrap(
        make_engine(
            stage.engine,
            acting,
            context.actors,
            folder=context.input("model"),
            scratch=context.checkpoints / "weights",
            training=stage,
            chat=stage,
        )
    )
    return engine if slots.overlap is None else slots.overlap.stream_remote(engine)


def environment_wrapper(stage: Rl, context: Context, acting: Policy) -> Callable[[Any], Any]:
    """Return the function that wraps an engine in the stage's environment; the identity if it has none."""
    in_environment = load_optional(stage, "environment")
    if in_environment is None or stage.env is None:
        return lambda engine: engine
    return partial(
        in_environment,
        use=stage.env,
        tokenizer=acting.tokenizer,
        inputs=context.inputs,
        max_length=acting.max_length,
    )


def make_trajectories(stage: Rl, context: Context, policy: Policy) -> Trajectories:
    """Return the table of sampled completions; it includes the texts of turns if completions are episodes."""
    read = partial(decode, policy.tokenizer) if stage.env else None
    folder, kept = context.checkpoints / "trajectories", stage.kept_tokens is not None
    return Trajectories(folder, stage.log_trajectories, context.seed, read, kept=kept)


def load_problems(stage: Rl, context: Context, policy: Policy) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return problems and held-out problems, with an agent's context added. Raise StepError as `check_problems`."""
    rows = open_rows(context.input("prompts"), "prompts", context.checkpoints / "prompts")
    held_out = read_rows(context.input("eval_prompts"), "prompts") if stage.eval_prompts else []
    if (rows_of_agent := load_optional(stage, "agent_rows")) is not None:
        agent: Path = context.input("agent")
        rows, held_out = rows_of_agent(agent, rows), rows_of_agent(agent, held_out)
    check_problems(rows, policy, stage)
    return rows, held_out


def check_problems(rows: Sequence[Row], policy: Policy, stage: Rl) -> None:
    """Raise StepError when there is no problem, or one leaves no room for a completion."""
    if not rows:
        raise StepError("prompts: no rows to sample completions for; check what the previous stage dropped")
    longest = max(len(encode_prompt(policy.tokenizer, row["prompt"], row)) for row in rows)
    if longest + stage.max_completion_length > policy.max_length:
        raise StepError(
            f"prompts: the longest has {longest} tokens and max_completion_length is {stage.max_completion_length}, "
            f"but the model's maximum length is {policy.max_length}; drop long prompts in a curate stage or lower "
            "max_completion_length"
        )


def describe_sampling(engine: Any) -> dict[str, str]:
    """Return the notes of the engine that samples in this process, inside an environment or not; empty if none does."""
    while engine is not None and not hasattr(engine, "describe"):
        engine = getattr(engine, "engine", None)
    return {} if engine is None else engine.describe()


def publish(training: TrainingState, context: Context) -> Result:
    """Write the trained policy, the published auxiliary models and the trajectories; rank 0 writes."""
    if not training.group.main:
        return Result()
    if training.auxiliary_models is not None:
        training.auxiliary_models.publish(training.policy, context.output)
    save_trained(training.acting, context.output("model"), training.stage)
    training.trajectories.publish(context.output("trajectories"), training.parts)
    write_rows_used(context.folder, training.trajectories.used(training.parts))
    last = training.curves.lines[-1]
    timed = ("step", "tokens_per_second", "generation_seconds", *TIMED)
    final = {key: value for key, value in last.items() if key not in timed}
    if training.stage.load_best_model_at_end and training.evaluations:
        published_step, held_out = training.best_evaluation
        final |= {"published_step": published_step, **held_out}
    final |= describe_forward(training.trained.model) | describe_sampling(training.engine)
    details = {"samples": training.examples} | ({"stopped": training.stopped} if training.stopped else {})
    env = training.stage.env
    notices = training.counts.describe(training.stage.max_completion_length, env and env.max_turns)
    notices += [f"it ended early: {training.stopped}"] if training.stopped else []
    notices += describe_whole_copies(training.stage, training.group)
    if training.stage.load_best_model_at_end and not training.evaluations:
        metric = training.stage.metric_for_best_model
        notices.append(f"load_best_model_at_end: no evaluation has `{metric}`; the output has the last weights")
    return Result({"steps": int(last["step"]), "tokens": training.sampled, **final}, details, notices)
