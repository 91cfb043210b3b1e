"""What an iteration samples. A plan is given the problems (`rows`) and how much is wanted, and returns asks.

`num_groups` problems with `n` completions each are what the stage's sizes say. A plan that wants companions for a group
numbers its groups from 0 in the order of the asks.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import read_rows
from learning.samples.history import History
from learning.samples.sample import SampleRequest
from learning.toy_tasks.cooperation import observed
from schemas.errors import StepError
from schemas.references import ChatRef
from schemas.schedules import ScheduledFloat

__all__ = [
    "adaptive_size",
    "by_difficulty",
    "demonstrated",
    "hard_focus",
    "hot_cold",
    "in_context",
    "observed",
    "pools",
    "prompts_of_step",
    "uniform",
    "with_greedy",
]

Row = dict[str, Any]
AtLeast1 = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def uniform(rows: list[Row], num_groups: int, n: int, seed: int, step: int) -> list[SampleRequest]:
    """Epochs of shuffled problems laid end to end, `n` completions of each."""
    return [SampleRequest(rows[i], n) for i in prompts_of_step(len(rows), num_groups, seed, step)]


def with_greedy(rows: list[Row], num_groups: int, n: int, seed: int, step: int) -> list[SampleRequest]:
    """As `uniform`, and one greedy completion in every group, which is not trained on (ReMax, Li et al. 2024).

    It is the baseline of `center` with `among: [greedy]`.
    """
    requests = [
        SampleRequest(rows[i], n, group=g) for g, i in enumerate(prompts_of_step(len(rows), num_groups, seed, step))
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
) -> list[SampleRequest]:
    """Ask for ⌈num_groups / keep rate⌉ groups, so that about `num_groups` of them differ in score (CodeV-R1 2025).

    The keep rate is that of the last iteration that asked: the share of its problems whose first reward was neither
    always 0 nor always 1. At most `most` times `num_groups` are asked for. Goes with `resample: [dynamic_sampling]`,
    which drops what is too much and asks for what is missing, and `filter_groups: reward_variance`.
    """
    rate = _keep_rate(history, state)
    limit = int(most * num_groups)
    size = min(math.ceil(num_groups / rate - 1e-9), limit) if rate else limit
    start = state.get("asked", 0)
    state["asked"] = start + size
    return [SampleRequest(rows[i], n) for i in _walk(len(rows), start, size, seed)]


def _keep_rate(history: History, state: dict[str, Any]) -> float:
    """Share of varied problems among the visits since the last call; without any the one before, at first 1."""
    visits = [rate for rates in history.rates.values() for rate in rates]
    seen, varied = len(visits), sum(0 < rate < 1 for rate in visits)
    new = seen - state.get("seen", 0)
    if new:
        state["rate"] = (varied - state.get("varied", 0)) / new
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
    spare_turns: Annotated[int, Field(ge=0)] | None = None,
) -> list[SampleRequest]:
    """Fewer completions of what is solved often, and shorter episodes of what is known to be short (DART 2025).

    A problem gets `most` completions (null: `n`) while its pass rate, when last visited, is at most `easy`; above it
    they fall on a straight line to `least` for one that is always solved. A problem not yet visited gets `n`. Problems
    are shuffled epochs laid end to end, as many as num_groups · n completions suffice for: what easy ones leave goes to
    others. `spare_turns`: an episode may have so many turns more than the longest success of its problem so far (null:
    no limit of its own); a problem that was never solved keeps the `max_turns` of the environment. Raises StepError for
    `least` above `most`.
    """
    full = n if most is None else most
    if least > min(full, n):
        raise StepError(
            f"prompt_sampler by_difficulty: least {least} is more than {min(full, n)} completions; lower it"
        )
    start, left, requests = state.get("asked", 0), num_groups * n, []
    for i in _walk(len(rows), start, math.ceil(left / least), seed):
        rates, longest = history.rates.get(rows[i]["id"]), history.turns.get(rows[i]["id"])
        above = max(0.0, rates[-1] - easy) / (1 - easy) if rates else 0.0
        count = round(full - min(above, 1.0) * (full - least)) if rates else n
        count = left if left - count < least else count  # the rest would make too small a group
        limited = {} if longest is None or spare_turns is None else {"max_turns": longest + spare_turns}
        requests.append(SampleRequest(rows[i] | limited, count))
        left -= count
        if not left:
            break
    state["asked"] = start + len(requests)
    return requests


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
    """Shuffled epochs over the hardest problems only, of which fewer and fewer stay (DRIVE 2025, Pre-GRPO).

    `share` of all problems are retained, best a schedule that falls: out of those retained so far, the ones with the
    lowest pass rate when last visited. A problem not yet visited counts as the hardest.
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
    return [SampleRequest(by_id[kept[i]], n) for i in _walk(len(kept), start, num_groups, seed + state.get("since", 0))]


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
    """Pools of problems by the pass rate of their last visit, and a share of the groups from each.

    `borders` part the pools from hard to easy, the lower one belongs to the harder pool; a problem not yet visited has
    the rate `unseen`. What a pool lacks the others give. Raises StepError unless `shares` are one more than `borders`.
    """
    if len(shares) != len(borders) + 1 or sum(shares) <= 0:
        raise StepError(
            f"prompt_sampler pools: {len(borders)} borders part {len(borders) + 1} pools; give as many `shares`"
        )
    members: list[list[Row]] = [[] for _ in shares]
    for i in rng.permutation(len(rows)):
        row = rows[int(i)]
        rate = history.rates[row["id"]][-1] if history.rates.get(row["id"]) else unseen
        members[sum(rate > border for border in borders)].append(row)
    wanted = [0, *np.rint(np.cumsum(shares) / sum(shares) * num_groups).astype(int).tolist()]
    taken, rest = [], []
    for pool, first, last in zip(members, wanted, wanted[1:], strict=False):
        taken += pool[: last - first]
        rest += pool[last - first :]
    short = num_groups - len(taken)
    taken += [rest[int(i)] for i in rng.choice(len(rest), size=min(short, len(rest)), replace=False)] if rest else []
    return [SampleRequest(row, n) for row in taken]


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
    """As `uniform`, and `extra` completions of every problem that push the entropy to `target` (AEPO 2025).

    They are sampled at the temperature `hot` (source `hot`) while the entropy of the last iteration is below `target`,
    at `cold` (source `cold`) while it is above; in groups of their own, so that no baseline is theirs. A component
    `reinforce` selects them. The first iteration has no such completions.
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
    """As `uniform`, but `with_demos` of the `n` completions see `demos` solved problems first (ICPO 2025).

    They are trained under the plain prompt, and their source is `in_context`. Solved problems are rows of `data` other
    than the problem itself. Raises StepError when a group would have none or no plain completion, or `data` too few.
    """
    if with_demos >= n:
        raise StepError(
            f"prompt_sampler in_context: with_demos {with_demos} leaves no plain completion of num_generations {n}"
        )
    solved = _solved(str(data))
    requests = []
    for group, i in enumerate(prompts_of_step(len(rows), num_groups, seed, step)):
        row = rows[i]
        others = [other for other in solved if other["id"] != row["id"]]
        if len(others) < demos:
            raise StepError(f"prompt_sampler in_context: `data` holds {len(others)} other problems, `demos` is {demos}")
        chosen = [others[int(k)] for k in rng.choice(len(others), size=demos, replace=False)]
        requests.append(SampleRequest(row, n - with_demos, group=group))
        requests.append(SampleRequest(row, with_demos, "in_context", context=demonstrated(chosen, row), group=group))
    return requests


def demonstrated(solved: Sequence[Row], row: Row) -> list[Row]:
    """The messages of solved problems (chat rows), then those of a problem."""
    return [message for one in solved for message in (*one["prompt"], *one["completion"])] + row["prompt"]


@lru_cache(maxsize=4)
def _solved(folder: str) -> list[Row]:
    """The rows of a chat artifact; kept: it never changes."""
    return read_rows(Path(folder), "chat")


def prompts_of_step(num_prompts: int, num_groups: int, seed: int, step: int) -> list[int]:
    """Indices of the problems of a step."""
    return _walk(num_prompts, step * num_groups, num_groups, seed)


def _walk(num_prompts: int, start: int, size: int, seed: int) -> list[int]:
    """`size` places from `start` on in epochs of shuffled problems laid end to end."""
    places = [divmod(i, num_prompts) for i in range(start, start + size)]
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(num_prompts) for epoch, _ in places}
    return [int(orders[epoch][place]) for epoch, place in places]
