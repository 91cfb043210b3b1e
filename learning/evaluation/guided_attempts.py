"""Samples of a model that tries a problem in an environment again, with guidance, if all of its attempts have failed.

(Agent-RLVR, Da et al. 2025, arXiv:2506.11425: attempts are validated by the environment, failures get hints, the
reattempts with the hints in context are what is learned from.)
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import Inner, TeacherFunction
from schemas.errors import StepError
from schemas.use import EnvUse

Ask = Callable[[Sequence[Row]], list[list[AnswerSample]]]
Score = Callable[[list[Row], list[str]], list[float | None]]
Messages = list[dict[str, Any]]


@dataclass
class Attempt:
    """An episode: what the model was asked, its turns with the answers to them, and what it earned."""

    problem: Row
    prompt: Messages
    episode: Episode
    turns: list[tuple[str, str]] = field(default_factory=list)
    earned: float = 0.0
    over: bool = False

    def show(self, count: int | None = None) -> Messages:
        """Return the conversation so far, or up to `count` turns."""
        said = self.turns[:count]
        pairs = [({"role": "assistant", "content": a}, {"role": "user", "content": b}) for a, b in said]
        return [*self.prompt, *(message for pair in pairs for message in pair)]

    def make_request(self) -> Row:
        """Return the problem as the model sees it now; equal conversations have equal ids."""
        shown = self.show()
        digest = hashlib.sha256(repr([(m["role"], m["content"]) for m in shown]).encode()).hexdigest()[:16]
        return self.problem | {"id": f"{self.problem['id']}/{digest}", "prompt": shown}

    def take(self, sample: AnswerSample, max_turns: int) -> None:
        """Carry out a turn; one that the length limit cut ends the attempt instead."""
        if sample.finish != "stop":
            self.over = True
            return
        outcome = self.episode.step(sample.text)
        self.turns.append((sample.text, outcome.observation))
        self.earned += outcome.reward
        self.over = outcome.done or len(self.turns) >= max_turns


def guided(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    guide: TeacherFunction,
    guidance: bool = True,
    keep_guidance: bool = False,
    passing: float = 1.0,
    returns: Literal["turn", "end"] = "turn",
) -> list[Row]:
    """Attempts of each problem, and, where none earned `passing`, as many with guidance from `guide` in the prompt.

    The teacher `guide` sees the whole conversation of the first failed attempt; what it writes stands below the
    problem. Without `guidance` the second attempts are like the first. Of the best and the worst attempt of a problem
    two rows are returned, with what each earned as its score: with `turn` the first turns in which they differ, after
    the conversation that they share, with `end` their last turns, after the problem alone. `keep_guidance` leaves the
    guidance in the prompts of these rows. Solved problems are never attempted again. The stage's rewards are not asked.
    Raise StepError for an environment that refers to a stage's output or has a `context`.
    """
    if env.context is not None:
        raise StepError("search guided: `env.context` has no effect here, the model sees all turns; remove it")
    try:
        environment = build_environment(env, {})
    except KeyError as port:
        raise StepError(f"search guided: {port} refers to a stage's output; give the environment a folder") from None
    teacher: Inner = guide

    def begin(row: Row, prompt: Messages) -> Attempt:
        return Attempt(row, prompt, environment.begin(row, _make_seed(row)))

    def play(asked: Sequence[tuple[Row, Messages]]) -> list[list[Attempt]]:
        starts = [begin(row, prompt) for row, prompt in asked]
        opened = ask([start.make_request() for start in starts]) if starts else []
        groups = [[begin(*pair) for _ in samples] for pair, samples in zip(asked, opened, strict=True)]
        for group, samples in zip(groups, opened, strict=True):
            for attempt, sample in zip(group, samples, strict=True):
                attempt.take(sample, env.max_turns)
        _play_on([attempt for group in groups for attempt in group], ask, env.max_turns)
        return groups

    first = play([(row, row["prompt"]) for row in problems])
    failed = [place for place, group in enumerate(first) if max(one.earned for one in group) < passing]
    asked = list[tuple[Row, Messages]]()
    for place in failed:
        row, prompt = problems[place], problems[place]["prompt"]
        if guidance:
            hint = teacher.bound(row | {"prompt": first[place][0].show()}, np.random.default_rng(_make_seed(row)))
            prompt = [*prompt[:-1], prompt[-1] | {"content": f"{prompt[-1]['content']}\n{hint}"}]
        asked.append((row | {"id": f"{row['id']}~again"}, prompt))
    second = dict(zip(failed, play(asked), strict=True))
    groups = [[*group, *second.get(place, [])] for place, group in enumerate(first)]
    pairs = zip(problems, groups, strict=True)
    return [row for problem, group in pairs for row in _compare(problem, group, returns, keep_guidance)]


def _play_on(attempts: Sequence[Attempt], ask: Ask, max_turns: int) -> None:
    """Play attempts to their ends side by side; those with equal conversations share a request and its samples."""
    while running := [attempt for attempt in attempts if not attempt.over]:
        requests = [attempt.make_request() for attempt in running]
        rows = {row["id"]: row for row in requests}
        waiting = {name: iter(samples) for name, samples in zip(rows, ask(list(rows.values())), strict=True)}
        for attempt, row in zip(running, requests, strict=True):
            attempt.take(next(waiting[row["id"]]), max_turns)


def _compare(problem: Row, group: Sequence[Attempt], returns: str, keep_guidance: bool) -> list[Row]:
    """Return the turns of the best and the worst attempt that compete; none if one has no such turn."""
    best, worst = max(group, key=lambda one: one.earned), min(group, key=lambda one: one.earned)
    prompt = best.prompt if keep_guidance else problem["prompt"]
    if returns == "end":
        chosen, count = [one.turns[-1:] for one in (best, worst)], 0
    else:
        pairs = zip(best.turns, worst.turns, strict=False)
        count = next(
            (place for place, (a, b) in enumerate(pairs) if a[0] != b[0]), max(map(len, (best.turns, worst.turns)))
        )
        chosen = [one.turns[count : count + 1] for one in (best, worst)]
    if not all(chosen):
        return []
    shown = [*prompt, *best.show(count)[len(best.prompt) :]]
    return [
        problem | {"prompt": shown, "text": turn[0][0], "finished": True, "score": one.earned}
        for one, turn in zip((best, worst), chosen, strict=True)
    ]


def _make_seed(row: Row) -> int:
    return int.from_bytes(hashlib.sha256(str(row["id"]).encode()).digest()[:8], "big") >> 1
