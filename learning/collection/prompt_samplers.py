"""Prompt samplers: which problems an iteration samples, how many completions of each, and how.

A sampler receives the problems (`rows`) and the sizes of the stage, `num_groups` problems with `n` completions each,
and returns sample requests. One that adds further requests to a group numbers its groups from 0 in the order of
requests.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_cached_rows
from learning.samples.sample import History, SampleRequest
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat
from schemas.references import ChatRef

AtLeast1 = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def uniform(rows: list[Row], num_groups: int, n: int, seed: int, step: int) -> list[SampleRequest]:
    """Sample problems in shuffled epochs, `n` completions of each."""
    return [SampleRequest(rows[i], n) for i in choose_prompts(len(rows), num_groups, seed, step)]


def limited_turns(
    rows: list[Row], num_groups: int, n: int, seed: int, step: int, *, turns: ScheduledFloat
) -> list[SampleRequest]:
    """As `uniform`, with at most `turns` turns in an episode, usually by a rising schedule (AgentGym-RL 2025).

    `turns: {piecewise: {0: 3, 10: 5, 20: 8}}` allows 3 turns in the first ten iterations, then 5, then 8: short
    episodes first. A fraction is rounded down. The environment's `max_turns` is the limit beyond which no schedule
    goes, and the one of evaluations. Raise StepError for less than one turn.
    """
    most = math.floor(turns + 1e-9)
    if most < 1:
        raise StepError(f"prompt_sampler limited_turns: turns {turns} at iteration {step} is below 1; raise it")
    return [SampleRequest(rows[i] | {"max_turns": most}, n) for i in choose_prompts(len(rows), num_groups, seed, step)]


def with_greedy(rows: list[Row], num_groups: int, n: int, seed: int, step: int) -> list[SampleRequest]:
    """As `uniform`, plus one greedy completion per group that is not trained on (ReMax, Li et al. 2024).

    It is the baseline for `center` with `among: [greedy]`.
    """
    requests = [
        SampleRequest(rows[i], n, group=g) for g, i in enumerate(choose_prompts(len(rows), num_groups, seed, step))
    ]
    return [
        *requests,
        *(SampleRequest(request.row, 1, "greedy", temperature=0.0, group=request.group) for request in requests),
    ]


def adaptive_size(
    rows: list[Row],
    num_groups: int,
    n: int,
    state: dict[str, Any],
    history: History,
    seed: int,
    *,
    most: Annotated[float, Field(ge=1)] = 4.0,
    keep_rate: Literal["last", "lowest"] = "last",
) -> list[SampleRequest]:
    """Sample ⌈num_groups / keep rate⌉ groups, so that about `num_groups` have scores that differ (CodeV-R1 2025).

    The keep rate is the share of an iteration's problems whose first reward was neither always 0 nor always 1: that of
    the last sampled iteration, or the `lowest` of all so far (the released code). At most `most` times `num_groups` are
    sampled. Use it with `resample: [dynamic_sampling]`, which drops surplus groups and samples missing ones, and
    `filter_groups: reward_variance`.
    """
    rate, limit = _update_keep_rate(history, state, keep_rate), int(most * num_groups)
    size = min(math.ceil(num_groups / rate - 1e-9), limit) if rate else limit
    start = state.get("asked", 0)
    state["asked"] = start + size
    return [SampleRequest(rows[i], n) for i in _walk_epochs(len(rows), start, size, seed)]


def _update_keep_rate(history: History, state: dict[str, Any], which: Literal["last", "lowest"]) -> float:
    """Return the share of varied problems among the visits since the last call; without visits the last rate, or 1.

    `lowest` returns the lowest of these shares so far.
    """
    visits = [rate for rates in history.rates.values() for rate in rates]
    seen, varied = len(visits), sum(0 < rate < 1 for rate in visits)
    new = seen - state.get("seen", 0)
    if new:
        rate = (varied - state.get("varied", 0)) / new
        state["rate"] = rate if which == "last" else min(rate, state.get("rate", 1.0))
    state["seen"], state["varied"] = seen, varied
    return state.get("rate", 1.0)


def by_difficulty(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    state: dict[str, Any],
    history: History,
    *,
    most: AtLeast1 | None = None,
    least: AtLeast1 = 2,
    easy: Annotated[float, Field(ge=0, lt=1)] = 0.6,
    shape: Literal["line", "hyperbola"] = "line",
    spare_turns: Annotated[int, Field(ge=0)] | None = None,
) -> list[SampleRequest]:
    """Sample fewer completions of easy problems, and limit the turns of episodes by past successes (DART 2025).

    A problem gets `most` completions (null: `n`) while its pass rate at the last visit is at most `easy`; above it the
    number falls to `least` at a pass rate of 1, on a line or as ⌊a/rate + b⌋ (`hyperbola`, the released code: ⌊9/rate −
    7⌋ from 8 at 0.6 to 2). An unvisited problem gets `n`. Problems are sampled in shuffled epochs until num_groups · n
    completions are allocated. `spare_turns` limits an episode to that many turns
    more than the longest success of its problem (null: no such limit); a problem without a success keeps the
    environment's `max_turns`. Raise StepError if `least` is above `most`.
    """
    full = n if most is None else most
    if least > min(full, n):
        raise StepError(f"prompt_sampler by_difficulty: least {least} is above {min(full, n)} completions; lower it")
    start, left = state.get("asked", 0), num_groups * n
    requests: list[SampleRequest] = []
    for i in _walk_epochs(len(rows), start, math.ceil(left / least), seed):
        rates, longest = history.rates.get(rows[i]["id"]), history.turns.get(rows[i]["id"])
        count = _fall_with_rate(rates[-1], full, least, easy, shape) if rates else n
        count = left if left - count < least else count  # the remainder would be too small a group
        turn_limit = {} if longest is None or spare_turns is None else {"max_turns": longest + spare_turns}
        requests.append(SampleRequest(rows[i] | turn_limit, count))
        left -= count
        if not left:
            break
    state["asked"] = start + len(requests)
    return requests


def _fall_with_rate(rate: float, full: int, least: int, easy: float, shape: Literal["line", "hyperbola"]) -> int:
    """Return `full` up to the pass rate `easy`, `least` at 1, and numbers in between for rates in between."""
    if rate <= easy:
        return full
    if shape == "line":
        return round(full - min((rate - easy) / (1 - easy), 1.0) * (full - least))
    height = (full - least) * easy / (1 - easy)
    return math.floor(height / min(rate, 1.0) + least - height + 1e-9)


def hard_focus(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    history: History,
    state: dict[str, Any],
    *,
    share: ScheduledFloat,
) -> list[SampleRequest]:
    """Sample only the hardest problems, in shuffled epochs over a shrinking set (DRIVE 2025, Pre-GRPO).

    `share` of all problems is retained, usually by a falling number schedule: of those retained so far, the ones with
    the lowest pass rate at their last visit. An unvisited problem counts as the hardest.
    """
    kept: list[str] = state.setdefault("kept", [row["id"] for row in rows])
    size = max(1, math.ceil(share * len(rows) - 1e-9))
    if size < len(kept):
        rates = {key: history.rates[key][-1] if history.rates.get(key) else -1.0 for key in kept}
        hardest = set(sorted(kept, key=lambda key: rates[key])[:size])
        state["kept"] = kept = [key for key in kept if key in hardest]
        state["since"], state["taken"] = step, 0
    start = state.get("taken", 0)
    state["taken"] = start + num_groups
    by_id = {row["id"]: row for row in rows}
    return [
        SampleRequest(by_id[kept[i]], n)
        for i in _walk_epochs(len(kept), start, num_groups, seed + state.get("since", 0))
    ]


def unsolved(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    state: dict[str, Any],
    history: History,
    *,
    below: Annotated[float, Field(gt=0, le=1)] = 0.9,
) -> list[SampleRequest]:
    """Sample problems in shuffled epochs, each without those that were solved in the ones before (RAPO, Fathom 2025).

    After an epoch problems leave whose mean of the first reward was at least `below` at their last visit; they do not
    come back. If none were left, all that were in the epoch stay.
    """
    kept: list[str] = state.setdefault("kept", [row["id"] for row in rows])
    by_id, chosen = {row["id"]: row for row in rows}, list[str]()
    while len(chosen) < num_groups:
        at, epoch = state.get("at", 0), state.get("epoch", 0)
        if at == len(kept):
            left = [key for key in kept if not history.rates.get(key) or history.rates[key][-1] < below]
            state["kept"] = kept = left or kept
            at, epoch = 0, epoch + 1
        order = np.random.default_rng([seed, epoch]).permutation(len(kept)).tolist()
        taken = order[at : at + num_groups - len(chosen)]
        chosen += [kept[i] for i in taken]
        state["at"], state["epoch"] = at + len(taken), epoch
    return [SampleRequest(by_id[key], n) for key in chosen]


def pools(
    rows: list[Row],
    num_groups: int,
    n: int,
    history: History,
    rng: np.random.Generator,
    *,
    borders: list[float] = [0.25, 0.75],  # noqa: B006 — never written to
    shares: list[float] = [0.25, 0.5, 0.25],  # noqa: B006 — never written to
    unseen: Share = 0.5,
) -> list[SampleRequest]:
    """Sample a share of the groups from each of several pools of problems, divided by pass rate.

    The pass rate is that of the last visit, `unseen` for an unvisited problem. `borders` divide the pools from hard to
    easy; a rate equal to a border belongs to the harder pool. Other pools fill up for one that is too small. Raise
    StepError unless there is one more of `shares` than of `borders`.
    """
    if len(shares) != len(borders) + 1 or sum(shares) <= 0:
        raise StepError(
            f"prompt_sampler pools: {len(borders)} borders divide {len(borders) + 1} pools; give as many `shares`"
        )
    members: list[list[Row]] = [[] for _ in shares]
    for i in rng.permutation(len(rows)):
        row = rows[int(i)]
        rate = history.rates[row["id"]][-1] if history.rates.get(row["id"]) else unseen
        members[sum(rate > border for border in borders)].append(row)
    ends = [0, *np.rint(np.cumsum(shares) / sum(shares) * num_groups).astype(int).tolist()]
    chosen: list[Row] = []
    unused: list[Row] = []
    for pool, first, last in zip(members, ends, ends[1:], strict=False):
        chosen += pool[: last - first]
        unused += pool[last - first :]
    if unused:
        missing = min(num_groups - len(chosen), len(unused))
        chosen += [unused[int(i)] for i in rng.choice(len(unused), size=missing, replace=False)]
    return [SampleRequest(row, n) for row in chosen]


def failures(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    history: History,
    rng: np.random.Generator,
    state: dict[str, Any],
    *,
    every: AtLeast1 = 5,
    at_most: Share = 0.0,
) -> list[SampleRequest]:
    """As `uniform`, but every `every`-th iteration samples problems that failed (DeepTravel 2025).

    A problem failed if the mean of the first reward over its completions was `at_most` at its last visit. Where fewer
    than `num_groups` have failed, the next problems of the epoch fill up.
    """
    failed = [row for row in rows if (rates := history.rates.get(row["id"])) and rates[-1] <= at_most]
    again = (step + 1) % every == 0
    order = rng.permutation(len(failed))[:num_groups] if again else []
    chosen = [failed[int(i)] for i in order]
    start, left = state.get("asked", 0), num_groups - len(chosen)
    state["asked"] = start + left
    return [SampleRequest(row, n) for row in (*chosen, *(rows[i] for i in _walk_epochs(len(rows), start, left, seed)))]


def hot_cold(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    metrics: Mapping[str, float],
    *,
    target: Annotated[float, Field(gt=0)],
    hot: Annotated[float, Field(gt=0)] = 1.5,
    cold: Annotated[float, Field(gt=0)] = 0.7,
    extra: AtLeast1 = 1,
) -> list[SampleRequest]:
    """As `uniform`, plus `extra` completions of each problem that move the entropy to `target` (AEPO 2025).

    They are sampled at the temperature `hot` (source `hot`) while the entropy of the last iteration is below `target`,
    at `cold` (source `cold`) while it is above; in separate groups, so that no baseline includes them. A loss term
    `reinforce` with a `token_mask` trains on them. The first iteration has none.
    """
    requests = uniform(rows, num_groups, n, seed, step)
    if "entropy" not in metrics or metrics["entropy"] == target:
        return requests
    below = metrics["entropy"] < target
    source, temperature = ("hot", hot) if below else ("cold", cold)
    return [*requests, *(SampleRequest(request.row, extra, source, temperature=temperature) for request in requests)]


def in_context(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    rng: np.random.Generator,
    *,
    data: ChatRef,
    with_demos: AtLeast1 = 2,
    demos: AtLeast1 = 2,
) -> list[SampleRequest]:
    """As `uniform`, with `demos` solved problems in the prompt of `with_demos` of the `n` completions (ICPO 2025).

    They are trained under the plain prompt, and their source is `in_context`. Solved problems are rows of `data` other
    than the problem itself. Raise StepError if a group would have no plain completion, or `data` has too few rows.
    """
    if with_demos >= n:
        raise StepError(
            f"prompt_sampler in_context: with_demos {with_demos} leaves no plain completion of num_generations {n}; "
            "lower it"
        )
    solved = read_cached_rows(str(data), "chat")
    requests = []
    for group, i in enumerate(choose_prompts(len(rows), num_groups, seed, step)):
        row = rows[i]
        others = [other for other in solved if other["id"] != row["id"]]
        if len(others) < demos:
            raise StepError(
                f"prompt_sampler in_context: `data` has {len(others)} other problems, but `demos` is {demos}; "
                "lower it or give more data"
            )
        chosen = [others[int(k)] for k in rng.choice(len(others), size=demos, replace=False)]
        requests.append(SampleRequest(row, n - with_demos, group=group))
        requests.append(
            SampleRequest(row, with_demos, "in_context", context=prepend_demonstrations(chosen, row), group=group)
        )
    return requests


def prepend_demonstrations(solved: Sequence[Row], row: Row) -> list[Row]:
    """Return the messages of solved problems (chat rows), followed by those of a problem."""
    return [message for demo in solved for message in (*demo["prompt"], *demo["completion"])] + row["prompt"]


def choose_prompts(num_prompts: int, num_groups: int, seed: int, step: int) -> list[int]:
    """Return the indices of the problems that `uniform` samples in an iteration."""
    return _walk_epochs(num_prompts, step * num_groups, num_groups, seed)


def _walk_epochs(num_prompts: int, start: int, size: int, seed: int) -> list[int]:
    """Return the `size` indices from position `start` on in consecutive shuffled epochs."""
    places = [divmod(i, num_prompts) for i in range(start, start + size)]
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(num_prompts) for epoch, _ in places}
    return [int(orders[epoch][place]) for epoch, place in places]
