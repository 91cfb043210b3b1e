"""Slot `resample`: more sampling, other prompts and rejections, once the scores of an iteration's samples are known.

A function is given all samples of the iteration so far and returns those to go on with, and what to sample in another
round. It is called after every round, until no function requests more or the stage's `max_sampling_rounds` are over.
Its `state` is a part of the checkpoint.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import stdtrit

from learning.algorithm.token_masks.masks import Source
from learning.collection.prompt_samplers import demonstrated
from learning.data.rows import read_rows
from learning.samples.judging import failed, judged, passed, spread
from learning.samples.sample import Messages, Sample, SampleRequest
from learning.samples.sample import by_group as _by_group
from learning.sampling.sampler import Sampler
from learning.toy_tasks.tracing import trace_tasks
from schemas.errors import StepError
from schemas.references import ChatRef
from schemas.schedules import ScheduledFloat

__all__ = ["allocate", "dynamic_sampling", "hint", "reject", "retry_with_exemplars", "trace_tasks"]

Row = dict[str, Any]
Asked = tuple[list[Sample], list[SampleRequest]]
AtLeast1 = Annotated[int, Field(ge=1)]


def dynamic_sampling(
    samples: list[Sample],
    rows: list[Row],
    num_groups: int,
    n: int,
    rng: np.random.Generator,
    *,
    reward: str | None = None,
    min: Annotated[float, Field(ge=0)] = 0.0,
    budget: Annotated[float, Field(ge=1)] = 4.0,
    size: AtLeast1 | None = None,
    short: Literal["train", "stop"] = "train",
) -> Asked:
    """Sample other problems until `num_groups` groups have scores that differ (dynamic sampling of DAPO, eq. 11).

    Goes with `filter_groups: reward_variance` (same `reward` and `min`), which keeps the others out of the loss; groups
    above `num_groups` are dropped, last asked for first. A round asks for `size` groups (null: as many as are missing)
    of problems not sampled in this iteration. At most `budget` · num_groups groups are sampled: with fewer that differ
    the iteration trains on those, or (`short: stop`) StepError is raised.
    """
    groups = _by_group(samples)
    varied = [group for group, members in groups.items() if spread(members, reward) > min]
    if len(varied) >= num_groups:
        surplus = set(varied[num_groups:])
        return [t for t in samples if t.group not in surplus], []
    known = {sample.row["id"] for sample in samples}
    fresh = [row for row in rows if row["id"] not in known]
    wanted = (size or num_groups - len(varied), int(budget * num_groups) - len(groups), len(fresh))
    count = sorted(wanted)[0]
    if count < 1 and short == "stop":
        raise StepError(
            f"resample dynamic_sampling: {len(varied)} of {num_groups} groups have scores that differ, after "
            f"{len(groups)} "
            "groups; choose problems that are neither too easy nor too hard, raise `budget`, or set `short: train`"
        )
    chosen = rng.choice(len(fresh), size=count, replace=False) if count > 0 else []
    return samples, [SampleRequest(fresh[int(i)], n) for i in chosen]


def allocate(
    samples: list[Sample],
    round: int,
    *,
    extra: AtLeast1,
    rounds: AtLeast1 = 1,
    bonus: ScheduledFloat = 0.0,
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95,
    reward: str | None = None,
) -> Asked:
    """In each of `rounds` rounds `extra` more completions go where they reduce uncertainty most (XRPO 2025).

    What one more completion gives a group of n is h(n) − h(n + 1), h(n) = t·s/√n half the interval of its mean score,
    plus bonus·√(ln(1 + N)/n) with N completions in all. They are given out one by one; groups that gain nothing get
    none.
    """
    if round >= rounds:
        return samples, []
    first = {t.group: t.row for t in reversed(samples) if t.source == "policy"}
    scores = {group: judged(members, reward) for group, members in _by_group(samples).items() if group in first}
    deviations = {group: _deviation(values) for group, values in scores.items() if len(values) > 1}
    counts = {group: len(scores[group]) for group in deviations}
    given: Counter[int] = Counter()
    for _ in range(extra):
        total = sum(counts.values()) + sum(given.values())
        gains = {}
        for group, s in deviations.items():
            size = counts[group] + given[group]
            gain = half_width(s, size, confidence) - half_width(s, size + 1, confidence)
            gains[group] = gain + bonus * math.sqrt(math.log1p(total) / size)
        best = max(gains, key=gains.__getitem__, default=None)
        if best is None or gains[best] <= 0:
            break
        given[best] += 1
    return samples, [SampleRequest(first[group], count, group=group) for group, count in sorted(given.items())]


def half_width(deviation: float, size: int, confidence: float = 0.95) -> float:
    """Half of Student's interval for a mean of `size` values with a sample deviation."""
    return float(stdtrit(size - 1, (1 + confidence) / 2)) * deviation / math.sqrt(size)


def _deviation(values: list[float]) -> float:
    """Sample deviation (n − 1)."""
    return float(np.std(values, ddof=1)) if len(set(values)) > 1 else 0.0


