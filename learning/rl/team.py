"""Policies that play the roles of shared episodes, each trained on its own turns: iterations, checkpoints.

Every trained policy is a learner with a batch, an optimiser, references and checkpoints of its own: its update is that
of a stage with this policy alone, on the samples of its roles.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev

import torch

from learning.batch.batch import Batch
from learning.batch.columns import locate_in_path
from learning.lookup import Bound
from learning.models.checkpoint import load_latest, load_weights, save_checkpoint
from learning.models.policy import Policy
from learning.rl.iteration import (
    HELD_OUT,
    Collected,
    add_model_columns,
    check_token_limit,
    check_watches,
    collect_samples,
    note_evaluation,
    record_trajectories,
    report_iteration,
    train_on_batch,
)
from learning.rl.league import League
from learning.rl.monitoring import TIMED, Metrics, describe_rewards, describe_samples, measure_length
from learning.rl.sample_counts import refuse_rewards_without_scores
from learning.rl.sampling_slots import keep_groups
from learning.rl.state import TrainingState, iteration_context, resume, save, sync_weights
from learning.rl.update import regulate
from learning.samples.conversation import RoleSample, list_conversations
from learning.samples.engine_protocol import EngineProtocol, Sampling, hash_name
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.conversations import ConversationSampler, Speaker
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import stream
from learning.sampling.speakers import close_speakers
from schemas.errors import StepError
from schemas.roles import MAIN


@dataclass(frozen=True)
class Partner:
    """A policy that is not trained; with `sync_steps` or a league it is a past version of the stage's policy."""

    policy: Policy
    engine: EngineProtocol
    checkpoints: Path
    sync_steps: int | None = None
    league: League | None = None

    @property
    def changes(self) -> bool:
        """Whether its weights change."""
        return self.sync_steps is not None or self.league is not None

    def prepare(self, seed: int, step: int) -> None:
        """Become the version that plays in iteration `step` (0-based)."""
        if self.league is not None:
            load_weights(self._parameters(), self.league.draw(seed, step))
            self.engine.sync(step)

    @torch.no_grad()
    def refresh(self, policy: Policy, step: int) -> None:
        """Copy or keep the weights of `policy` if that is due after iteration `step` (0-based)."""
        if self.league is not None:
            self.league.keep_if_due(step, dict(policy.model.named_parameters()))
        if self.sync_steps is not None and (step + 1) % self.sync_steps == 0:
            for old, new in zip(self.policy.model.parameters(), policy.model.parameters(), strict=True):
                old.copy_(new)
            self.engine.sync(step + 1)

    def save(self, step: int) -> None:
        """Write a checkpoint: of a league the record of its games, whose versions are files already."""
        if self.league is not None:
            save_checkpoint(self.checkpoints, step, {}, self.league.to_json())
        elif self.sync_steps is not None:
            save_checkpoint(self.checkpoints, step, self._parameters(), None)

    def resume(self) -> int:
        """Restore the latest checkpoint and return its step; 0 if there is none: a league keeps its first version."""
        latest = load_latest(self.checkpoints)
        if self.league is not None:
            if latest is None:
                self.league.keep(0, self._parameters())
            else:
                self.league.load(latest[2])
        elif latest is not None:
            load_weights(self._parameters(), latest[1])
            self.engine.sync(latest[0])
        return 0 if latest is None else latest[0]

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.policy.model.named_parameters())


@dataclass
class Team:
    """The learners and partners of a stage by name, the stage's own policy first, and the roles that they play."""

    learners: dict[str, TrainingState]
    partners: dict[str, Partner]
    speakers: Mapping[str, Speaker]
    turn_order: Bound
    max_turns: int

    @property
    def main(self) -> TrainingState:
        """The learner of the stage's own policy; it keeps what the stage has once: curves, history, trajectories."""
        return self.learners[MAIN]

    def make_sampler(self, sampling: Sampling, seed: int, step: int) -> ConversationSampler:
        """Return a sampler of episodes."""
        main = self.main
        return ConversationSampler(
            main.engine,
            main.acting,
            sampling,
            seed,
            step,
            turn_order=self.turn_order,
            max_turns=self.max_turns,
            speakers=self.speakers,
        )

    def close(self) -> None:
        """Stop threads and workers of the engines, and those of environments."""
        for learner in self.learners.values():
            learner.close()
        close_speakers(self.speakers.values())


