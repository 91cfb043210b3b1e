"""Rounds in which a language model writes reward functions, policies are trained with each, and an oracle ranks them.

In-context preference learning (Yu et al. 2024): the best and the worst function of a round stand in the next prompt.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.policies.policy import load_control_policy, load_networks
from learning.control.rewards.reward_code import RewardCode, parse_reward
from learning.control.rewards.segments import Segment
from learning.control.stepping.worlds import Make, Worlds
from learning.control.worlds.grids import Info
from learning.data.rows import read_rows, write_rows
from learning.lookup import Inner
from schemas.base import JsonObject
from schemas.control import SegmentDuelUse, WorldUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    WorldFunction = Inner
    SegmentDuelFunction = Inner
else:
    WorldFunction = WorldUse
    SegmentDuelFunction = SegmentDuelUse
CODES, RANKING, BEST = "codes.json", "ranking.json", "best"
FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
Count = Annotated[int, Field(ge=1)]
FORM = """Write a function of any of these arguments, which describe a step after it was taken:
{names}. It returns the reward of the step, a number. Use assignments, one `return`, numbers, + - * / **, comparisons,
`a if b else c`, and abs, min, max, sqrt, exp, log, sin, cos, tanh.

```python
def reward({names}):
    return ...
```"""


def read_json(folder: Path, name: str) -> JsonObject:
    """Return a record of an earlier stage. Raise StepError if there is none."""
    try:
        return json.loads((folder / name).read_text())
    except (OSError, ValueError) as error:
        raise StepError(f"{folder.name} has no {name}: name the output of the stage that writes it") from error


def begin_ranking(context: Any) -> dict[str, float]:
    """Write the ranking before the first round: nothing was asked."""
    (context.output("result") / RANKING).write_text(json.dumps({"round": 0, "queries": 0}) + "\n")
    return {"queries": 0}


def ask_for_rewards(
    context: Any, *, task: str, names: list[str], count: Count = 6, shows_ranking: bool = True
) -> dict[str, float]:
    """Write `count` prompts for reward functions; from the second round on with the best and the worst of the last.

    The input is the ranking before, and `task` says in words what is wanted.
    """
    ranking = read_json(context.input("ranking"), RANKING)
    shown = f"{task}\n\n{FORM.format(names=', '.join(names))}"
    if shows_ranking and ranking["round"]:
        shown += (
            "\n\nThe behaviour that people liked best came from this function:\n\n"
            f"```python\n{ranking['best']}\n```\n\nThe behaviour that they liked least came from this one:\n\n"
            f"```python\n{ranking['worst']}\n```\n\nWrite a function whose behaviour they will like better."
        )
    rows = []
    for number in range(count):
        text = f"{shown}\n\nRound {ranking['round'] + 1}, answer {number + 1}."
        rows.append(
            {
                "id": hashlib.sha256(text.encode()).hexdigest()[:16],
                "prompt": [{"role": "user", "content": text}],
                "answer": None,
                "family": "rewards",
                "metadata": json.dumps({"names": names, "number": number}),
            }
        )
    write_rows(context.output("prompts"), "prompts", rows)
    return {"prompts": count}


def read_function(completion: Sequence[dict[str, str]]) -> str:
    """Return the code in a completion: that of the last fence, or all of it."""
    text = completion[-1]["content"]
    fenced = FENCE.findall(text)
    return (fenced[-1] if fenced else text).strip()


def check_rewards(
    context: Any, *, world: WorldFunction, names: list[str], count: Count = 3, probes: Count = 200
) -> dict[str, float]:
    """Write the first `count` functions of the input `answers` that can be computed on `probes` random steps.

    The others are never trained with: where one fails the next answer takes its place. Raise StepError if fewer
    are left.
    """
    columns = describe_steps(*play_at_random(world, probes, context.seed), names)
    kept: list[str] = []
    refused: list[JsonObject] = []
    for row in read_rows(context.input("answers"), "chat"):
        text = read_function(row["completion"])
        try:
            parse_reward(text, list(columns)).compute(columns)
        except ValueError as error:
            refused.append({"function": text[:4000], "why": str(error)})
            continue
        kept.append(text)
        if len(kept) == count:
            break
    record = {"functions": kept, "refused": refused}
    (context.output("result") / CODES).write_text(json.dumps(record, indent=1) + "\n")
    if len(kept) < count:
        why = f"; the first refused: {refused[0]['why']}" if refused else ""
        raise StepError(f"check_rewards: {len(kept)} of {count} functions can be computed; ask for more{why}")
    return {"functions": len(kept), "refused": len(refused)}


def play_at_random(world: Make, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return observations after steps (N, O) and actions (N, …) of random play."""
    worlds, rng = Worlds(world, 1, seed, "probes"), np.random.default_rng([seed, 4])
    observations, actions = [], []
    for _ in range(steps):
        spaces = worlds.spaces
        action = (
            rng.integers(spaces.actions, size=1) if spaces.is_discrete else rng.uniform(spaces.low, spaces.high)[None]
        )
        taken = worlds.step(action)
        observations.append(taken.next_observation[0])
        actions.append(np.atleast_1d(taken.action[0]))
    worlds.close()
    return np.stack(observations), np.stack(actions)


