"""Training of a control policy: act, keep the steps, update; offline, on a buffer, or on the newest steps alone.

Shapes: N worlds, S steps of each in a rollout, B steps in a batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from learning.api.spending import SpendingAccount
from learning.control.buffers.buffer import Buffer
from learning.control.buffers.replay import Priorities, draw_batch
from learning.control.buffers.rollouts import add_previous_policy, stack_rollout
from learning.control.dataflow import ActorStream, PolicyStream
from learning.control.losses.standard import Algorithm
from learning.control.policies.acting import random
from learning.control.policies.playing import play
from learning.control.policies.policy import act
from learning.control.progress import Reporter, Window
from learning.control.rewards.segments import reward_segments
from learning.control.sample_stream import Collection
from learning.control.stepping.replaced_columns import replace_columns
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Make, Steps, Worlds
from learning.lookup import Bound, asked_of
from learning.models.checkpoint import (
    add_prefix,
    get_optimizer_state,
    load_latest,
    load_optimizer_state,
    save_checkpoint,
    strip_prefix,
)
from learning.parallel.group import ALONE
from learning.parallel.random_states import collect_random_states, restore_random_states
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.number_schedules import value_at
from schemas.stages.control import Control


@dataclass
class ControlLoop:
    """One training: its networks, worlds, buffers and counts."""

    stage: Control
    algorithm: Algorithm
    make: Make | None
    """Returns a world for evaluations; None: there are none."""
    spaces: Spaces
    """What the worlds show and take."""
    worlds: Worlds | ActorStream | None
    """Worlds to act in, here or those of actors; None: offline."""
    data: Buffer | None
    """Steps of others; None: only own ones. A loss on the newest steps alone leaves them to the terms."""
    terms: Mapping[str, Bound]
    exploration: Bound | None
    reporter: Reporter
    checkpoints: Path
    seed: int
    relabel: Bound | None = None
    segment_reward: Bound | None = None
    priority: Bound | None = None
    account: SpendingAccount | None = None
    """Pays for what `relabel` asks of servers."""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What functions remember, by slot: JSON values, or objects with a method `save` that returns one."""
    policy: PolicyStream | None = None
    """Policy worker that acts; None: this process does."""
    collection: Collection | None = None
    """Collects rollouts meanwhile; None: rollouts and updates take turns."""
    updates: int = 0
    pending_updates: float = 0.0
    window: Window = field(default_factory=Window)
    curve: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stage = self.stage
        self.parameters = {name: p for name, p in self.algorithm.loss.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=stage.learning_rate, foreach=True)
        self.buffer: Buffer | None = None
        if self.worlds is not None and not self.algorithm.is_on_policy:
            self.buffer = Buffer(min(stage.buffer_size, stage.environment_steps), self.spaces)
        fits = self.algorithm.fit is not None or self.algorithm.fit_newest is not None
        if fits and (self.terms or self.priority or stage.data_share):
            raise StepError(f"loss {stage.loss.use} fits the steps itself: remove loss_terms, priority and data_share")
        if self.algorithm.draw is not None and (self.priority or stage.data_share):
            raise StepError(f"loss {stage.loss.use} draws its batches itself: remove priority and data_share")
        if self.segment_reward is not None and self.algorithm.advantage is None:
            raise StepError(f"segment_reward: loss {stage.loss.use} keeps single steps; use ppo, a2c or mdpo")
        if stage.relabel_every and (self.buffer is None or "reward_N" in asked_of(cast("Bound", self.relabel))):
            raise StepError(
                "relabel_every: steps get new columns in a buffer of own steps, and not from their rewards: use "
                "a loss that keeps steps, as td3 or sac, and a `relabel` that does not ask for `reward_N`"
            )
        self.priorities = self.make_priorities()
        self.rng = np.random.default_rng([self.seed, 1])

    def make_priorities(self) -> Priorities | None:
        """Return the priorities of the data and of places for own steps; None where steps are drawn evenly."""
        if self.priority is None:
            return None
        if self.algorithm.error_power == 0:
            raise StepError(f"priority: loss {self.stage.loss.use} gives no weighted errors; use dqn, sac or td3")
        of_data = 0 if self.data is None else len(self.data)
        priorities = Priorities(of_data + (0 if self.buffer is None else self.buffer.capacity))
        priorities.add(np.arange(of_data))
        return priorities

    @property
    def steps_per_iteration(self) -> int:
        """Return the environment steps of an iteration; 0 offline."""
        if self.worlds is None:
            return 0
        return self.stage.num_envs * (self.stage.rollout_steps if self.algorithm.is_on_policy else 1)

    @property
    def total(self) -> int:
        """Return the number of iterations: environment steps that are taken together, or offline one update each."""
        if self.worlds is None:
            return self.stage.max_steps or 0
        return math.ceil(self.stage.environment_steps / self.steps_per_iteration)

    def run(self) -> None:
        """Train to the end, from the latest checkpoint if there is one."""
        stage = self.stage
        every = max(1, math.ceil(stage.logging_steps / max(1, self.steps_per_iteration)))
        evaluate = stage.eval_steps and max(1, math.ceil(stage.eval_steps / max(1, self.steps_per_iteration)))
        save = max(1, math.ceil(stage.save_steps / max(1, self.steps_per_iteration)))
        first = self.resume()
        if self.collection is not None:
            self.collection.publish(first)
            self.collection.start()
        for iteration in range(first, self.total):
            self.iterate(iteration)
            last = iteration + 1 == self.total
            if evaluate and (last or (iteration + 1) % evaluate == 0):
                self.window.add(eval_return=float(self.evaluate().mean()))
            if last or (iteration + 1) % every == 0:
                self.log(iteration + 1)
            if not last and (iteration + 1) % save == 0:
                self.save(iteration + 1)

    def iterate(self, iteration: int) -> None:
        """Take one iteration."""
        if self.worlds is None and self.algorithm.fit is not None:
            self.fit()
        elif self.worlds is None:
            self.update(self.draw(iteration), iteration)
        elif self.algorithm.is_on_policy:
            self.train_on_rollout(iteration)
        elif self.algorithm.fit is not None:
            steps = self.collect(iteration)
            if self.algorithm.fits_each == "step" or steps.ended or iteration + 1 == self.total:
                self.fit()
        else:
            self.collect(iteration)
            ready = self.buffer is not None and len(self.buffer) >= self.stage.learning_starts
            if ready:
                self.pending_updates += self.stage.updates_per_step * self.stage.num_envs
            while self.pending_updates >= 1:
                self.pending_updates -= 1
                self.update(self.draw(iteration), iteration)

    def fit(self) -> None:
        """Change the actor by all kept steps."""
        assert self.algorithm.fit is not None
        parts = [part.save() for part in (self.data, self.buffer) if part is not None]
        kept = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.window.add(**self.algorithm.fit(kept, self.rng))
        self.updates += self.algorithm.updates_per_fit

    def collect(self, iteration: int) -> Steps:
        """Act once in every world and keep the steps in the buffer."""
        worlds = self.worlds
        assert worlds is not None
        if self.stage.relabel_every and iteration and iteration % self.stage.relabel_every == 0:
            self.relabel_kept(iteration)
        observation_NO = worlds.observation
        waiting = self.buffer is not None and len(self.buffer) < self.stage.learning_starts and not self.stage.model
        if waiting:
            action_N = random(worlds.observation, worlds.spaces, self.rng)
        else:
            action_N = self.choose(observation_NO)
            if self.exploration is not None:
                supplies = {"action_N": action_N, "observation_NO": observation_NO, "spaces": self.spaces}
                supplies |= {"rng": self.rng, "step": iteration}
                action_N = self.exploration.ask(iteration * self.steps_per_iteration, supplies)
        steps = worlds.step(action_N)
        for _, earned, length in steps.ended:
            self.window.add(episode_return=earned, episode_length=length)
        if self.relabel is not None:
            policy_loss = self.stage.loss.use if self.algorithm.is_on_policy else None
            steps = replace_columns(
                steps,
                self.relabel,
                iteration,
                self.spaces,
                self.rng,
                self.get_kept(),
                policy_loss=policy_loss,
                more={"states": self.states, "account": self.account},
            )
        if self.buffer is not None:
            self.keep(steps)
        return steps

    def choose(self, observation_NO: np.ndarray) -> np.ndarray:
        """Return actions that the policy draws, here or in its worker."""
        if self.policy is not None:
            return self.policy.act(observation_NO, self.updates)
        return act(self.algorithm.actor, observation_NO, explore=True)

    def get_kept(self) -> np.ndarray | None:
        """Return the observations (K, O) after all kept own steps; None where none are kept."""
        return None if self.buffer is None else self.buffer.save()["next_observation"].numpy()

    def relabel_kept(self, iteration: int) -> None:
        """Give all kept own steps the columns that `relabel` gives now."""
        assert self.buffer is not None
        assert self.relabel is not None
        steps, kept_KO = self.buffer.get_steps(), self.get_kept()
        kept = replace_columns(steps, self.relabel, iteration, self.spaces, self.rng, kept_KO, policy_loss=None)
        self.buffer.replace(kept)

    def draw(self, iteration: int) -> Any:
        """Return a batch of the data and the buffer: evenly, by priorities, or with `data_share` from each."""
        parts = [part for part in (self.data, self.buffer) if part is not None and len(part)]
        if self.algorithm.draw is not None:
            return self.algorithm.draw(parts, self.stage.batch_size)
        correction = value_at(self.stage.priority_correction, iteration)
        return draw_batch(parts, self.stage.batch_size, self.stage.data_share, self.priorities, correction)

    def keep(self, steps: Steps) -> None:
        """Put own steps into the buffer."""
        assert self.buffer is not None
        place_N = (self.buffer.added + np.arange(len(steps.reward))) % self.buffer.capacity
        self.buffer.add(steps)
        if self.priorities is not None:
            self.priorities.add(place_N + (0 if self.data is None else len(self.data)))

    def prioritise(self, batch: Any, iteration: int) -> None:
        """Change the priorities of a batch's steps by the errors that the loss found."""
        if self.priorities is None or self.priority is None:
            return
        error_B = batch["td_error"].detach().reshape(len(batch)).double().numpy() ** (1 / self.algorithm.error_power)
        mass_B = np.asarray(self.priority.ask(iteration, {"error_B": error_B, "batch": batch}), dtype=float)
        if mass_B.shape != error_B.shape or not (np.isfinite(mass_B) & (mass_B >= 0)).all() or not mass_B.any():
            raise StepError(f"priority {self.priority.name}: it must give {len(error_B)} finite numbers from 0 on")
        self.priorities.update(batch["place"].numpy(), mass_B)

    def train_on_rollout(self, iteration: int) -> None:
        """Collect a rollout of every world, estimate advantages, and make some passes over it."""
        if self.collection is not None:
            self.train_on_sample(self.collection, iteration)
            return
        rollout = [self.collect(iteration) for _ in range(self.stage.rollout_steps)]
        if self.segment_reward is not None:
            rollout = reward_segments(rollout, self.segment_reward, iteration, self.spaces, self.rng)
        batch_NS = stack_rollout(rollout)
        if self.algorithm.fit_newest is not None:
            data = None if self.data is None else self.data.save()
            self.window.add(**self.algorithm.fit_newest(batch_NS, data, self.rng))
            self.updates += self.algorithm.updates_per_fit
            return
        with torch.no_grad():
            add_previous_policy(self.algorithm.actor, batch_NS)
        self.pass_over(batch_NS, iteration)

    def train_on_sample(self, collection: Collection, iteration: int) -> None:
        """Train on the next rollout that was collected meanwhile, and let the following ones use the new weights."""
        sample = collection.stream.take(iteration)
        for _, earned, length in sample.ended:
            self.window.add(episode_return=earned, episode_length=length)
        self.window.add(staleness=iteration - sample.version)
        self.pass_over(sample.batch, iteration)
        collection.publish(iteration + 1)

    def pass_over(self, batch_NS: Any, iteration: int) -> None:
        """Estimate advantages of a rollout, and make some passes over it."""
        with torch.no_grad():
            self.algorithm.advantage(batch_NS)
        batch = batch_NS.reshape(-1)
        for _ in range(self.stage.num_iterations):
            for place_B in torch.randperm(len(batch)).split(self.stage.batch_size):
                self.update(batch[place_B], iteration)

    def update(self, batch: Any, iteration: int) -> None:
        """Take one optimiser step on a batch."""
        terms = self.compute_terms(batch, iteration)
        total = torch.stack([*terms.values()]).sum()
        if not torch.isfinite(total):
            values = ", ".join(f"{name} {float(term.detach()):g}" for name, term in terms.items())
            raise StepError(f"control: the loss of update {self.updates} is not finite ({values}); lower learning_rate")
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        delays = bool(self.algorithm.delayed) and self.updates % self.algorithm.period != 0
        if delays:
            for name, parameter in self.parameters.items():
                if name.startswith(self.algorithm.delayed):
                    parameter.grad = None
        if self.stage.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.stage.max_grad_norm)
        self.optimizer.step()
        if not (delays and self.algorithm.delays_targets):
            self.algorithm.update_targets()
        self.prioritise(batch, iteration)
        self.updates += 1
        if self.updates % 10 == 1:  # reading every one would cost as much as a small network's forward pass
            self.window.add(**{name: float(term.detach()) for name, term in terms.items()})

    def compute_terms(self, batch: Any, iteration: int) -> dict[str, Tensor]:
        """Return the terms of the loss by name; those of the stage replace TorchRL's of the same name."""
        losses = self.algorithm.loss(batch)
        terms = {name: losses[name] for name in self.algorithm.terms if name in losses.keys()}  # noqa: SIM118
        supplies = {"batch": batch, "loss": self.algorithm.loss, "actor": self.algorithm.actor}
        supplies |= {"spaces": self.spaces, "step": iteration}
        if self.data is not None and any("data_batch" in asked_of(bound) for bound in self.terms.values()):
            # From NumPy's stream, so that a term of weight 0 leaves the rest of the training as it is.
            place_B = torch.from_numpy(self.rng.integers(len(self.data), size=self.stage.batch_size))
            supplies["data_batch"] = self.data.make_batch(place_B)
        for name, bound in self.terms.items():
            terms[name] = value_at(self.stage.loss_terms[name].coef, iteration) * bound.ask(iteration, supplies)
        return terms

    def evaluate(self) -> np.ndarray:
        """Return the returns of `eval_episodes` episodes of the policy without exploration."""
        assert self.make is not None
        return play(self.make, self.algorithm.actor, range(self.stage.eval_episodes), self.seed, "held_out")

    def log(self, iteration: int) -> None:
        """Add a point to the curves."""
        steps = max(1, self.steps_per_iteration)
        at = iteration * steps
        self.curve.append((at, {**self.window.take(), "updates": self.updates}))
        self.reporter.log(at, **self.curve[-1][1])
        self.reporter.progress(at, self.total * steps)

    def save(self, iteration: int) -> None:
        """Write a checkpoint."""
        moments, groups = get_optimizer_state(self.optimizer)
        random_tensors, random_rest = collect_random_states(ALONE)
        tensors = add_prefix("networks", self.algorithm.loss.state_dict()) | add_prefix("optimizer", moments)
        tensors |= random_tensors
        state: JsonObject = {
            "optimizer": groups,
            **random_rest,
            "updates": self.updates,
            "pending_updates": self.pending_updates,
            "spending": self.reporter.spending.to_json(),
        }
        state |= {"window": dict(self.window.values), "curve": self.curve, "numpy": self.rng.bit_generator.state}
        if self.states:
            state["states"] = {
                slot: {name: one.save() if hasattr(one, "save") else one for name, one in held.items()}
                for slot, held in self.states.items()
            }
        if self.worlds is not None:
            world_tensors, state["worlds"] = self.worlds.save()
            tensors |= add_prefix("worlds", world_tensors)
        if self.buffer is not None:
            tensors |= add_prefix("buffer", self.buffer.save())
            state["added"] = self.buffer.added
        if self.priorities is not None:
            tensors["priorities"] = self.priorities.save()
        kept = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
        save_checkpoint(self.checkpoints, iteration, kept, state)

    def resume(self) -> int:
        """Restore the latest checkpoint and return the iteration to continue at; 0 if there is none."""
        checkpoint = load_latest(self.checkpoints)
        if checkpoint is None:
            return 0
        iteration, tensors, state = checkpoint
        self.algorithm.loss.load_state_dict(strip_prefix("networks", tensors), strict=False)
        load_optimizer_state(self.optimizer, strip_prefix("optimizer", tensors), state["optimizer"])
        if self.worlds is not None:
            self.worlds.restore(strip_prefix("worlds", tensors), state["worlds"])
        if self.buffer is not None:
            self.buffer.restore(strip_prefix("buffer", tensors), state["added"])
        if self.priorities is not None:
            self.priorities.restore(tensors["priorities"])
        self.rng.bit_generator.state = state["numpy"]
        self.states = state.get("states", {})
        self.updates, self.pending_updates = state["updates"], state["pending_updates"]
        self.window.values.update(state["window"])
        self.curve = [(step, values) for step, values in state["curve"]]
        for step, values in self.curve:
            self.reporter.log(step, **values)
        self.reporter.spending.load(state["spending"])
        restore_random_states(tensors, state, ALONE)
        return iteration
