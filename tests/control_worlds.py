"""Small worlds for tests (a corridor, a point on a line, one that keeps a secret), and kept steps."""

from pathlib import Path

import gymnasium
import numpy as np
import torch

from learning.control.worlds.forms import Form, read_tasks
from schemas.references import DirectoryRef


class Corridor(gymnasium.Env):
    """Cells in a row; the right end pays 1 and ends the episode, after `limit` steps it is cut off."""

    def __init__(self, cells: int = 5, limit: int = 12) -> None:
        self.cells, self.limit = cells, limit
        self.observation_space = gymnasium.spaces.Discrete(cells)
        self.action_space = gymnasium.spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(self.cells - 1)), 0
        return self.place, {}

    def step(self, action):
        assert action in (1, 2)
        self.place = min(max(self.place + (1 if action == 2 else -1), 0), self.cells - 1)
        self.steps += 1
        done = self.place == self.cells - 1
        return self.place, float(done), done, self.steps >= self.limit and not done, {}


class Stairs(Corridor):
    """A corridor whose observations show the step of the episode, too."""

    def __init__(self, cells: int, limit: int) -> None:
        super().__init__(cells, limit)
        self.observation_space = gymnasium.spaces.Discrete(cells * (limit + 1))

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}

    def step(self, action):
        place, *rest = super().step(action)
        return self.steps * self.cells + place, *rest


class Lamps(gymnasium.Env):
    """Two lamps; each action turns one over, and a step earns the number of those that are lit. It never ends."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lit, self.steps = int(self.np_random.integers(4)), 0
        return self.lit, {}

    def step(self, action):
        self.lit, self.steps = self.lit ^ (1, 2)[action], self.steps + 1
        return self.lit, float(self.lit.bit_count()), False, self.steps >= 10, {}


class Line(gymnasium.Env):
    """A point that is pushed along a line; the reward is minus its squared distance from 0."""

    def __init__(self, limit: int = 8, noise: float = 0.0) -> None:
        self.limit, self.noise = limit, noise
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 0.5 * float(action[0]) + self.noise * float(self.np_random.normal())
        self.steps += 1
        return np.array([self.x], np.float32), -(self.x**2), False, self.steps >= self.limit, {}


class Drift(Line):
    """A line with a drift that is drawn for every episode; the drift stands at the end of the observation, or a 0."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.hidden = hidden
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        shown, info = super().reset(seed=seed)
        self.drift = float(self.np_random.uniform(-0.2, 0.2))
        return self.show(shown), info

    def show(self, shown):
        return np.array([*shown, 0.0 if self.hidden else self.drift], np.float32)

    def step(self, action):
        self.x += self.drift
        shown, *rest = super().step(action)
        return self.show(shown), *rest


class GoalLine(Line):
    """A line whose task is how far from 0 it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.task_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(options["task"][0] if options else self.np_random.uniform())
        return np.array([self.x], np.float32), {}


class Fence(Line):
    """A line that ends where a point is farther than 0.8 from 0."""

    def __init__(self, counted: bool) -> None:
        super().__init__()
        self.counted = counted

    def step(self, action):
        shown, earned, _, over, info = super().step(action)
        outside = abs(self.x) > 0.8
        return shown, float(outside) if self.counted else earned, outside, over and not outside, info


class Tally(gymnasium.Env):
    """Every choice earns its number, over `limit` steps; the observation says nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.observation_space, self.action_space = gymnasium.spaces.Discrete(1), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, float(action), self.steps == self.limit, False, {}


class Restless(Line):
    """A line whose noise comes from nowhere: the same seed and actions lead to other observations."""

    moves = 0

    def step(self, action):
        Restless.moves += 1
        self.x += 0.01 * Restless.moves
        return super().step(action)


class Meeting:
    """Two agents, each shown 0 or 1, are paid for naming the number that the other one is shown; three times."""

    possible_agents = ("left", "right")
    metadata: dict[str, str] = {"name": "meeting"}

    def observation_space(self, agent):
        return gymnasium.spaces.MultiBinary(2)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def close(self):
        pass

    def show(self):
        return {"left": np.array(self.shown), "right": np.array(self.shown[::-1])}

    def reset(self, seed=None, options=None):
        self.rng, self.steps, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        self.shown = self.rng.integers(2, size=2).tolist()
        return self.show(), {}

    def step(self, actions):
        rewards = {name: float(actions[name] == self.show()[name][1]) for name in self.possible_agents}
        self.shown, self.steps = self.rng.integers(2, size=2).tolist(), self.steps + 1
        over = self.steps == 3
        self.agents = [] if over else self.agents
        return self.show(), rewards, dict.fromkeys(rewards, over), dict.fromkeys(rewards, False), {}


def corridor(*, cells: int = 5, limit: int = 12) -> gymnasium.Env:
    """Return a corridor."""
    return Corridor(cells, limit)


def stairs(*, cells: int = 5, limit: int = 12) -> gymnasium.Env:
    """Return a corridor that shows the step."""
    return Stairs(cells, limit)


def lamps() -> gymnasium.Env:
    """Return two lamps."""
    return Lamps()


def line(*, limit: int = 8, noise: float = 0.0) -> gymnasium.Env:
    """Return a line."""
    return Line(limit, noise)


def drift(*, hidden: bool = False) -> gymnasium.Env:
    """Return a line with a drift."""
    return Drift(hidden)


