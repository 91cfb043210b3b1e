"""How asks become samples: all at once, in windows, more than needed, from the middle of a good answer.

A drive with a memory keeps completions that have not ended in its state and goes on with them in later iterations, from
the same tokens and the same random streams; tokens that exist keep their log-probabilities and the version that sampled
them. Only the first call of an iteration does so: what follow-ups ask for is sampled whole. A group is returned when
all of its completions have ended; what has not when the stage ends is not trained on.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.rows import Row, read_rows
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.pending_samples import Pending, advance, begin, build_sample, ended_groups, group_ids, start
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.references import PreferencePairsRef

AtLeast1 = Annotated[int, Field(ge=1)]


def synchronous(requests: list[SampleRequest], sampler: Sampler) -> list[Sample]:
    """Every completion from its first token to its last, in this iteration."""
    return sampler.sample(requests)


def windowed(
    requests: list[SampleRequest],
    sampler: Sampler,
    state: dict[str, Any],
    step: int,
    *,
    window: AtLeast1,
    max_windows: AtLeast1 = 4,
    partial: Literal["wait", "all"] = "wait",
) -> list[Sample]:
    """At most `window` new tokens of every completion per iteration; what has not ended goes on in the next.

    New groups are begun while fewer completions run than an iteration asks for. After `max_windows` a completion ends
    as one that hit the length limit. `partial: wait` returns ended groups alone (segment rollout of UloRL, Du et al.
    2025); `all` returns what ran with every token so far, open ends as `suspended`: which tokens are new, `version`
    says (selection `fresh`), so that the policy can learn from those and a critic from ended completions (T-PPO, Fan et
    al. 2025).
    """
    pool = _resumed(state, step)
    if pool is None:
        return synchronous(requests, sampler)
    pool += start(requests, sampler, running=_running(pool), room=sum(request.n for request in requests))
    moved = advance(pool, sampler, window=window)
    for one in pool:
        if one.finish == "suspended" and one.calls >= max_windows:
            one.finish = "length"
    if partial == "all":
        ids = group_ids(moved, sampler)
        samples = [build_sample(one, ids[one.group], sampler) for one in moved]
        pool = [one for one in pool if one.finish == "suspended"]
    else:
        samples, pool = ended_groups(pool, sampler)
    state["pool"] = [one.to_json() for one in pool]
    return samples


def overprovisioned(
    requests: list[SampleRequest],
    sampler: Sampler,
    state: dict[str, Any],
    step: int,
    *,
    target: AtLeast1,
    overprovision: Annotated[float, Field(ge=1)] = 1.5,
) -> list[Sample]:
    """Run `overprovision` times as many completions as needed and stop as soon as `target` of them have ended (APRIL).

    The others are kept and go on in the next iteration (Zhou et al. 2025); new groups are begun while fewer than
    target · overprovision completions run. Raises StepError when an iteration does not ask for so many.
    """
    launch = math.ceil(target * overprovision - 1e-9)
    pool = _resumed(state, step)
    if pool is None:
        return synchronous(requests, sampler)
    if (asked := sum(request.n for request in requests)) < launch:
        raise StepError(
            f"rollout overprovisioned: {target} × {overprovision} are {launch} completions at once, but an iteration "
            f"asks for {asked}: raise generation_batch_size or lower target"
        )
    pool += start(requests, sampler, running=_running(pool), room=launch)
    advance(pool, sampler, target=target)
    samples, pool = ended_groups(pool, sampler)
    state["pool"] = [one.to_json() for one in pool]
    return samples


def resets(
    requests: list[SampleRequest],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: PreferencePairsRef,
    mix: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> list[Sample]:
    """With probability `mix` a completion begins with a random strict prefix of a chosen answer to its prompt.

    (Dr. PO, Chang et al. 2024.) What is given carries no loss; the source of such a completion is `reset`. The others
    are what they would be without this drive. Raises StepError for a prompt that has no pair in `data`.
    """
    pool = start(requests, sampler)
    answers = chosen_answers(str(data))
    for one in pool:
        if one.request.source == "policy" and not one.request.begin and rng.random() < mix:
            key = prompt_key(one.request.row)
            if key not in answers:
                raise StepError(f"rollout resets: data has no pair for the prompt {one.request.row.get('id')}")
            answer = answers[key][int(rng.integers(len(answers[key])))]
            ids = encode_completion(sampler.policy.tokenizer, answer)[:-1]
            longest = min(len(ids), sampler.sampling.max_new_tokens)
            if longest > 1:
                begin(one, ids[: int(rng.integers(1, longest))], source="reset")
    advance(pool, sampler)
    return ended_groups(pool, sampler)[0]


@lru_cache(maxsize=4)
def chosen_answers(folder: str) -> dict[str, list[list[Row]]]:
    """The chosen answers of preference pairs, by prompt; kept: an artifact never changes."""
    by_prompt: dict[str, list[list[Row]]] = {}
    for row in read_rows(Path(folder), "preference_pairs"):
        by_prompt.setdefault(prompt_key(row), []).append(row["chosen"])
    return by_prompt


def prompt_key(row: Row) -> str:
    """A prompt's messages as text."""
    return json.dumps([[message["role"], message["content"]] for message in row["prompt"]])


def _resumed(state: dict[str, Any], step: int) -> list[Pending] | None:
    """Completions kept from the iterations before; None in a later round of the same iteration."""
    if state.get("step") == step:
        return None
    state["step"] = step
    return [Pending.from_json(values) for values in state.get("pool", [])]


def _running(pool: list[Pending]) -> int:
    return sum(one.finish == "suspended" for one in pool)
