"""One RL iteration from top to bottom: sample, score, resample, filter, advantages, update, new weights, report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from learning.algorithm.composition import Algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_factors
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.generation.replicas.shared_engine import by_main
from learning.lookup import load_optional
from learning.models.optimize import learning_rate_at
from learning.rl.monitoring import Metrics, describe_rewards, describe_samples, describe_staleness, measure_length
from learning.rl.sample_counts import refuse_rewards_without_scores
from learning.rl.sampling_slots import SamplingSlots, UpdatesByGroup, keep_groups
from learning.rl.state import TrainingState, iteration_context, roll_back, save_best, sync_weights
from learning.rl.update import regulate, update, with_proximal
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import Sample, SampleRequest, States
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import Sampler, stream
from learning.sampling.trajectories import path_advantages
from schemas.number_schedules import value_at
from schemas.stages.rl import Rl

HELD_OUT = 0x68656C64
"""Place of the random streams of evaluations, where training has the number of an iteration."""
Controls = Mapping[str, float]
"""Numbers that controllers give for an iteration, by controller."""


@dataclass(frozen=True)
class Collected:
    """What an iteration sampled, and the batch that it trains on."""

    samples: list[Sample]
    batch: Batch
    tokens: int
    """Tokens that were sampled."""
    states: States
    """Memory of slot functions afterwards."""

    @property
    def scored(self) -> list[Sample]:
        """The samples with a reward; a path of the batch has the place of its sample here."""
        return [sample for sample in self.samples if sample.reward is not None]


def run_iteration(training: TrainingState, step: int) -> None:
    """Run iteration `step` (0-based)."""
    started = time.perf_counter()
    context = iteration_context(training, step)
    controls = regulate(training.algorithm, step, context)
    updates = start_group_updates(training, context, controls)
    if updates is not None:
        context = replace(context, consume=updates.add)

    collected = collect_batch(training, context, controls)
    if step == 0:
        refuse_rewards_without_scores(collected.samples)
    training.counts.add(collected.samples, training.slots.shown)
    sampled_at = time.perf_counter()

    batch, metrics = collected.batch, {f"controller/{name}": value for name, value in controls.items()}
    if batch.num_paths:
        batch, update_metrics = learn_from_batch(training, collected, context, controls, updates)
        metrics |= update_metrics
    sync_weights(training, step + 1)

    record_trajectories(training, step, collected, batch)
    metrics |= describe_samples(collected.samples, batch, episodes=training.stage.env is not None)
    metrics |= evaluate_held_out(training, context, controls)
    metrics |= describe_staleness(collected.samples, step) | describe_engine(training)
    training.sampled += collected.tokens
    training.spend(collected.tokens)
    metrics |= {
        "sampled_tokens": float(training.sampled),
        "tokens_per_second": collected.tokens / (time.perf_counter() - started),
        "generation_seconds": sampled_at - started,
        "learning_rate": training.optimizer.param_groups[0]["lr"],
    }
    metrics = training.group.broadcast(metrics)
    note_evaluation(training, step, metrics)
    check_watches(training, step, metrics)
    check_token_limit(training, step)
    report_iteration(training, step, metrics, collected.samples)


# -- samples -----------------------------------------------------------------------------------------------------------


def collect_batch(training: TrainingState, context: IterationContext, controls: Controls) -> Collected:
    """Sample, score and filter, with the same result on every rank.

    Rank 0 runs the slot functions, so that a reward is paid for once; all ranks sample.
    """
    sampler = make_sampler(training, context, controls)
    context = replace(context, sampler=sampler, history=training.history)

    def collect() -> Collected:
        samples = collect_samples(training.slots, context, controls)
        scored = [sample for sample in samples if sample.reward is not None]
        batch = keep_groups(training.slots.filter_groups, scored, context.step, controls, context)
        return Collected(samples, batch, sampler.sampled, dict(training.states))

    collected = by_main(training.group, training.engine, sampler.sampling.processor, collect)
    training.states.update(collected.states)
    return collected


def collect_samples(slots: SamplingSlots, context: IterationContext, controls: Controls) -> list[Sample]:
    """Choose what to sample, sample and score it, resample until no more is requested, add samples from elsewhere."""
    step = context.step

    def request_samples(iteration: int) -> list[SampleRequest]:
        return slots.prompt_sampler.settled(controls).ask(iteration, replace(context, step=iteration))

    def score_group(samples: list[Sample], iteration: int, place: int) -> None:
        slots.score(samples, controls, replace(context, step=iteration, round=place))

    samples: list[Sample] = []
    sampled: list[Sample] = []
    # A rollout that requests samples of later iterations calls `request_samples` itself.
    requests = [] if "request_samples" in slots.rollout.asks else request_samples(step)
    for number in range(slots.max_sampling_rounds):
        now = replace(context, round=number)
        rollout_context = replace(now, requests=requests, request_samples=request_samples, score=score_group)
        new = slots.rollout.settled(controls).ask(step, rollout_context)
        slots.score([sample for sample in new if not sample.scores], controls, now)
        samples += new
        sampled += new
        requests = []
        for resample in slots.resample:
            samples, more = resample.settled(controls).ask(step, replace(now, samples=samples))
            requests += more
        if not requests:
            break
    if context.history is not None:
        context.history.add(sampled)
    for add_samples in slots.extra_samples:
        samples = add_samples.settled(controls).ask(step, replace(context, samples=samples))
    slots.score([sample for sample in samples if not sample.scores], controls, context)
    return samples


def limit_completions(stage: Rl, step: int) -> int:
    """Return the most tokens of a completion in iteration `step` (0-based)."""
    limit = stage.completion_limit
    return stage.max_completion_length if limit is None else int(value_at(limit, step))


def make_sampler(training: TrainingState, context: IterationContext, controls: Controls) -> Sampler:
    """Return the iteration's sampler; the engine computes entropies where some part asks for them."""
    stage, step = training.stage, context.step
    sampling = Sampling(
        stage.temperature,
        limit_completions(stage, step),
        entropy=training.algorithm.needs("entropy_behav_T"),
        processor=training.slots.logits_processor(step, controls, context.metrics),
        kept_tokens=stage.kept_tokens,
    )
    return Sampler(training.engine, training.acting, sampling, training.seed, step)


