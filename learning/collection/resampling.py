"""Functions that drop samples and request further ones once the scores of an iteration are known.

Each receives all samples of the iteration so far and returns those to keep and the requests for another round. The loop
calls it after every round, until there are no requests or the stage's `max_rounds` are reached. Its `state` is saved in
the checkpoint.
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

from learning.collection.prompt_samplers import prepend_demonstrations
from learning.data.rows import Row, read_rows
from learning.samples.judging import failed, judged, passed, spread
from learning.samples.sample import Messages, Sample, SampleRequest, Source
from learning.samples.sample import by_group as _by_group
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat
from schemas.references import ChatRef

Asked = tuple[list[Sample], list[SampleRequest]]
AtLeast1 = Annotated[int, Field(ge=1)]


def dynamic_sampling(
    samples: list[Sample],
    rows: list[Row],
    num_groups: int,
    n: int,
    rng: np.random.Generator,
    round: int,
    state: dict[str, Any],
    *,
    reward: str | None = None,
    min: Annotated[float, Field(ge=0)] = 0.0,
    budget: Annotated[float, Field(ge=1)] = 4.0,
    size: AtLeast1 | Literal["by_keep_rate"] | None = None,
    short: Literal["train", "stop"] = "train",
) -> Asked:
    """Dynamic sampling: sample other problems until `num_groups` groups have scores that differ (DAPO, eq. 11).

    Use it with `filter_groups: reward_variance` (same `reward` and `min`), which keeps the other groups out of the
    loss; groups above `num_groups` are dropped, the last requested first. A round requests `size` groups (null: as many
    as are missing; `by_keep_rate`: the missing ones over the lowest share of varied groups in a round of this iteration
    or in a whole iteration so far, CodeV-R1 2025) of problems not sampled in this iteration. At most `budget` ·
    num_groups groups are sampled: with too few the iteration trains on those, or raises StepError (`short: stop`).
    """
    groups = _by_group(samples)
    varied = [group for group, members in groups.items() if spread(members, reward) > min]
    rate = 1.0
    if size == "by_keep_rate":
        rate = _update_lowest_keep_rate(state, round, len(groups), len(varied), num_groups)
    if len(varied) >= num_groups:
        surplus = set(varied[num_groups:])
        return [t for t in samples if t.group not in surplus], []
    sampled_ids = {sample.row["id"] for sample in samples}
    fresh = [row for row in rows if row["id"] not in sampled_ids]
    missing, left = num_groups - len(varied), int(budget * num_groups) - len(groups)
    wanted = size if isinstance(size, int) else math.ceil(missing / rate - 1e-9) if rate else left
    # Not min(): the option `min` shadows it.
    count = sorted((wanted, left, len(fresh)))[0]
    if count < 1 and short == "stop":
        raise StepError(
            f"resample refill: {len(varied)} of {num_groups} groups have scores that differ, after {len(groups)} "
            "groups; choose problems that are neither too easy nor too hard, raise `budget`, or set `short: train`"
        )
    chosen = rng.choice(len(fresh), size=count, replace=False) if count > 0 else []
    return samples, [SampleRequest(fresh[int(i)], n) for i in chosen]


def _update_lowest_keep_rate(state: dict[str, Any], round: int, groups: int, varied: int, num_groups: int) -> float:
    """Return the lowest share of varied groups in a round of this iteration or in a whole iteration so far.

    An iteration counts as a whole once it has `num_groups` varied groups.
    """
    if round == 0 or "groups" not in state:
        state["groups"], state["varied"], state["round_rate"] = 0, 0, 1.0
    if groups > state["groups"]:
        rate = (varied - state["varied"]) / (groups - state["groups"])
        state["round_rate"] = min(state["round_rate"], rate)
    state["groups"], state["varied"] = groups, varied
    if groups and varied >= num_groups:
        state["whole_rate"] = min(state.get("whole_rate", 1.0), varied / groups)
    return min(state["round_rate"], state.get("whole_rate", 1.0))


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
    """Sample `extra` more completions per round for the groups whose mean score is most uncertain (XRPO 2025).

    The gain of one more completion for a group of n is h(n) − h(n + 1), h(n) = t·s/√n half the confidence interval of
    its mean score, plus bonus·√(ln(1 + N)/n) with N completions in total. Completions are allocated one by one to the
    group of the highest gain; groups without a gain get none.
    """
    if round >= rounds:
        return samples, []
    first = {t.group: t.row for t in reversed(samples) if t.source == "policy"}
    scores = {group: judged(members, reward) for group, members in _by_group(samples).items() if group in first}
    deviations = {group: _compute_deviation(values) for group, values in scores.items() if len(values) > 1}
    counts = {group: len(scores[group]) for group in deviations}
    allocated: Counter[int] = Counter()
    for _ in range(extra):
        total = sum(counts.values()) + sum(allocated.values())
        gains = {}
        for group, s in deviations.items():
            size = counts[group] + allocated[group]
            gain = compute_half_width(s, size, confidence) - compute_half_width(s, size + 1, confidence)
            gains[group] = gain + bonus * math.sqrt(math.log1p(total) / size)
        best = max(gains, key=gains.__getitem__, default=None)
        if best is None or gains[best] <= 0:
            break
        allocated[best] += 1
    return samples, [SampleRequest(first[group], count, group=group) for group, count in sorted(allocated.items())]


def compute_half_width(deviation: float, size: int, confidence: float = 0.95) -> float:
    """Return half of Student's confidence interval for the mean of `size` values with a sample deviation."""
    return float(stdtrit(size - 1, (1 + confidence) / 2)) * deviation / math.sqrt(size)