def drift_costs(next_observation_NO, action_N):
    """What a step on a line costs, by name."""
    nothing = np.zeros(len(action_N))
    named = {"position": next_observation_NO[:, 0] ** 2, "action": action_N[:, 0] ** 2}
    return {**named, "velocity": nothing, "tilt": nothing}


def goal_line() -> gymnasium.Env:
    """Return a line with tasks."""
    return GoalLine()


def fence(*, counted: bool = False) -> gymnasium.Env:
    """Return a line that must not be left."""
    return Fence(counted)


def tally(*, limit: int = 4) -> gymnasium.Env:
    """Return a world in which a policy can earn any sum up to 2 · limit."""
    return Tally(limit)


def restless(*, limit: int = 8) -> gymnasium.Env:
    """Return a line that cannot be repeated."""
    return Restless(limit)


def steer(observation_NO, spaces):
    """Act well on a line: back to 0."""
    return np.clip(-2 * observation_NO, spaces.low, spaces.high).astype(np.float32)


def forms(*, open: int | None = None, tasks: DirectoryRef | None = None):
    """Return a form of two fields and three words."""
    given = [] if tasks is None else read_tasks(Path(tasks), 2, 3)
    return Form(2, 3, min(open or 2, 2), 4, given)


class Plants(Meeting):
    """Three plants, each shown dry (0) or not; watering dry ones pays. There is water for two, or the last alone."""

    possible_agents = ("fern", "palm", "moss")
    metadata: dict[str, str] = {"name": "plants"}

    def observation_space(self, agent):
        return gymnasium.spaces.MultiBinary(1)

    def show(self):
        return {name: np.array([state]) for name, state in zip(self.possible_agents, self.shown, strict=True)}

    def reset(self, seed=None, options=None):
        self.rng, self.steps, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        self.shown = self.rng.integers(2, size=3).tolist()
        return self.show(), {}

    def step(self, actions):
        wet = [actions[name] for name in self.possible_agents]
        wet = [0, 0, 0] if sum(wet) + 2 * wet[2] > 3 else wet
        rewards = {name: float(w and not s) for name, w, s in zip(self.possible_agents, wet, self.shown, strict=True)}
        self.shown, self.steps = self.rng.integers(2, size=3).tolist(), self.steps + 1
        over = self.steps == 4
        self.agents = [] if over else self.agents
        return self.show(), rewards, dict.fromkeys(rewards, over), dict.fromkeys(rewards, False), {}


def plants():
    """Return three plants."""
    return Plants()


def meeting():
    """Return a world of two agents."""
    return Meeting()


def name_the_others(observation_NO):
    """Act well in a meeting."""
    return observation_NO[:, [1, 3]].astype(int)


def stand_left(observation_NO, action_N):
    """Pay for steps to the left in a corridor, which lead away from its end."""
    return 0.5 * (action_N == 0) * (observation_NO.argmax(1) < 9)


def ends_low(observation_KO):
    """Rate an episode on a line by how near 0 it ends."""
    return -abs(float(observation_KO[-1, 0]))


def stride(observation_NO):
    """Act well in a corridor: to the right."""
    return np.ones(len(observation_NO), int)


def outside(batch, actor, spaces):
    """Return the squared distance of the actor's mean action from the largest one that the worlds take."""
    action = actor(batch.select("observation"))["action"]
    return (action - action.new_tensor(spaces.high)).square().mean()


def keep_steps(rows, states):
    """Columns of kept steps from (state, action, reward, next state, whether it ended)."""
    before, action, reward, after, ended = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "observation": torch.eye(states)[before],
        "action": torch.from_numpy(action),
        "reward": torch.from_numpy(reward).float()[:, None],
        "next_observation": torch.eye(states)[after],
        "terminated": torch.from_numpy(ended)[:, None],
        "truncated": torch.zeros(len(ended), 1, dtype=torch.bool),
    }


class Errands(Corridor):
    """A corridor with two objectives: being at the right end, and not having moved there."""

    def step(self, action):
        place, earned, *rest = super().step(action)
        return place, np.array([earned, -float(action == 2)]), *rest


def errands() -> gymnasium.Env:
    """Return a corridor with two objectives."""
    return Errands()


class Notes(Corridor):
    """A corridor described in words."""

    choices = ("go back", "go on")
    words = ("door", "wall", "end")
    edges = (("you", "at", "door"), ("you", "at", "wall"))

    @property
    def text(self):
        return "a door" if self.place % 2 else "a wall"

    @property
    def graph(self):
        return [("you", "at", self.text.removeprefix("a "))]

    def step(self, action):
        return super().step(int(action) + 1)


def notes() -> gymnasium.Env:
    """A corridor described in words, with choices from 0."""
    world = Notes()
    world.action_space = gymnasium.spaces.Discrete(2)
    return world


class Practised(Corridor):
    """A corridor whose info has how often its middle and its end were reached."""

    def reset(self, *, seed=None, options=None):
        self.achievements = {"half": 0, "end": 0}
        return super().reset(seed=seed)[0], {}

    def step(self, action):
        place, reward, ended, cut, _ = super().step(action)
        self.achievements["half"] += place >= self.cells // 2
        self.achievements["end"] += int(ended)
        return place, reward, ended, cut, {"achievements": self.achievements}


def practised(*, limit: int = 12):
    return Practised(5, limit)


def say_arrivals(observation_NO, next_observation_NO):
    """Say at which cell of a corridor each step arrived; nothing where it stayed."""
    places = zip(observation_NO.argmax(1), next_observation_NO.argmax(1), strict=True)
    return ["" if before == after else f"You come to cell {after}." for before, after in places]