def describe_steps(observation_NO: np.ndarray, action_NA: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return named columns: an observation's numbers in turn, then the action's. Raise StepError for others."""
    column_NC = np.concatenate([observation_NO, action_NA], 1)
    if column_NC.shape[1] != len(names):
        shown = f"{observation_NO.shape[1]} numbers of an observation and {action_NA.shape[1]} of an action"
        raise StepError(f"names: {len(names)} are given, and a step has {shown}")
    return dict(zip(names, column_NC.T, strict=True))


class Coded(gymnasium.Wrapper):
    """A world whose rewards are those of a function that a model wrote; its own are not shown."""

    def __init__(self, world: Any, code: RewardCode, names: Sequence[str]) -> None:
        super().__init__(world)
        self.code, self.names = code, names

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Act, and earn what the function says of the step."""
        observation, _, terminated, truncated, info = self.env.step(action)
        numbers = gymnasium.spaces.flatten(self.env.observation_space, observation)
        start = int(getattr(self.env.action_space, "start", 0))
        shown = np.asarray(numbers, float)[None], np.atleast_1d(np.asarray(action, float) - start)[None]
        try:
            earned = self.code.compute(describe_steps(*shown, self.names))[0]
        except ValueError as error:
            raise StepError(f"env coded_reward: {error}, after action {action}: {self.code.text[:400]}") from error
        return observation, float(earned), terminated, truncated, info


def coded_reward(
    *, world: WorldFunction, codes: DirectoryRef, number: Annotated[int, Field(ge=0)], names: list[str]
) -> Coded:
    """Return a world with the rewards of function `number` of those that `check_rewards` kept."""
    functions = read_json(Path(codes), CODES)["functions"]
    if number >= len(functions):
        raise StepError(f"env coded_reward: there is no function {number}, the last is {len(functions) - 1}")
    return Coded(world(), parse_reward(functions[number], names), names)


@dataclass
class Oracle:
    """Says which of two policies behaved better, and counts how often it was asked."""

    by: Inner
    queries: int = 0

    def prefers(self, first: Sequence[Segment], second: Sequence[Segment]) -> bool:
        """Return whether the episodes of one policy are liked better than another's, from the same starts."""
        self.queries += 1
        return float(np.mean([self.by(first=a, second=b) for a, b in zip(first, second, strict=True)])) > 0.5

    def find(self, places: Sequence[int], shown: Sequence[Sequence[Segment]], *, best: bool) -> int:
        """Return the place of what is liked best, or least, by one comparison for each further place."""
        found = places[0]
        for place in places[1:]:
            if self.prefers(shown[place], shown[found]) == best:
                found = place
        return found


def rank_policies(
    context: Any, *, world: WorldFunction, by: SegmentDuelFunction, episodes: Count = 5
) -> dict[str, float]:
    """Ask an oracle for the best and the worst of the inputs `policy_0`, `policy_1`, …, and write the ranking.

    The best of all rounds is the output `model`: a later round's best takes its place if the oracle prefers it. K
    policies cost 2 K − 3 queries, and one more from the second round on. Every round has the same starts.
    """
    before, functions = (
        read_json(context.input("ranking"), RANKING),
        read_json(context.input("codes"), CODES)["functions"],
    )
    folders = [context.input(f"policy_{number}") for number in range(len(functions))]
    seed = context.seed
    shown = [record_episodes(world, folder, episodes, seed) for folder in folders]
    oracle, places = Oracle(by), range(len(folders))
    best = oracle.find(places, shown, best=True)
    worst = oracle.find([place for place in places if place != best] or [best], shown, best=False)
    kept, changed = folders[best], True
    if before["round"]:
        earlier = context.input("ranking") / BEST
        changed = oracle.prefers(shown[best], record_episodes(world, earlier, episodes, seed))
        kept = kept if changed else earlier
    policy = load_control_policy(kept)
    policy.save(context.output("model"), load_networks(kept))
    shutil.copytree(kept, context.output("result") / BEST)
    record = {
        "round": before["round"] + 1,
        "queries": before["queries"] + oracle.queries,
        "best": functions[best],
        "worst": functions[worst],
        "kept": functions[best] if changed else before["kept"],
    }
    (context.output("result") / RANKING).write_text(json.dumps(record, indent=1) + "\n")
    returns = [float(np.mean([one.reward.sum() for one in episodes_of])) for episodes_of in shown]
    return {"queries": record["queries"], "best_return": returns[best], "worst_return": returns[worst]}


def record_episodes(make: Make, folder: Path, episodes: int, seed: int) -> list[Segment]:
    """Return an episode of a policy from each start, without exploration, with the world's own rewards."""
    actor, recorded = load_control_policy(folder), []
    for start in range(episodes):
        worlds, steps = Worlds(make, 1, seed, f"ranking.{start}"), []
        while not steps or not steps[-1].ended:
            steps.append(worlds.step(actor.act(worlds.observation, explore=False)))
        worlds.close()
        columns = {name: np.stack([getattr(step, name)[0] for step in steps]) for name in Segment.__annotations__}
        recorded.append(Segment(**columns))
    return recorded