def _compute_deviation(values: list[float]) -> float:
    """Return the sample deviation (n − 1)."""
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
    choose: Literal["random", "similar"] = "random",
    keep: AtLeast1 = 64,
    data: ChatRef | None = None,
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """Retry groups without a success once, with solved problems in the prompt: `extra` more completions (after XRPO).

    They join the group, are trained under the plain prompt, and their source is `in_context`. The solved problems are
    the last `keep` that the policy has solved, initially those of `data`; `demos` different ones of the same family are
    drawn, fewer if they do not fit into the model's context. `choose: similar` takes those whose prompts are most
    similar by the cosine of their character trigrams, where XRPO has an embedding model.
    """
    if round == 0:
        state["retried"] = []
    if "bank" not in state:
        state["bank"] = _load_chat(str(data))[-keep:] if data else []
    for sample in samples if round == 0 else []:
        if sample.source == "policy" and passed(sample, reward, at_least):
            state["bank"] = [*state["bank"], make_demonstration(sample)][-keep:]
    requests = []
    for group, members in _by_group(samples).items():
        if group in state["retried"] or not failed(members, reward, at_least):
            continue
        row = members[0].row
        # The same problem may have been solved several times: its last solution counts.
        related = {
            solved["id"]: solved
            for solved in state["bank"]
            if solved["family"] == row["family"] and solved["id"] != row["id"]
        }
        solved = list(related.values())
        order = rng.permutation(len(solved)).tolist() if choose == "random" else _rank_by_similarity(row, solved)
        chosen = [solved[i] for i in order[:demos]]
        while chosen and not _fits_context(prepend_demonstrations(chosen, row), sampler):
            chosen.pop()
        if chosen:
            state["retried"].append(group)
            requests.append(
                SampleRequest(row, extra, "in_context", context=prepend_demonstrations(chosen, row), group=group)
            )
    return samples, requests


def _rank_by_similarity(row: Row, others: list[Row]) -> list[int]:
    """Return the indices of other rows in order of the cosine of their prompts with the row's, the highest first."""
    own = _count_trigrams(row)

    def compute_cosine(other: Row) -> float:
        counts = _count_trigrams(other)
        squares = sum(n * n for n in own.values()) * sum(n * n for n in counts.values())
        return sum(n * counts[gram] for gram, n in own.items()) / math.sqrt(squares) if squares else 0.0

    return sorted(range(len(others)), key=lambda i: -compute_cosine(others[i]))


def _count_trigrams(row: Row) -> Counter[str]:
    """Return how often each three consecutive characters occur in the messages of a prompt."""
    text = "\n".join(message["content"] or "" for message in row["prompt"])
    return Counter(text[i : i + 3] for i in range(len(text) - 2))


def make_demonstration(sample: Sample) -> Row:
    """Return a sample as a chat row with the columns that demonstrations need."""
    problem = {name: sample.row[name] for name in ("id", "prompt", "family")}
    return problem | {"completion": [{"role": "assistant", "content": sample.text}]}


