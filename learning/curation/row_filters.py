"""Quality filters that need no language: True keeps the row.

A filter is `fn(row, *, options) -> bool`; `row` is a row of the artifact as a dictionary (see learning/data/rows.py).
"""

import hashlib
import math
import re
import zlib
from collections import Counter
from datetime import date
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.agent_chains import iterate_calls
from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row, read_metadata
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import EnvironmentProtocol
from learning.environments.repo import read_task
from learning.lookup import Inner, TeacherFunction
from learning.rewards.answers import exact
from learning.sandbox.repositories import run_tests
from learning.text_game.written import compile_game, walk_through
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EnvUse

Part = Literal["all", "prompt", "written"]
Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Bits = Annotated[float, Field(ge=0)]


def get_text(row: Row, part: str) -> str:
    """The contents of the messages of a row: its prompt, what is written (completion, sides, steps), or all."""
    columns = {"prompt": ["prompt"], "written": ["completion", "chosen", "rejected", "steps"]}
    names = columns.get(part, columns["prompt"] + columns["written"])
    return "\n".join(message["content"] or "" for name in names for message in row.get(name) or [])


def repetition(row: Row, *, max_share: Share = 0.5, ngram: Length = 3, part: Part = "written") -> bool:
    """Keep rows in which at most `max_share` of the word n-grams repeat an earlier one (Gopher, Rae et al. 2021)."""
    words = get_text(row, part).split()
    grams = [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]
    return not grams or 1 - len(set(grams)) / len(grams) <= max_share


def compression(row: Row, *, min_ratio: Share = 0.1, part: Part = "written") -> bool:
    """Keep rows whose deflated size is at least `min_ratio` of their bytes; loops compress to almost nothing."""
    raw = get_text(row, part).encode("utf-8", "replace")
    return not raw or len(zlib.compress(raw, 6)) / len(raw) >= min_ratio


def symbol_ratio(row: Row, *, max_share: Share = 0.5, part: Part = "all") -> bool:
    """Keep rows in which at most `max_share` of the visible characters are neither letters nor digits."""
    visible = [c for c in get_text(row, part) if not c.isspace()]
    return not visible or sum(not c.isalnum() for c in visible) / len(visible) <= max_share


def entropy(row: Row, *, min_bits: Bits = 1.0, max_bits: Bits | None = None, part: Part = "all") -> bool:
    """Keep rows whose characters carry between `min_bits` and `max_bits` each (entropy of their frequencies)."""
    text = get_text(row, part)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return bits >= min_bits and (max_bits is None or bits <= max_bits)


def printable(row: Row, *, min_share: Share = 1.0, part: Part = "all") -> bool:
    """Keep rows of which at least `min_share` of the characters can be shown (no control or replacement characters)."""
    text = get_text(row, part)
    shown = sum((c.isprintable() or c.isspace()) and c != "\ufffd" for c in text)
    return not text or shown / len(text) >= min_share


def words(row: Row, *, min_words: Length = 1, max_words: Length | None = None, part: Part = "written") -> bool:
    """Keep rows with between `min_words` and `max_words` words, as white space parts them."""
    count = len(get_text(row, part).split())
    return count >= min_words and (max_words is None or count <= max_words)


def matches(row: Row, *, pattern: str, part: Part = "written") -> bool:
    """Keep rows in which the regular expression `pattern` is found, within its time (`learning.data.patterns`).

    Raises StepError for a bad pattern.
    """
    try:
        return _pattern(pattern).search(get_text(row, part)) is not None
    except MatchTimeout:
        return False


@lru_cache(maxsize=64)
def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text)
    except re.error as error:
        raise StepError(f"quality filter matches: pattern {text!r}: {error}") from error


def unanswered(
    row: Row,
    *,
    model: PolicyRef,
    tries: Length = 4,
    after: str = "",
    marker: str | None = None,
    max_completion_length: Length = 32,
) -> bool:
    """Keep rows whose answer a model does not give in `tries` samples: what it knows needs no looking up.

    The model gets the part of the prompt after the last `after`, without the documents before it. Rows without an
    answer and rows too long for the model are kept.
    """
    # Filters without a model do not need torch, which takes seconds to import.
    from learning.samples.engine_protocol import Sampling
    from learning.sampling.verdicts import guest, replies

    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(row["id"].encode()).digest()[:8], "big"))
    text = row["prompt"][-1]["content"]
    messages = [*row["prompt"][:-1], {"role": "user", "content": text.rpartition(after)[2] if after else text}]
    answers = replies(guest(model), [messages], n=tries, sampling=Sampling(1.0, max_completion_length), rng=rng)[0]
    return answers is None or 1.0 not in exact([row] * len(answers), answers, marker=marker)


def reproduced(row: Row, *, env: EnvUse, seed: int = 0) -> bool:
    """Keep rows in which every answer to a turn of the prompt is what `env` answers when the turn is carried out again.

    A trace that was stitched together, with results that no tool gave, teaches an agent to expect them (Open-AgentRL
    2025). The environment must answer a turn alike every time. Rows without turns of the assistant in their prompt are
    kept; an episode that ends before its last answer is not reproduced. Raise StepError as the environment does for a
    row that it cannot begin.
    """
    environment = _build(env.model_dump_json())
    messages = row["prompt"]
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not places:
        return True
    episode = environment.begin(row, seed)
    for place in places:
        outcome = episode.step(str(messages[place]["content"]))
        shown = messages[place + 1]["content"] if place + 1 < len(messages) else outcome.observation
        if outcome.done or outcome.observation != shown:
            return False
    return True


