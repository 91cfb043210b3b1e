"""Asynchronous rollouts: generation runs during training, with a bound on the age of samples.

An iteration's prompts are sampled `ahead` iterations before they are trained on. Groups submitted up to version v are
those of the iterations 0 … v + ahead, (v + ahead + 1) batches: the admission rule of AReaL (Fu et al. 2025, section
4.2). The groups of iteration p are awaited in iteration p + max_staleness − ahead at the latest, so that no sample is
too old or has to be dropped, however long it takes. Requests of `resample` are sampled in the iteration itself.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from learning.streaming.stream import Consume, Score, Stream
from schemas.errors import StepError

Plan = Callable[[int], list[SampleRequest]]


def streamed(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    plan: Plan,
    score: Score,
    step: int,
    round: int,
    max_steps: int,
    *,
    max_staleness: Annotated[int, Field(ge=0)] = 1,
    ahead: Annotated[int, Field(ge=0)] | None = None,
    interrupt: bool = True,
    steps_per_update: Annotated[int, Field(ge=0)] | None = None,
    sync: Literal["all", "each"] = "all",
) -> list[Sample]:
    """Fully asynchronous: generation, scoring and training run at the same time (AReaL, Fu et al. 2025).

    No token is older than `max_staleness` iterations. `ahead` null samples that many iterations ahead; a lower number
    lets the trainer take finished groups before slow ones. With `interrupt` running completions continue under new
    weights, each token with its own version; otherwise they end under the old weights, and the new ones wait. The order
    in which groups finish depends on real time, so runs differ; with `steps_per_update` an update lasts that many
    decode steps, and runs are bit-identical.

    With `sync: each` workers take new weights one after the other, without pausing the others or the trainer (DART, Li
    et al. 2025). A worker is then at most one version behind, which counts as staleness: the maximum of `ahead` is one
    lower. Raise StepError if `ahead` is above the allowed staleness, or for `sync: each` with `interrupt: false`.
    """
    if round:
        return sampler.sample(requests)
    if sync == "each" and not interrupt:
        raise StepError("rollout streamed: `sync: each` changes weights while completions run; set `interrupt: true`")
    limit = max_staleness - (sync == "each")
    ahead = _check_ahead(limit, ahead, max_staleness)
    stream.rolling = sync == "each"
    stream.open(sampler, score, interrupt=interrupt, steps_per_update=steps_per_update)
    for planned_step in range(stream.planned, min(step + ahead + 1, max_steps)):
        stream.ask(planned_step, plan(planned_step))
    stream.launch()
    return stream.take(step, step - limit + ahead)


def _check_ahead(limit: int, ahead: int | None, max_staleness: int) -> int:
    """Return the iterations to sample ahead, by default `limit`; raise StepError if they are above it."""
    ahead = max(limit, 0) if ahead is None else ahead
    if ahead > limit:
        reason = " minus 1, because `sync: each` lets workers be one version behind" if limit < max_staleness else ""
        raise StepError(
            f"rollout streamed: ahead {ahead} is more than max_staleness {max_staleness}{reason}; lower ahead"
        )
    return ahead


def one_step_off(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    plan: Plan,
    score: Score,
    step: int,
    round: int,
    max_steps: int,
) -> list[Sample]:
    """Generate the batch of the next iteration while this one is trained on: all tokens are one iteration old.

    Those of the first iteration are fresh. Runs are bit-identical.
    """
    return streamed(requests, sampler, stream, plan, score, step, round, max_steps, max_staleness=1, interrupt=False)


def periodic(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    score: Score,
    consume: Consume,
    step: int,
    *,
    order: Literal["asked", "arrived"] = "asked",
) -> list[Sample]:
    """Overlap generation and training within an iteration, without stale samples (Periodic Asynchrony, 2025).

    All completions of an iteration are sampled by its weights; the gradient of a group is added as soon as it is
    scored, while others still run; one optimiser step ends the iteration. The gradient is the synchronous one. `order:
    asked` trains on groups in the order of requests, which makes runs bit-identical; `arrived` in the order in which
    they finish, which avoids waiting but changes the rounding of sums.
    """
    stream.open(sampler, score, interrupt=False, steps_per_update=None)
    stream.ask(step, requests)
    stream.launch()
    return stream.each(step, consume, in_order=order == "asked")
