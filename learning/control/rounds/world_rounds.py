"""Rounds in which a language model writes the configuration of a world for the skills that an agent lacks (EnvGen).

A configuration is a JSON object of numbers, the options of a world's function. Skills are the `achievements` in the
info of the world, as in Crafter: how often each succeeded in an episode.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
from pydantic import Field

from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.rounds.model_sets import AnyOf
from learning.control.rounds.reward_rounds import read_json
from learning.control.stepping.worlds import Make
from learning.data.rows import read_rows, write_rows
from learning.lookup import Inner
from schemas.base import JsonObject
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
SCORES, CONFIG = "skills.json", "config.json"
FENCE = re.compile(r"```(?:json)?\n(.*?)```", re.DOTALL)
LONGEST = 4000
"""Characters of an answer that are read."""
Number = int | float
Bounds = Annotated[list[Number], Field(min_length=2, max_length=2)]
Fields = dict[str, Bounds]
"""The lowest and the highest value of each number of a configuration; a number with two whole bounds is whole."""
Count = Annotated[int, Field(ge=1)]


def begin_worlds(context: Any) -> dict[str, float]:
    """Write the scores before the first cycle: none."""
    (context.output("result") / SCORES).write_text(json.dumps({"cycle": 0}) + "\n")
    return {"cycle": 0}


def describe_fields(fields: Fields) -> str:
    """Return a line for each number of a configuration."""
    return "\n".join(
        f"- {name}: a {'whole ' if is_whole(bounds) else ''}number from {bounds[0]} to {bounds[1]}"
        for name, bounds in fields.items()
    )


def is_whole(bounds: Bounds) -> bool:
    """Return whether a number of a configuration is whole."""
    return all(isinstance(bound, int) for bound in bounds)


def ask_for_world(
    context: Any, *, task: str, fields: Fields, skills: Annotated[list[str], Field(min_length=1)]
) -> dict[str, float]:
    """Write one prompt for a world to train in; from the second cycle on with the rates of skills and the world before.

    The input `scores` is that of the cycle before; `task` describes the world, `skills` what is to be learned.
    """
    before = read_json(context.input("scores"), SCORES)
    shown = (
        f"{task}\nAn agent is to learn these skills: {', '.join(skills)}.\n\n"
        f"Write the configuration of an environment in which it practises them, as JSON:\n{describe_fields(fields)}"
    )
    if before["cycle"]:
        shown += (
            "\n\nThe agent was trained in this environment:\n\n"
            f"```json\n{json.dumps(before['config'])}\n```\n\nIn the original one its skills then succeeded in this "
            f"share of episodes:\n\n```json\n{json.dumps(before['rates'])}\n```\n\n"
            "Write a configuration that helps it with what it is weak at."
        )
    text = f"{shown}\n\nCycle {before['cycle'] + 1}."
    row = {
        "id": hashlib.sha256(text.encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": None,
        "family": "worlds",
        "metadata": json.dumps({"fields": fields, "skills": skills}),
    }
    write_rows(context.output("prompts"), "prompts", [row])
    return {"prompts": 1}


def read_config(text: str, fields: Mapping[str, Bounds]) -> dict[str, Number]:
    """Return the configuration in an answer: the JSON object in its last fence, or all of it.

    Raise ValueError unless it has every number of the configuration, nothing else, and all within their bounds.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an answer of more than {LONGEST} characters")
    fenced = FENCE.findall(text)
    try:
        value = json.loads(fenced[-1] if fenced else text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("too many brackets") from error
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    if value.keys() != fields.keys():
        raise ValueError(f"its keys are not {', '.join(fields)}")
    for name, (low, high) in fields.items():
        number = value[name]
        if isinstance(number, bool) or not isinstance(number, int if is_whole([low, high]) else int | float):
            raise ValueError(f"{name} is no {'whole ' if is_whole([low, high]) else ''}number")
        if not low <= number <= high:
            raise ValueError(f"{name} is not from {low} to {high}")
    return {name: value[name] for name in fields}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no finite number")


def check_world(context: Any, *, original: dict[str, Number], fields: Fields) -> dict[str, float]:
    """Write the configuration in the input `answers`. If it is refused, that of the cycle before is kept.

    The input `scores` is that of the cycle before; before the first one there is the `original`. Raise StepError if the
    original has other numbers than `fields`.
    """
    try:
        first = read_config(json.dumps(original), fields)
    except ValueError as error:
        raise StepError(f"check_world: the original configuration: {error}") from error
    before = read_json(context.input("scores"), SCORES)
    rows = read_rows(context.input("answers"), "chat")
    record: JsonObject = {"config": before.get("config", first), "refused": None}
    try:
        record["config"] = read_config(rows[0]["completion"][-1]["content"], fields)
    except ValueError as error:
        record["refused"] = str(error)[:400]
    (context.output("result") / CONFIG).write_text(json.dumps(record, indent=1) + "\n")
    return {"refused": float(record["refused"] is not None), "calls": len(rows)}


class Mixture(AnyOf):
    """The original world or a configured one in every episode; the latter in a share of them."""

    def __init__(self, original: Any, configured: Any, share: float) -> None:
        super().__init__([original, configured])
        self.share = share

    def choose(self) -> int:
        """Return 1 for an episode in the configured world."""
        return int(self.np_random.random() < self.share)


def generated(*, world: WorldFunction, config: DirectoryRef, share: Annotated[float, Field(ge=0, le=1)] = 0.5) -> Any:
    """Return a world that has the numbers of a configuration as its options in a `share` of episodes.

    The configuration is that which `check_world` kept; the other episodes are the world's as it is given. Raise
    StepError if the world's function does not have these options.
    """
    numbers = read_json(Path(config), CONFIG)["config"]
    function, options = world.bound.function, world.bound.options
    try:
        configured = function(**{**options, **numbers})
    except TypeError as error:
        raise StepError(f"env generated: {world.bound.name} does not take {', '.join(numbers)}: {error}") from error
    return Mixture(world(), configured, share)


def measure_skills(context: Any, *, world: WorldFunction, skills: list[str], episodes: Count = 40) -> dict[str, float]:
    """Write the share of a policy's episodes in which each skill succeeds, and the configuration of the cycle.

    Inputs are the `policy` and, within cycles, `scores` of the cycle before and the `config`. The world is the original
    one; actions are drawn, as in training.
    """
    policy = load_control_policy(context.input("policy"))
    rates = play_for_skills(world, policy, skills, episodes, context.seed)
    record: JsonObject = {"cycle": 1, "rates": rates}
    if "scores" in context.inputs:
        record["cycle"] = read_json(context.input("scores"), SCORES)["cycle"] + 1
        record["config"] = read_json(context.input("config"), CONFIG)["config"]
    (context.output("result") / SCORES).write_text(json.dumps(record, indent=1) + "\n")
    return {f"rate_{name}": rate for name, rate in rates.items()}


def play_for_skills(make: Make, policy: ControlPolicy, skills: list[str], episodes: int, seed: int) -> dict[str, float]:
    """Return the share of episodes in which each skill succeeds. Raise StepError if the world does not say so."""
    world, done = make(), dict.fromkeys(skills, 0)
    rng = np.random.default_rng([seed, 6])
    for _ in range(episodes):
        shown, ended = world.reset(seed=int(rng.integers(2**31)))[0], False
        info: Mapping[str, Any] = {}
        while not ended:
            seen_NO = policy.spaces.flatten(world, shown)[None]
            action = policy.act(seen_NO, explore=True)[0]
            shown, _, terminated, truncated, info = world.step(policy.spaces.to_world(action))
            ended = terminated or truncated
        counts = info.get("achievements", {})
        if missing := [name for name in skills if name not in counts]:
            raise StepError(
                f"measure_skills: the env's info has no `achievements` of {', '.join(missing)}: count how often each "
                "skill succeeds in the episode, as Crafter does"
            )
        for name in skills:
            done[name] += counts[name] > 0
    world.close()
    return {name: count / episodes for name, count in done.items()}
