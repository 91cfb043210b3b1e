"""A quadrotor in the plane: two rotors with a lag, a disturbance that is not seen on board. N worlds, O numbers.

What critics alone see (the disturbance and the speeds of the rotors) stands at the end of the observation.
"""

from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.rewards.weighted_costs import add_costs

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
SECONDS, GRAVITY = 0.02, 9.81
ARM, INERTIA = 0.1, 0.02
"""Distance of a rotor from the middle, and moment of inertia per mass."""
HISTORY = 4
"""Past actions that are seen."""
SEEN = 7 + 2 * HISTORY
"""Numbers that are seen on board: place, velocity, sine and cosine of the tilt, its velocity, past actions."""
PRIVILEGED = 5
"""Numbers that critics see besides: a force in two directions, a moment, and the thrusts of both rotors."""
FARTHEST = 2.0


class PlanarQuadrotor(gymnasium.Env):
    """Hovers at the middle; an action sets the wanted thrusts of both rotors, 0 being those that carry the weight.

    Thrusts follow with a lag of the first order. A disturbance (accelerations, and one of the tilt) is drawn for every
    episode. It ends where the quadrotor is more than 2 away, or tilted by more than 90 degrees.
    """

    def __init__(self, lag: float, gusts: float, limit: int, weights: dict[str, float], blind: bool) -> None:
        self.lag, self.gusts, self.limit, self.weights, self.blind = lag, gusts, limit, weights, blind
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SEEN + PRIVILEGED,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> np.ndarray:
        """Return what is seen on board, and after it what critics see."""
        on_board = [*self.place, *self.velocity, np.sin(self.tilt), np.cos(self.tilt), self.turning]
        beside = np.zeros(PRIVILEGED) if self.blind else [*self.disturbance, *self.thrusts]
        return np.array([*on_board, *self.past, *beside], np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin near the middle, and draw the disturbance of the episode."""
        super().reset(seed=seed)
        self.place, self.velocity = self.np_random.uniform(-0.3, 0.3, 2), self.np_random.uniform(-0.3, 0.3, 2)
        self.tilt, self.turning = (float(x) for x in self.np_random.uniform(-0.3, 0.3, 2))
        self.disturbance = self.gusts * self.np_random.normal(size=3)
        self.thrusts, self.past, self.steps = np.zeros(2), np.zeros(2 * HISTORY), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take a step of Euler; a thrust of −1 is none, one of 1 twice what hovering takes."""
        wanted = np.asarray(action, float)
        self.thrusts = self.thrusts + SECONDS / self.lag * (wanted - self.thrusts)
        left, right = GRAVITY / 2 * (1 + self.thrusts)
        up = np.array([-np.sin(self.tilt), np.cos(self.tilt)])
        pull = (left + right) * up - np.array([0.0, GRAVITY]) + self.disturbance[:2]
        self.velocity = self.velocity + SECONDS * pull
        self.turning += SECONDS * (ARM * (right - left) / INERTIA + self.disturbance[2])
        self.place = self.place + SECONDS * self.velocity
        self.tilt += SECONDS * self.turning
        self.past = np.concatenate([wanted, self.past[:-2]])
        self.steps += 1
        fell = bool(np.abs(self.place).max() > FARTHEST or abs(self.tilt) > np.pi / 2)
        shown = self.observe()
        reward = float(add_costs(flight_costs(shown[None], wanted[None]), self.weights)[0])
        return shown, reward, fell, self.steps >= self.limit and not fell, {}


def planar_quadrotor(
    *,
    lag: Annotated[float, Field(gt=0.02)] = 0.06,
    gusts: Annotated[float, Field(ge=0)] = 0.3,
    limit: Annotated[int, Field(ge=1)] = 150,
    position: Annotated[float, Field(ge=0)] = 20.0,
    velocity: Annotated[float, Field(ge=0)] = 0.5,
    tilt: Annotated[float, Field(ge=0)] = 2.5,
    action: Annotated[float, Field(ge=0)] = 1.0,
    blind: bool = False,
) -> gymnasium.Env:
    """Return a quadrotor in the plane, with the weights of its reward; `blind` hides from critics what others see."""
    weights = {"position": position, "velocity": velocity, "tilt": tilt, "action": action}
    return PlanarQuadrotor(lag, gusts, limit, weights, blind)


def flight_costs(next_observation_NO: np.ndarray, action_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return the squares that flight costs: of place, velocity and action, and 1 less the cosine of the tilt."""
    o_NO = next_observation_NO.astype(float)
    return {
        "position": np.square(o_NO[:, :2]).sum(1),
        "velocity": np.square(o_NO[:, 2:4]).sum(1),
        "tilt": 1 - o_NO[:, 5],
        "action": np.square(action_N.astype(float)).sum(1),
    }