def run_iteration(team: Team, step: int) -> None:
    """Run iteration `step` (0-based): sample episodes, score them, and train every learner on those of its roles."""
    started, main = time.perf_counter(), team.main
    for partner in team.partners.values():
        partner.prepare(main.seed, step)
    context = iteration_context(main, step)
    controls = regulate(main.algorithm, step, context)
    sampling = Sampling(
        main.stage.temperature,
        main.stage.max_completion_length,
        entropy=any(learner.algorithm.needs("entropy_behav_T") for learner in team.learners.values()),
        processor=main.slots.logits_processor(step, controls, context.metrics),
        kept_tokens=main.stage.kept_tokens,
    )
    sampler = team.make_sampler(sampling, main.seed, step)
    context = replace(context, sampler=sampler, history=main.history)
    samples = collect_samples(main.slots, context, controls)
    sampled_at = time.perf_counter()
    if step == 0:
        refuse_rewards_without_scores(samples)
    main.counts.add(samples, main.slots.shown)

    metrics: Metrics = {}
    for partner in team.partners.values():
        metrics |= partner.league.record(samples) if partner.league is not None else {}
    prepared = {
        name: prepare_batch(learner, select_trained(samples, name), samples, context, step)
        for name, learner in team.learners.items()
    }
    for name, batch in add_other_turns({name: one.batch for name, one in prepared.items()}).items():
        prepared[name] = replace(prepared[name], batch=batch)
    for name, learner in team.learners.items():
        learnt = learn(learner, prepared[name])
        record_trajectories(main, step, learnt.collected, learnt.collected.batch)
        if name == MAIN:
            metrics |= learnt.metrics
            continue
        learner.curves.add(step, learnt.metrics)
        metrics |= {f"{name}/{key}": value for key, value in learnt.metrics.items() if key not in TIMED}
    others = [sample for sample in samples if isinstance(sample, RoleSample) and not sample.trainable]
    main.trajectories.add(step, others, [None] * len(others))
    for learner in team.learners.values():
        sync_weights(learner, step + 1)
    for partner in team.partners.values():
        partner.refresh(main.policy, step)

    metrics |= describe_roles(samples) | evaluate_held_out(team, context, controls)
    main.sampled += sampler.sampled
    main.spend(sampler.sampled)
    metrics |= {
        "sampled_tokens": float(main.sampled),
        "tokens_per_second": sampler.sampled / (time.perf_counter() - started),
        "generation_seconds": sampled_at - started,
    }
    note_evaluation(main, step, metrics)
    check_watches(main, step, metrics)
    check_token_limit(main, step)
    report_iteration(main, step, metrics, samples)


@dataclass(frozen=True)
class Learnt:
    """What a learner trained on, with its metrics."""

    collected: Collected
    metrics: Metrics


def select_trained(samples: Sequence[Sample], policy: str) -> list[Sample]:
    """Return the samples that a policy is trained on: its own, of roles that are trained."""
    return [s for s in samples if isinstance(s, RoleSample) and s.policy == policy and s.trainable]


@dataclass(frozen=True)
class Prepared:
    """The samples of a policy and the batch of those that it is trained on, before its advantages."""

    samples: list[Sample]
    batch: Batch
    context: IterationContext
    controls: Mapping[str, float]