def solvable(row: Row, *, by: TeacherFunction, env: EnvUse, seed: int = 0) -> bool:
    """Keep rows whose answer the teacher `by` gives when it plays `env` from what it is shown (SearchGym 2026).

    A question that the documents of its environment do not answer would punish a model for saying so. The answer is the
    teacher's last turn, compared as by `answers.exact`; an episode that does not end within `max_turns` of `env` gives
    none. Raise StepError for a row without an answer.
    """
    if row["answer"] is None:
        raise StepError(f"quality filter solvable: row {row['id']} has no answer to compare with")
    guide: Inner = by
    digest = hashlib.sha256(row["id"].encode()).digest()[:8]
    rng, messages = np.random.default_rng([seed, int.from_bytes(digest, "big")]), list(row["prompt"])
    episode = _build(env.model_dump_json()).begin(row, seed)
    for _ in range(env.max_turns):
        text = guide.bound(row | {"prompt": messages}, rng)
        outcome = episode.step(text)
        if outcome.done:
            return exact([row], [text]) == [1.0]
        said = {"role": "assistant", "content": text}
        messages = [*messages, said, {"role": "user", "content": outcome.observation}]
    return False


def succeeded(row: Row, *, env: EnvUse, at_least: float = 1.0, seed: int = 0) -> bool:
    """Keep rows whose turns in the completion, carried out again in `env`, earn at least `at_least`.

    Whole conversations of an agent are so kept by what they achieve. What was observed then is not compared
    (`reproduced` does that), and turns after the end of the episode are ignored. Raise StepError as the environment
    does for a row that it cannot begin.
    """
    episode, earned = _build(env.model_dump_json()).begin(row, seed), 0.0
    for message in row["completion"]:
        if message["role"] == "assistant":
            outcome = episode.step(str(message["content"]))
            earned += outcome.reward
            if outcome.done:
                break
    return earned >= at_least


def chained(
    row: Row,
    *,
    tools: Annotated[list[str], Field(min_length=1)],
    tag: str = "answer",
    least_tools: Annotated[int, Field(ge=0)] = 1,
    most_calls: Length = 20,
) -> bool:
    """Keep chains of agents that end with the row's answer, after `least_tools` to `most_calls` calls (AFM 2025).

    Of all calls, those of role-playing agents among them, at least `least_tools` are of `tools`, and at most
    `most_calls` are made; the last one is `<answer>`. A completion that is no chain is dropped. Raise StepError for a
    row without an answer.
    """
    if row["answer"] is None:
        raise StepError(f"quality filter chained: row {row['id']} has no answer to compare with")
    try:
        calls = list(iterate_calls(str(row["completion"][-1]["content"]), tools))
    except ValueError:
        return False
    used = sum(agent in tools for _, agent, _, _ in calls)
    right = bool(calls) and calls[-1][1] == tag and exact([row], [calls[-1][2]]) == [1.0]
    return right and used >= least_tools and len(calls) <= most_calls


def fails_then_passes(row: Row, *, strict: bool = True, seconds: Seconds = 5.0) -> bool:
    """Keep tasks of the environment `repo` of which a test fails before the right change, and passes after it.

    The metadata of the row have the `files` before it, those that it writes (`gold`), and the tests. With `strict` all
    tests that failed must pass then, and none that passed may fail (SWE-rebench, Badertdinov et al. 2025, section 2.3).
    Raise StepError for a row that is no such task.
    """
    task = read_task(row)
    tests, how = task.tests | task.hidden, {"install": task.install, "packages": task.packages, "seconds": seconds}
    before, after = (run_tests(files, tests, **how) for files in (task.files, task.files | task.gold))
    repaired = any(after[name].passed and not before[name].passed for name in tests)
    return repaired and (not strict or all(check.passed for check in after.values()))


def noted(row: Row, *, key: str, allowed: list[str] | None = None, refused: list[str] = []) -> bool:  # noqa: B006
    """Keep rows whose metadata have a `key` with one of the `allowed` values (null: any or none), none of `refused`."""
    value = read_metadata(row).get(key)
    return (allowed is None or value in allowed) and value not in refused


def dated(row: Row, *, since: str | None = None, before: str | None = None) -> bool:
    """Keep rows whose metadata have a `date` from `since` on, and `before` another one: `2025-01-01`.

    Raise StepError for a row without such a date, and for a bound that is none.
    """
    day = read_metadata(row).get("date")
    try:
        bounds = [None if bound is None else date.fromisoformat(bound) for bound in (since, before)]
    except ValueError as error:
        raise StepError(f"quality filter dated: {error}; write a day as 2025-01-01") from error
    try:
        own = date.fromisoformat(str(day))
    except ValueError as error:
        raise StepError(f"quality filter dated: row {row['id']}: its metadata have no `date` as 2025-01-01") from error
    return (bounds[0] is None or own >= bounds[0]) and (bounds[1] is None or own < bounds[1])


def playable(row: Row, *, least: Annotated[int, Field(ge=1)] = 1, most: Annotated[int, Field(ge=1)] = 40) -> bool:
    """Keep rows whose completion describes a text game as JSON that compiles and can be solved (STARLING 2024).

    The solution that a search finds is played, has to reach the goal, and takes `least` to `most` actions. Anything
    else in the text, such as an unknown key, a passage of one direction or a second meaning of a name, drops the row.
    """
    try:
        plan = walk_through(*compile_game(str(row["completion"][-1]["content"])))
    except ValueError:
        return False
    return least <= len(plan) <= most


@lru_cache(maxsize=8)
def _build(env: str) -> EnvironmentProtocol:
    return build_environment(EnvUse.model_validate_json(env), {})