# -- update ------------------------------------------------------------------------------------------------------------


def learn_from_batch(
    training: TrainingState,
    collected: Collected,
    context: IterationContext,
    controls: Controls,
    updates: UpdatesByGroup | None,
) -> tuple[Batch, Metrics]:
    """Add columns and advantages to the batch and update the policy; return the batch and metrics.

    `updates` has trained on the batch group by group already, so that only the optimiser step is left.
    """
    trained_on = [collected.scored[path] for path in collected.batch.paths["path"].tolist()]
    if updates:
        batch = updates.join(collected.batch)
    else:
        batch = add_model_columns(training, training.algorithm.settled(controls), collected.batch, trained_on)
    context = replace(context, rows=[sample.row for sample in trained_on])
    return train_on_batch(training, batch, context, controls, updates)


def train_on_batch(
    training: TrainingState,
    batch: Batch,
    context: IterationContext,
    controls: Controls,
    updates: UpdatesByGroup | None = None,
) -> tuple[Batch, Metrics]:
    """Add advantages to a batch that has the columns of the models and update the policy; return batch and metrics."""
    stage, step = training.stage, context.step
    algorithm = training.algorithm.settled(controls)
    batch = add_advantages(training, algorithm, batch, context, controls)
    for parameters in training.optimizer.param_groups:
        parameters["lr"] = learning_rate_at(stage, step, stage.max_steps) * training.rate
    if updates:
        metrics = updates.step(training.optimizer, batch)
    else:
        metrics = update(
            algorithm,
            training.trained,
            training.optimizer,
            batch,
            stage,
            step,
            auxiliary_models=training.auxiliary_models,
            controls=controls,
            context=context,
        )
    if training.auxiliary_models is not None:
        metrics |= training.auxiliary_models.metrics(batch)
        training.auxiliary_models.refresh(step)
    if training.references is not None:
        training.references.refresh(training.policy, step)
    return batch, metrics