def prepare_batch(
    learner: TrainingState, samples: list[Sample], everyone: Sequence[Sample], context: IterationContext, step: int
) -> Prepared:
    """Return the batch of a policy's samples, of those of `everyone`, with what its critic and references say of it."""
    own = replace(iteration_context(learner, step), sampler=context.sampler, history=context.history)
    controls = regulate(learner.algorithm, step, own)
    scored = [sample for sample in samples if sample.reward is not None]
    batch = keep_groups(learner.slots.filter_groups, scored, step, controls, own)
    kept = [scored[path] for path in batch.paths["path"].tolist()]
    batch = batch.with_paths(**role_columns(kept, everyone)).with_tokens(moment=locate_turns(batch, kept, everyone))
    if batch.num_paths:
        batch = add_model_columns(learner, learner.algorithm.settled(controls), batch, kept)
    return Prepared(samples, batch, replace(own, rows=[sample.row for sample in kept]), controls)


def learn(learner: TrainingState, prepared: Prepared) -> Learnt:
    """Train a policy on its batch; that of the result has the advantages that it was trained with."""
    batch, controls = prepared.batch, prepared.controls
    metrics = {f"controller/{name}": value for name, value in controls.items()}
    metrics |= describe_samples(prepared.samples, batch, episodes=True)
    if batch.num_paths:
        batch, updated = train_on_batch(learner, batch, prepared.context, controls)
        metrics |= updated
    metrics["learning_rate"] = learner.optimizer.param_groups[0]["lr"]
    return Learnt(Collected(prepared.samples, batch, 0, {}), metrics)


