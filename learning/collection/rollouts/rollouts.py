"""Rollouts: how sample requests become samples, at once, in windows, overprovisioned or from given prefixes.

A rollout with a state keeps unfinished completions and continues them in later iterations, from the same tokens and the
same random streams; their tokens keep their log-probabilities and the version that sampled them. Only the first call of
an iteration continues them: requests of `resample` are sampled completely. A group is returned when all of its
completions have ended; those unfinished at the end of the stage are not trained on.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.rows import read_rows
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.pending_samples import Pending, advance, begin, build_sample, ended_groups, group_ids, start
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.references import PreferencePairsRef

AtLeast1 = Annotated[int, Field(ge=1)]


def synchronous(requests: list[SampleRequest], sampler: Sampler) -> list[Sample]:
    """Sample every completion in this iteration, from its first token to its last."""
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
    """Partial rollout: at most `window` new tokens of every completion per iteration, continued in the next.

    New groups begin while fewer completions run than an iteration requests. After `max_windows` a completion ends as if
    it hit the length limit. `partial: wait` returns only ended groups (segment rollout of UloRL, Du et al. 2025); `all`
    returns every completion that ran, with all of its tokens, unfinished ones as `suspended`: the token mask `fresh`
    selects the new tokens by `version`, so that the policy learns from those and a critic from ended completions
    (T-PPO, Fan et al. 2025).
    """
    pool = _resume(state, step)
    if pool is None:
        return synchronous(requests, sampler)
    pool += start(requests, sampler, running=_count_running(pool), room=sum(request.n for request in requests))
    moved = advance(pool, sampler, window=window)
    for sample in pool:
        if sample.finish == "suspended" and sample.calls >= max_windows:
            sample.finish = "length"
    if partial == "all":
        ids = group_ids(moved, sampler)
        samples = [build_sample(sample, ids[sample.group], sampler) for sample in moved]
        pool = [sample for sample in pool if sample.finish == "suspended"]
    else:
        samples, pool = ended_groups(pool, sampler)
    state["pool"] = [sample.to_json() for sample in pool]
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
    """Run `overprovision` · `target` completions and stop when `target` have ended (APRIL, Zhou et al. 2025).

    The others continue in the next iteration; new groups begin while fewer than target · overprovision completions run.
    Raise StepError if an iteration requests fewer than that.
    """
    launch = math.ceil(target * overprovision - 1e-9)
    pool = _resume(state, step)
    if pool is None:
        return synchronous(requests, sampler)
    if (requested := sum(request.n for request in requests)) < launch:
        raise StepError(
            f"rollout overprovisioned: {target} × {overprovision} are {launch} completions at once, but an iteration "
            f"requests {requested}; raise generation_batch_size or lower target"
        )
    pool += start(requests, sampler, running=_count_running(pool), room=launch)
    advance(pool, sampler, target=target)
    samples, pool = ended_groups(pool, sampler)
    state["pool"] = [sample.to_json() for sample in pool]
    return samples


def resets(
    requests: list[SampleRequest],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: PreferencePairsRef,
    mix: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> list[Sample]:
    """Begin a completion, with probability `mix`, with a random prefix of a chosen answer (Dr. PO, Chang et al. 2024).

    The prefix carries no loss; the source of such a completion is `reset`. The others are the same as without this
    rollout. Raise StepError if a prompt has no pair in `data`.
    """
    pool = start(requests, sampler)
    answers = load_chosen_answers(str(data))
    for sample in pool:
        if sample.ask.source == "policy" and not sample.ask.begin and rng.random() < mix:
            key = make_prompt_key(sample.ask.row)
            if key not in answers:
                raise StepError(
                    f"rollout resets: `data` has no pair for the prompt {sample.ask.row.get('id')}; add one"
                )
            answer = answers[key][int(rng.integers(len(answers[key])))]
            ids = encode_completion(sampler.policy.tokenizer, answer)[:-1]
            longest = min(len(ids), sampler.sampling.max_new_tokens)
            if longest > 1:
                begin(sample, ids[: int(rng.integers(1, longest))], source="reset")
    advance(pool, sampler)
    return ended_groups(pool, sampler)[0]


@lru_cache(maxsize=4)
def load_chosen_answers(folder: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the chosen answers of preference pairs, by prompt."""
    # Artifacts never change, so the cache is never stale.
    answers: dict[str, list[list[dict[str, Any]]]] = {}
    for row in read_rows(Path(folder), "preference_pairs"):
        answers.setdefault(make_prompt_key(row), []).append(row["chosen"])
    return answers


def make_prompt_key(row: dict[str, Any]) -> str:
    """Return a prompt's messages as text."""
    return json.dumps([[message["role"], message["content"]] for message in row["prompt"]])


def _resume(state: dict[str, Any], step: int) -> list[Pending] | None:
    """Return the unfinished completions of earlier iterations, or None in a later round of the same iteration."""
    if state.get("step") == step:
        return None
    state["step"] = step
    return [Pending.from_json(values) for values in state.get("pool", [])]


def _count_running(pool: list[Pending]) -> int:
    return sum(sample.finish == "suspended" for sample in pool)
