"""Ways to act without a network. Shapes: N worlds, O numbers of an observation, A of an action."""

import numpy as np

from learning.control.stepping.spaces import Spaces


def random(observation_NO: np.ndarray, spaces: Spaces, rng: np.random.Generator) -> np.ndarray:
    """Uniform actions: choices (N,), those of each agent of a team (N, G), or points of the box (N, A)."""
    count = len(observation_NO)
    if spaces.is_discrete:
        return rng.integers(spaces.actions, size=(count, spaces.agents) if spaces.agents > 1 else count)
    return rng.uniform(spaces.low, spaces.high, size=(count, spaces.actions)).astype(np.float32)


def swing_up(observation_NO: np.ndarray, spaces: Spaces, *, gain: float = 1.0, catch: float = 0.9) -> np.ndarray:
    """Torques that bring the pendulum of Gymnasium up by its energy and hold it there (Åström and Furuta 2000).

    Observations are cosine, sine and angular velocity. Where the cosine is above `catch` a linear controller holds the
    pendulum; elsewhere the torque has the sign that moves the energy towards that of the upright position.
    """
    cosine_N, sine_N, speed_N = observation_NO.T
    angle_N = np.arctan2(sine_N, cosine_N)
    # With mass and length 1 and gravity 10 the acceleration is 15 sin θ + 3u; E = θ'²/2 + 15 cos θ is 15 upright.
    energy_N = speed_N**2 / 2 + 15 * cosine_N
    direction_N = np.where(speed_N == 0, 1.0, np.sign(speed_N))
    push_N = gain * np.clip(15 - energy_N, -2, 2) * direction_N
    hold_N = -10 * angle_N - 2 * speed_N
    torque_N = np.where(cosine_N > catch, hold_N, push_N)
    return np.clip(torque_N[:, None], spaces.low, spaces.high).astype(np.float32)