def add_model_columns(training: TrainingState, algorithm: Algorithm, batch: Batch, samples: Sequence[Sample]) -> Batch:
    """Add which tokens are dropped, and what references, auxiliary models and the policy itself say of the tokens.

    `samples` are the paths of the batch.
    """
    stage, trained = training.stage, training.trained
    batch = with_dropped(batch, stage.mask_truncated_completions)
    if training.references is not None:
        batch = training.references.add_to(
            batch, trained, max_tokens=stage.max_tokens_per_micro_batch, temperature=stage.temperature
        )
    if (with_experts := load_optional(stage, "routing_replay")) is not None:
        batch = with_experts(batch, trained.model, max_tokens=stage.max_tokens_per_micro_batch, each=trained.each)
    for part in ("answer_gains", "information_values", "tag_spans"):
        if (add_column := load_optional(stage, part, algorithm.list_needed_names())) is not None:
            batch = add_column(batch, samples, trained, stage, training.policy.tokenizer)
    batch = with_proximal(algorithm, batch, trained, stage)
    return batch if training.auxiliary_models is None else training.auxiliary_models.add_values(batch)


def add_advantages(
    training: TrainingState, algorithm: Algorithm, batch: Batch, context: IterationContext, controls: Controls
) -> Batch:
    """Add advantages, targets of the auxiliary models, and factors of the importance correction."""
    step, states, rows = context.step, training.states, context.rows
    batch = with_advantages(algorithm, batch, step, states=states, rows=rows)
    if training.auxiliary_models is not None:
        batch = training.auxiliary_models.add_targets(batch, step, controls, states, rows)
    return with_factors(algorithm, batch, step, seed=context.seed)


def start_group_updates(
    training: TrainingState, context: IterationContext, controls: Controls
) -> UpdatesByGroup | None:
    """Return what trains on groups as they end, for a rollout that hands them over; None for any other."""
    overlap = training.slots.overlap
    if overlap is None or not training.slots.needs("consume"):
        return None
    algorithm = training.algorithm.settled(controls)

    def prepare(samples: list[Sample]) -> tuple[list[Sample], Batch]:
        supplies = replace(context, history=training.history)
        filtered = keep_groups(training.slots.filter_groups, samples, context.step, controls, supplies)
        kept = [samples[path] for path in filtered.paths["path"].tolist()]
        batch = forest(kept)
        if kept:
            batch = add_model_columns(training, algorithm, batch, kept)
            rows = [sample.row for sample in kept]
            batch = add_advantages(training, algorithm, batch, replace(context, rows=rows), controls)
        return kept, batch

    return overlap.group_updates(algorithm, training.trained, training.stage, context.step, prepare)


# -- report ------------------------------------------------------------------------------------------------------------


def record_trajectories(training: TrainingState, step: int, collected: Collected, batch: Batch) -> None:
    """Add the iteration's samples to the trajectories, with the advantages of those that were trained on."""
    if not training.group.main:
        return
    advantages = path_advantages(batch) if "advantage" in batch.tokens else {}
    by_sample = {id(sample): advantages.get(path) for path, sample in enumerate(collected.scored)}
    training.trajectories.add(step, collected.samples, [by_sample.get(id(sample)) for sample in collected.samples])


