"""A point that is to be in regions at allocated times. Shapes: K tasks, D subgoals, O numbers of an observation.

The task of an episode is an allocation: for every subgoal of the plan a time within its window.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.temporal_logic import Plan, read_plan
from schemas.errors import StepError
from schemas.references import DirectoryRef

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
WIDEST = 2.0


class TimedReach(gymnasium.Env):
    """Moves a point for the steps of the plan's horizon, from a fixed start.

    At each step one subgoal is active: the first whose allocated time has not passed. A step earns how much nearer its
    region has come, and 1 at the allocated time within the region; a step that breaks an invariant costs 1, and the
    last step earns 2 if the whole formula holds.
    """

    def __init__(
        self, plan: Plan, regions: dict[str, list[float]], start: list[float], stride: float, pays: str
    ) -> None:
        """Take a plan; a region is the middle of a disc and its radius. Raise StepError for one that is missing."""
        for part in (*plan.subgoals, *plan.invariants):
            if len(regions.get(part.region, ())) != 3:
                raise StepError(f"env timed_reach: region {part.region} of the plan wants [x, y, radius] in `regions`")
        self.plan, self.regions, self.stride, self.pays = plan, regions, stride, pays
        self.start = np.array(start, float)
        self.limit = max(part.last for part in (*plan.subgoals, *plan.invariants))
        goals = plan.subgoals
        lowest, highest = ([float(getattr(goal, name)) for goal in goals] for name in ("first", "last"))
        self.task_space = gymnasium.spaces.Box(np.array(lowest), np.array(highest), (len(goals),), np.float64)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5 + 2 * len(goals),), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def measure(self, name: str, place: np.ndarray) -> float:
        """Return the distance of a place from a region's edge, below 0 inside."""
        x, y, radius = self.regions[name]
        return float(np.hypot(place[0] - x, place[1] - y) - radius)

    def find_stage(self, step: int, times: np.ndarray) -> int:
        """Return the number of the active subgoal at a step; the number of subgoals after the last one."""
        return next((n for n, time in enumerate(times) if step < time), len(times))

    def observe(self, place: np.ndarray, step: int, times: np.ndarray) -> np.ndarray:
        """Return the place, the way to the active region, the time left for it, all times, and which one is active."""
        stage, goals = self.find_stage(step, times), self.plan.subgoals
        active = min(stage, len(goals) - 1)
        way = np.array(self.regions[goals[active].region][:2]) - place
        left = max(times[active] - step, 0.0) / self.limit
        return np.array([*place, *way, left, *(times / self.limit), *np.eye(len(goals) + 1)[stage][:-1]], np.float32)

    def show_start(self, task_KD: np.ndarray) -> np.ndarray:
        """Return the first observations (K, O) of episodes with these tasks."""
        return np.stack([self.observe(self.start, 0, np.round(task)) for task in task_KD])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin at the start, with the times of a task, rounded to steps."""
        super().reset(seed=seed)
        low, high = self.task_space.low, self.task_space.high
        self.times = np.round(options["task"] if options else self.np_random.uniform(low, high))
        self.place, self.steps, self.broken = self.start.copy(), 0, False
        self.reached = [False] * len(self.times)
        return self.observe(self.place, 0, self.times), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move, and look which parts of the formula hold."""
        goals, stage = self.plan.subgoals, self.find_stage(self.steps, self.times)
        name = goals[stage].region if stage < len(goals) else None
        before = self.place
        self.place = np.clip(before + self.stride * np.asarray(action, float), -WIDEST, WIDEST)
        self.steps += 1
        reward = 0.0
        if name is not None:
            reward += self.measure(name, before) - self.measure(name, self.place)
            reward += float(self.steps == self.times[stage] and self.measure(name, self.place) <= 0)
        for n, goal in enumerate(goals):
            self.reached[n] |= goal.first <= self.steps <= goal.last and self.measure(goal.region, self.place) <= 0
        wrong = any(
            part.first <= self.steps <= part.last and (self.measure(part.region, self.place) <= 0) != part.inside
            for part in self.plan.invariants
        )
        self.broken |= wrong
        over = self.steps >= self.limit
        holds = over and all(self.reached) and not self.broken
        reward = float(holds) if self.pays == "success" else reward - float(wrong) + 2.0 * holds
        info = {"stage": stage, "holds": holds}
        return self.observe(self.place, self.steps, self.times), reward, over, False, info


def timed_reach(
    *,
    plan: DirectoryRef,
    regions: dict[str, list[float]],
    start: list[float] = [0.0, -1.0],  # noqa: B006 — a recipe needs the default to be readable
    stride: Annotated[float, Field(gt=0)] = 0.2,
    pays: Literal["stages", "success"] = "stages",
) -> gymnasium.Env:
    """Return a point whose task is when to be in which region, so that the formula of a plan holds.

    `pays: success` pays 1 at the end if it does, to measure it in an evaluation.
    """
    return TimedReach(read_plan(Path(plan)), regions, start, stride, pays)
