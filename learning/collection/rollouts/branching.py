"""Rollouts that branch: episodes go on from the middle of others, where the policy is less sure than at first."""

from statistics import fmean
from typing import Annotated

from pydantic import Field

from learning.samples.sample import Sample, SampleRequest
from learning.sampling.pending_samples import Pending, advance, branch, ended_groups, list_origins, start
from learning.sampling.sampler import Sampler
from schemas.errors import StepError

AtLeast1 = Annotated[int, Field(ge=1)]


def branching(
    requests: list[SampleRequest],
    sampler: Sampler,
    *,
    initial: AtLeast1,
    base: float = 0.2,
    weight: float = 0.4,
    threshold: float = 0.5,
    tokens: AtLeast1 = 20,
) -> list[Sample]:
    """Sample `initial` whole episodes of a group, and spend the rest of it on branches after answers (ARPO 2025).

    An episode branches before a turn where base + weight · ΔH exceeds `threshold`: ΔH is the mean entropy, in nats, of
    the first `tokens` tokens of that turn minus that of the first turn. Early turns come first, and branches may branch
    again; an episode branches once before a turn. A branch keeps all tokens before the turn and samples the rest. What
    is left of the group when nothing branches any more are further whole episodes. Every group therefore has as many
    completions as the stage asks for. Raise StepError for a group smaller than `initial`.
    """
    pool = start(requests, sampler)
    waiting: dict[tuple[str, int], list[Pending]] = {}
    for one in pool:
        waiting.setdefault((one.group, one.seed), []).append(one)
    leaves: dict[tuple[str, int], list[Pending]] = {}
    for key, members in waiting.items():
        if len(members) < initial:
            raise StepError(
                f"rollout branching: initial {initial} is more than the {len(members)} completions of a group; "
                "lower it or raise num_generations"
            )
        leaves[key], waiting[key] = members[:initial], members[initial:]
    _sample([one for of in leaves.values() for one in of], sampler)
    turn = 1
    while any(waiting[key] and len(one.turns) >= turn for key, of in leaves.items() for one in of):
        branches = []
        for key, of in leaves.items():
            for source in list(of):
                rise = measure_rise(source, turn, tokens)
                if waiting[key] and rise is not None and base + weight * rise > threshold:
                    of.append(branch(waiting[key].pop(0), source, turn))
                    branches.append(of[-1])
        _sample(branches, sampler)
        turn += 1
    _sample([one for of in waiting.values() for one in of], sampler)
    return [trace(sample, one) for sample, one in zip(ended_groups(pool, sampler)[0], pool, strict=True)]


def measure_rise(one: Pending, turn: int, tokens: int) -> float | None:
    """Return how far the entropy at the start of a turn is above that of the first; None if there is no such turn."""
    starts = [0]
    for done in one.turns:
        starts.append(starts[-1] + done.sampled + done.observed)
    ends = [start + done.sampled for start, done in zip(starts, one.turns, strict=False)] + [len(one.ids)]
    if turn >= len(starts) or starts[turn] >= ends[turn]:
        return None
    first, now = (fmean(one.entropies[starts[i] : min(ends[i], starts[i] + tokens)]) for i in (0, turn))
    return now - first


def _sample(some: list[Pending], sampler: Sampler) -> None:
    """Sample completions to their ends, with entropies."""
    if some:
        advance(some, sampler, entropy=True)


def trace(sample: Sample, one: Pending) -> Sample:
    """Return the sample of a completion with the streams of its tokens, by which shared ones are recognised."""
    sample.origins = [0] * sample.given + list_origins(one)
    return sample