def role_columns(samples: Sequence[Sample], everyone: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Return path columns of samples: `conversation`, `role`, `team_mean` and `team_deviation` of the problem.

    `role` is the hash of its name. The reward of an episode is the mean of those of its samples; `everyone` are the
    samples of all roles.
    """
    of_problem: dict[int, list[float]] = {}
    for conversation in list_conversations(everyone).values():
        rewards = [sample.reward for sample in conversation if sample.reward is not None]
        if rewards:
            of_problem.setdefault(conversation[0].request, []).append(sum(rewards) / len(rewards))
    own = [of_problem[sample.request] for sample in samples if isinstance(sample, RoleSample)]
    return {
        "conversation": torch.tensor([s.conversation for s in samples if isinstance(s, RoleSample)], dtype=torch.long),
        "role": torch.tensor([hash_name(s.role) for s in samples if isinstance(s, RoleSample)], dtype=torch.long),
        "team_mean": torch.tensor([fmean(rewards) for rewards in own], dtype=torch.float64),
        "team_deviation": torch.tensor([pstdev(rewards) for rewards in own], dtype=torch.float64),
    }


def locate_turns(batch: Batch, samples: Sequence[Sample], everyone: Sequence[Sample]) -> torch.Tensor:
    """Return a number for every sampled token that orders the turns of all roles of its episode (T,).

    `samples` are the paths of the batch; the numbers of turns are those among the samples of `everyone`.
    """
    spoken = [sample.moments for sample in samples if isinstance(sample, RoleSample)]
    width = 1 + max((len(sample.moments) for sample in everyone if isinstance(sample, RoleSample)), default=0)
    numbers = [[place * width + turn for turn, place in enumerate(moments)] for moments in spoken]
    tokens = zip(batch.path_T.tolist(), batch.sampled("turn").tolist(), strict=True)
    return torch.tensor([numbers[path][turn] for path, turn in tokens], dtype=torch.long)


def add_other_turns(batches: Mapping[str, Batch]) -> dict[str, Batch]:
    """Add to each policy's batch what the others said in its episodes, as far as critics judge it.

    Path columns, one entry for each token of another policy: `other_moment` (−1: no such token), `other_value` of the
    state before it, and `other_reward`, which the sample earns at its last token.
    """
    judged = {name: batch for name, batch in batches.items() if batch.num_paths and "value" in batch.tokens}
    spoken: dict[str, dict[int, list[tuple[int, float, float]]]] = {}
    for name, batch in judged.items():
        last_T = locate_in_path(batch.path_T)[1] == 0
        paid_T = batch.paths["reward"][batch.path_T].double().where(last_T, 0.0)
        columns = (batch.paths["conversation"][batch.path_T], batch.sampled("moment"), batch.sampled("value"), paid_T)
        for number, *token in zip(*(column.tolist() for column in columns), strict=True):
            spoken.setdefault(name, {}).setdefault(number, []).append(tuple(token))
    added = dict(batches)
    for name, batch in judged.items():
        others = [
            [token for other in spoken if other != name for token in spoken[other].get(number, [])]
            for number in batch.paths["conversation"].tolist()
        ]
        width = max(map(len, others), default=0)
        if len(judged) > 1:
            table_PK3 = torch.full((batch.num_paths, width, 3), -1.0, dtype=torch.float64)
            for path, tokens in enumerate(others):
                if tokens:
                    table_PK3[path, : len(tokens)] = torch.tensor(tokens, dtype=torch.float64)
            moment_PK, value_PK, reward_PK = table_PK3.unbind(-1)
            added[name] = batch.with_paths(other_moment=moment_PK, other_value=value_PK, other_reward=reward_PK)
    return added


def describe_roles(samples: Sequence[Sample]) -> Metrics:
    """Return the mean reward, length and number of turns of every role, and the number of episodes."""
    by_role: dict[str, list[RoleSample]] = {}
    for sample in samples:
        if isinstance(sample, RoleSample):
            by_role.setdefault(sample.role, []).append(sample)
    metrics: Metrics = {}
    for role, own in by_role.items():
        described = describe_rewards(own)
        described |= {"completion_length": measure_length(own), "turns": sum(s.num_turns for s in own) / len(own)}
        metrics |= {f"role/{role}/{name}": value for name, value in described.items()}
    conversations = {sample.conversation for own in by_role.values() for sample in own}
    return metrics | {"conversations": float(len(conversations))}


def evaluate_held_out(team: Team, context: IterationContext, controls: Mapping[str, float]) -> Metrics:
    """Return metrics of episodes on the held-out problems, every `eval_steps` iterations; else nothing.

    `eval_reward` is the mean reward over the samples of all roles, `eval_reward/NAME` that of one of several rewards.
    """
    main, step = team.main, context.step
    if not main.held_out_rows or (step + 1) % main.stage.eval_steps:
        return {}
    stage = main.stage
    temperature = stage.temperature if stage.eval_temperature is None else stage.eval_temperature
    sampling = Sampling(temperature, stage.max_completion_length, kept_tokens=stage.kept_tokens)
    sampler = team.make_sampler(sampling, stream(main.seed, HELD_OUT), step)
    samples = sampler.sample([SampleRequest(row) for row in main.held_out_rows])
    main.slots.score(samples, controls, replace(context, sampler=sampler, states={}))
    measured = {**describe_rewards(samples), "completion_length": measure_length(samples), **describe_roles(samples)}
    return {f"eval_{name}": value for name, value in measured.items()}


def save_team(team: Team, step: int) -> None:
    """Write a checkpoint of every policy that changes; that of the stage's own policy is the last."""
    for partner in team.partners.values():
        partner.save(step)
    for learner in reversed(team.learners.values()):
        save(learner, step)


def resume_team(team: Team) -> int:
    """Return the iteration to start at: 0, or that of the latest checkpoint which every policy has.

    Raise StepError if the checkpoint of one of them is damaged.
    """
    moving = [partner for partner in team.partners.values() if partner.changes]
    folders = [learner.checkpoints for learner in team.learners.values()] + [p.checkpoints for p in moving]
    common = set.intersection(*({file.name for file in folder.glob("step-*")} for folder in folders))
    for folder in folders:  # a kill between two saves leaves checkpoints that the other policies lack
        for file in folder.glob("step-*"):
            if file.name not in common:
                shutil.rmtree(file)
    steps = {resume(learner) for learner in team.learners.values()}
    steps |= {partner.resume() for partner in moving}
    if len(steps) > 1:
        raise StepError("roles: the checkpoint of one of the policies is damaged; run the stage with --fresh")
    return steps.pop()