def retry_with_exemplars(
    samples: list[Sample],
    sampler: Sampler,
    round: int,
    state: dict[str, Any],
    rng: np.random.Generator,
    *,
    extra: AtLeast1 = 2,
    demos: AtLeast1 = 2,
    keep: AtLeast1 = 64,
    data: ChatRef | None = None,
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """Groups that failed throughout get `extra` completions which see solved problems first, once (after XRPO).

    They join the group, are trained under the plain prompt, and their source is `in_context`. The solved problems are
    the last `keep` that the policy has solved, at first those of `data`; `demos` of the same family are drawn, fewer
    where the model has no room for more.
    """
    if round == 0:
        state["retried"] = []
    if "bank" not in state:
        state["bank"] = _chat(str(data))[-keep:] if data else []
    for sample in samples if round == 0 else []:
        if sample.source == "policy" and passed(sample, reward, at_least):
            state["bank"] = [*state["bank"], solved_row(sample)][-keep:]
    requests = []
    for group, members in _by_group(samples).items():
        if group in state["retried"] or not failed(members, reward, at_least):
            continue
        row = members[0].row
        known = [one for one in state["bank"] if one["family"] == row["family"] and one["id"] != row["id"]]
        chosen = [known[int(i)] for i in rng.permutation(len(known))[:demos]]
        while chosen and not _fits(demonstrated(chosen, row), sampler):
            chosen.pop()
        if chosen:
            state["retried"].append(group)
            requests.append(SampleRequest(row, extra, "in_context", context=demonstrated(chosen, row), group=group))
    return samples, requests


def solved_row(sample: Sample) -> Row:
    """A sample as a row of chat, so far as demonstrations need it."""
    kept = {name: sample.row[name] for name in ("id", "prompt", "family")}
    return kept | {"completion": [{"role": "assistant", "content": sample.text}]}


def _fits(messages: Messages, sampler: Sampler, more: int = 0) -> bool:
    """Whether a prompt, `more` tokens and a completion have room in the model."""
    return len(sampler.encode(messages)) + more + sampler.sampling.max_new_tokens <= sampler.policy.max_length


def hint(
    samples: list[Sample],
    n: int,
    sampler: Sampler,
    round: int,
    state: dict[str, Any],
    step: int,
    *,
    data: ChatRef,
    shares: Annotated[list[float], Field(min_length=1)] = [0.25, 0.5, 0.75],  # noqa: B006 — never written to
    guided_steps: Annotated[int, Field(ge=0)] = 0,
    guided_share: Annotated[float, Field(gt=0, le=1)] = 0.5,
    lead: str = "\n",
    place: Literal["prompt", "completion"] = "prompt",
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """A group that failed throughout is sampled anew with the beginning of the solution (GHPO, Liu et al. 2025).

    The first ⌈share · L⌉ of the L tokens of the problem's completion in `data` follow the prompt, after `lead`, or
    (`place: completion`) begin the completion, without a loss. A group that still fails gets the next share. Its source
    is `hinted`; what failed is dropped. Without a completion, or room for the hint, a group stays as it is. In the
    first `guided_steps` iterations every group gets `guided_share` instead, failed or not, and nothing more.
    """
    if round == 0:
        state["hints"] = {}
    known, requests, dropped, guided = _solutions(str(data)), [], set(), step < guided_steps
    shares = [guided_share] if guided else shares
    for group, members in _by_group(samples).items():
        used, row = state["hints"].get(str(group), 0), members[0].row
        if used >= len(shares) or row["id"] not in known or not (guided or failed(members, reward, at_least)):
            continue
        begin = _beginning(row, known[row["id"]], shares[used], sampler)
        if place == "completion":
            request = SampleRequest(row, n, "hinted", group=group, begin=begin)
        else:
            prompt = _hinted(row, lead + _text(begin, sampler))
            request = SampleRequest(row, n, "hinted", group=group, prompt=prompt)
        if _fits(request.prompt or row["prompt"], sampler, len(request.begin)):
            state["hints"][str(group)] = used + 1
            dropped.add(group)
            requests.append(request)
    return [t for t in samples if t.group not in dropped], requests


def _beginning(row: Row, solution: str, share: float, sampler: Sampler) -> tuple[int, ...]:
    """The first ⌈share · L⌉ of the L tokens of a solution."""
    ids = sampler.sample_from_text(row, solution, source="expert", group=0).completion_ids[:-1]
    return tuple(ids[: math.ceil(share * len(ids) - 1e-9)])


def _hinted(row: Row, hint: str) -> Messages:
    *before, last = row["prompt"]
    return [*before, last | {"content": last["content"] + hint}]


def _text(ids: Sequence[int], sampler: Sampler) -> str:
    return str(sampler.policy.tokenizer.decode(list(ids), skip_special_tokens=True))


def reject(
    samples: list[Sample],
    *,
    sources: Annotated[list[Source], Field(min_length=1)] = ["in_context"],  # noqa: B006 — never written to
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """Drop completions of the named sources that score below `at_least`, or that could not be scored (ICPO 2025).

    They leave their group: its mean and deviation are as without them.
    """
    return [t for t in samples if t.source not in sources or passed(t, reward, at_least)], []


@lru_cache(maxsize=4)
def _chat(folder: str) -> list[Row]:
    """The rows of a chat artifact, so far as demonstrations need them; kept: it never changes."""
    names = ("id", "prompt", "family", "completion")
    return [{name: row[name] for name in names} for row in read_rows(Path(folder), "chat")]


@lru_cache(maxsize=4)
def _solutions(folder: str) -> dict[str, str]:
    """The first completion of every problem of a chat artifact."""
    found: dict[str, str] = {}
    for row in _chat(folder):
        found.setdefault(row["id"], row["completion"][-1]["content"])
    return found