def _fits_context(messages: Messages, sampler: Sampler, extra_tokens: int = 0) -> bool:
    """Return whether a prompt, `extra_tokens` and a completion fit into the model's context."""
    size = len(sampler.encode(messages)) + extra_tokens + sampler.sampling.max_new_tokens
    return size <= sampler.policy.max_length


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
    """Resample groups without a success with the beginning of the solution as a hint (GHPO, Liu et al. 2025).

    The first ⌈share · L⌉ of the L tokens of the problem's completion in `data` follow the prompt, after `lead`, or
    (`place: completion`) begin the completion, without a loss. A group that fails again gets the next share. The new
    completions replace the group's; their source is `hinted`. A group does not change if `data` has no completion of
    its problem or the hint does not fit. In the first `guided_steps` iterations every group gets one hint of
    `guided_share` instead, whether it failed or not.
    """
    if round == 0:
        state["hints"] = {}
    solutions, guided = _load_solutions(str(data)), step < guided_steps
    requests: list[SampleRequest] = []
    dropped: set[int] = set()
    shares = [guided_share] if guided else shares
    for group, members in _by_group(samples).items():
        used, row = state["hints"].get(str(group), 0), members[0].row
        if used >= len(shares) or row["id"] not in solutions or not (guided or failed(members, reward, at_least)):
            continue
        hint_ids = _take_beginning(row, solutions[row["id"]], shares[used], sampler)
        if place == "completion":
            request = SampleRequest(row, n, "hinted", group=group, begin=hint_ids)
        else:
            prompt = _append_hint(row, lead + _decode(hint_ids, sampler))
            request = SampleRequest(row, n, "hinted", group=group, prompt=prompt)
        if _fits_context(request.prompt or row["prompt"], sampler, len(request.begin)):
            state["hints"][str(group)] = used + 1
            dropped.add(group)
            requests.append(request)
    return [t for t in samples if t.group not in dropped], requests


def _take_beginning(row: Row, solution: str, share: float, sampler: Sampler) -> tuple[int, ...]:
    """Return the first ⌈share · L⌉ of the L tokens of a solution."""
    ids = sampler.sample_from_text(row, solution, source="expert", group=0).completion_ids[:-1]
    return tuple(ids[: math.ceil(share * len(ids) - 1e-9)])


def _append_hint(row: Row, hint: str) -> Messages:
    """Return the prompt of a row with a hint at the end of its last message."""
    *before, last = row["prompt"]
    return [*before, last | {"content": last["content"] + hint}]


def _decode(ids: Sequence[int], sampler: Sampler) -> str:
    """Return the text of token ids without special tokens."""
    text = sampler.policy.tokenizer.decode(list(ids), skip_special_tokens=True)
    assert isinstance(text, str)  # a list only for a batch of sequences
    return text


def reject(
    samples: list[Sample],
    *,
    sources: Annotated[list[Source], Field(min_length=1)] = ["in_context"],  # noqa: B006 — never written to
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """Drop completions of the named sources that score below `at_least` or could not be scored (ICPO 2025).

    They do not count in the mean and deviation of their group.
    """
    return [t for t in samples if t.source not in sources or passed(t, reward, at_least)], []


def clean_successes(
    samples: list[Sample],
    rng: np.random.Generator,
    *,
    keep: AtLeast1,
    uncalled: Annotated[float, Field(ge=0, le=1)] = 0.5,
    reward: str | None = None,
    at_least: float = 1.0,
) -> Asked:
    """Keep `keep` completions of each group: the cleanest successes, and random failures (GRPO-RoC, rStar2-Agent 2025).

    ⌊share · keep⌋ failures stay, where share is theirs of the group, and successes with the lowest penalties fill the
    rest. The penalty is the share of a success's calls (its turns before the last) that failed, `uncalled` without a
    call. Rewards do not change.
    """
    kept: set[int] = set()
    for members in _by_group(samples).values():
        successes = sorted(
            (sample for sample in members if passed(sample, reward, at_least)),
            key=lambda sample: _penalise_trace(sample, uncalled),
        )
        failures = [sample for sample in members if not passed(sample, reward, at_least)]
        count = math.floor(len(failures) * min(keep, len(members)) / len(members))
        chosen = [failures[int(i)] for i in rng.permutation(len(failures))[:count]]
        kept |= {id(sample) for sample in (*chosen, *successes[: keep - count])}
    return [sample for sample in samples if id(sample) in kept], []


def _penalise_trace(sample: Sample, uncalled: float) -> float:
    """Return the share of an episode's calls that failed; `uncalled` without a call."""
    calls = [turn.ok for turn in sample.turns[:-1]]
    return calls.count(False) / len(calls) if calls else uncalled


@lru_cache(maxsize=4)
def _load_chat(folder: str) -> list[Row]:
    """Return the rows of a chat artifact with the columns that demonstrations need."""
    # Artifacts never change, so the cache is never stale.
    names = ("id", "prompt", "family", "completion")
    return [{name: row[name] for name in names} for row in read_rows(Path(folder), "chat")]


@lru_cache(maxsize=4)
def _load_solutions(folder: str) -> dict[str, str]:
    """Return the first completion of every problem of a chat artifact."""
    solutions: dict[str, str] = {}
    for row in _load_chat(folder):
        solutions.setdefault(row["id"], row["completion"][-1]["content"])
    return solutions
