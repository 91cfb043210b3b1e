"""A series DC motor behind a converter with switches, whose speed follows a reference. Shapes: N worlds, O numbers."""

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
FASTEST, MOST = 25.0, 10.0
"""Speed and current that observations count as 1."""
PERIOD = 10
"""Steps of the simulation in a step of control, over which the duty cycle is spread."""


@dataclass(frozen=True)
class SeriesMotor:
    """Armature and field in one circuit: L di/dt = u − R i − L' i ω, torque L' i²."""

    inductance: float = 0.05
    resistance: float = 0.5
    coupling: float = 0.1
    """L', the inductance by which field and armature act on each other."""
    inertia: float = 0.03

    def compute_torque(self, current: float) -> float:
        """Return the torque of a current."""
        return self.coupling * current**2

    def advance(self, current: float, speed: float, voltage: float, load: float, seconds: float) -> tuple[float, float]:
        """Return current and speed after one step of Euler; the current of a series motor does not turn round."""
        drop = (self.resistance + self.coupling * speed) * current
        after = current + seconds * (voltage - drop) / self.inductance
        turned = speed + seconds * (self.compute_torque(current) - load) / self.inertia
        return max(after, 0.0), max(turned, 0.0)


@dataclass
class Converter:
    """Connects the supply or not; a new command acts after the dead time, until which the switch stays as it is."""

    supply: float
    dead: int
    """Steps of the simulation for which a new command is ignored, so that two switches never conduct at once."""
    commanded: int = 0
    output: int = 0
    waited: int = 0

    def switch(self, command: int) -> float:
        """Take a command for one step of the simulation, and return its voltage."""
        if command != self.commanded:
            self.commanded, self.waited = command, 0
        if self.waited >= self.dead:
            self.output = self.commanded
        self.waited += 1
        return self.supply * self.output


class MotorDrive(gymnasium.Env):
    """Motor, converter and load; an action is the share of the period in which the supply is connected.

    Observations are speed, current, reference, and the sum of the errors so far. The reference is drawn for the whole
    episode at its start. A current above the limit ends the episode and costs 10.
    """

    def __init__(self, motor: SeriesMotor, supply: float, dead: int, noise: float, most: float, limit: int) -> None:
        self.motor, self.supply, self.dead, self.noise, self.most = motor, supply, dead, noise, most
        self.limit, self.seconds = limit, 0.002
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def observe(self) -> np.ndarray:
        """Return what is measured, with noise on current and speed."""
        speed, current = np.array([self.speed / FASTEST, self.current / MOST]) + self.noises[self.steps]
        return np.array([speed, current, self.references[self.steps] / FASTEST, self.total], np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin at rest, and draw the reference and the noise of the episode."""
        super().reset(seed=seed)
        self.current, self.speed, self.total, self.steps = 0.0, 0.0, 0.0, 0
        self.converter = Converter(self.supply, self.dead)
        levels = self.np_random.uniform(5, 22, size=self.limit // 40 + 1)
        self.references = np.repeat(levels, 40)[: self.limit + 1]
        self.noises = self.noise * self.np_random.normal(size=(self.limit + 1, 2))
        return self.observe(), {}

    def compute_load(self) -> float:
        """Return the torque of the load: friction, and a part that grows with the square of the speed."""
        return 0.05 * self.speed + 0.001 * self.speed**2

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Hold the supply connected for the action's share of the period."""
        on = round(float(action[0]) * PERIOD)
        for n in range(PERIOD):
            voltage = self.converter.switch(int(n < on))
            load = self.compute_load()
            self.current, self.speed = self.motor.advance(self.current, self.speed, voltage, load, self.seconds)
        error = (self.references[self.steps] - self.speed) / FASTEST
        self.total = float(np.clip(self.total + PERIOD * self.seconds * error, -1, 1))
        self.steps += 1
        broken = self.current > self.most
        reward = -abs(error) - 10.0 * broken
        info = {"reference": self.references[self.steps - 1], "torque": self.motor.compute_torque(self.current)}
        return self.observe(), reward, broken, self.steps >= self.limit and not broken, info


def series_motor(
    *,
    inductance: Positive = 0.05,
    resistance: Positive = 0.5,
    coupling: Positive = 0.1,
    inertia: Positive = 0.03,
    supply: Positive = 20.0,
    dead: Annotated[int, Field(ge=0)] = 1,
    noise: Amount = 0.01,
    most: Positive = 8.0,
    limit: Annotated[int, Field(ge=1)] = 100,
) -> gymnasium.Env:
    """Return a series DC motor with converter and load, whose speed follows a reference.

    `dead` is the interlocking time of the converter, in tenths of a step; `noise` that of the measurements.
    """
    motor = SeriesMotor(inductance, resistance, coupling, inertia)
    return MotorDrive(motor, supply, dead, noise, most, limit)


def cascaded_pi(
    observation_NO: np.ndarray,
    spaces: Spaces,
    *,
    speed_gain: Amount = 60.0,
    integral_gain: Amount = 40.0,
    current_gain: Amount = 2.0,
    resistance: Positive = 0.5,
    coupling: Positive = 0.1,
    supply: Positive = 20.0,
    most: Positive = 7.0,
) -> np.ndarray:
    """Follow the reference of a series motor by two loops: speed to current, and current to the share of the period.

    The outer loop is proportional and integral; the inner one proportional, beside the voltage that holds the current.
    """
    speed_N, current_N, reference_N, total_N = observation_NO.T
    wanted_N = np.clip(speed_gain * (reference_N - speed_N) + integral_gain * total_N, 0, most)
    held_N = (resistance + coupling * FASTEST * speed_N) * wanted_N
    voltage_N = held_N + current_gain * (wanted_N - MOST * current_N)
    return np.clip(voltage_N[:, None] / supply, spaces.low, spaces.high).astype(np.float32)