def evaluate_held_out(training: TrainingState, context: IterationContext, controls: Controls) -> Metrics:
    """Return metrics of the held-out problems, every `eval_steps` iterations; else nothing.

    `eval_reward` is the mean reward, `eval_reward/NAME` that of one of several rewards, `eval_completion_length` in
    tokens.
    """
    stage, step = training.stage, context.step
    if not training.held_out_rows or (step + 1) % stage.eval_steps:
        return {}
    temperature = stage.temperature if stage.eval_temperature is None else stage.eval_temperature
    sampling = Sampling(temperature, stage.max_completion_length, kept_tokens=stage.kept_tokens)
    # Streams of their own: evaluations and training draw independently of each other.
    sampler = Sampler(training.engine, training.acting, sampling, stream(training.seed, HELD_OUT), step)
    context = replace(context, sampler=sampler, history=training.history, states={}, consume=None)

    def measure() -> Metrics:
        samples = sampler.sample([SampleRequest(row) for row in training.held_out_rows])
        training.slots.score(samples, controls, context)
        measured = {**describe_rewards(samples), "completion_length": measure_length(samples)}
        return {f"eval_{name}": value for name, value in measured.items()}

    return by_main(training.group, training.engine, None, measure)


def note_evaluation(training: TrainingState, step: int, metrics: Metrics) -> None:
    """Remember an evaluation, keep the weights if it is the best so far, and stop when patience ends."""
    held_out = {name: value for name, value in metrics.items() if name.startswith("eval_")}
    metric, patience = training.stage.metric_for_best_model, training.stage.early_stopping_patience
    if metric not in held_out:
        return
    training.evaluations.append((step + 1, held_out))
    if training.keeps(step + 1):
        save_best(training, step + 1)
    best = training.best_evaluation
    since = len(training.evaluations) - 1 - training.evaluations.index(best)
    if patience is not None and since >= patience:
        better = "above" if training.stage.greater_is_better else "below"
        training.stopped = (
            f"{metric} was not {better} {best[1][metric]:.4g}, that of iteration {best[0]}, in {since} evaluation(s); "
            f"stopped at iteration {step + 1}"
        )


def describe_engine(training: TrainingState) -> Metrics:
    """Return the metrics of an engine that generates while the policy is trained; nothing for any other."""
    metrics = getattr(training.engine, "metrics", None)
    return {} if metrics is None else metrics()


def check_watches(training: TrainingState, step: int, metrics: Metrics) -> None:
    """Act on the watches whose band was left: warn, roll back to good weights, or stop."""
    if "eval_reward" in metrics and "reward" in metrics:
        metrics["reward_gap"] = metrics["reward"] - metrics["eval_reward"]
    for watch, message in training.watchdogs.look(metrics):
        metrics[f"watch/{watch.metric}"] = 1.0
        if watch.action == "warn":
            continue
        good = roll_back(training, step)
        sync_weights(training, step + 1)
        if watch.action == "stop":
            training.stopped = f"{message}; stopped at iteration {step + 1} with the weights of iteration {good}"
        else:
            training.rate *= watch.learning_rate_factor
            training.watchdogs.reset()
        return


def check_token_limit(training: TrainingState, step: int) -> None:
    """Stop after this iteration when the stage has sampled as many tokens as it may."""
    limit = training.stage.max_sampled_tokens
    if training.stopped is None and limit and training.sampled >= limit:
        training.stopped = f"{training.sampled} tokens sampled at iteration {step + 1}"


def report_iteration(training: TrainingState, step: int, metrics: Metrics, samples: list[Sample]) -> None:
    """Add the metrics to the curves, keep examples of the first and the last iteration, report progress."""
    max_steps = training.stage.max_steps
    if step == 0 or step + 1 == max_steps:
        first_of_group = {sample.group: sample for sample in reversed(samples)}
        training.examples["first" if step == 0 else "last"] = [
            {"prompt": sample.row["prompt"], "completion": sample.text, "reward": sample.reward}
            for sample in [first_of_group[group] for group in sorted(first_of_group)][:4]
        ]
    training.curves.add(step, metrics)
    if training.stopped is not None:
        training.curves.close(step)
    shown = {key: metrics[key] for key in ("reward", "tokens_per_second") if key in metrics}
    training.report_progress(step + 1, max_steps, **shown)
