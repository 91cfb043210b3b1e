"""Rollouts that generate while the policy is trained; how old samples may be is fixed before they begin.

The samples of an iteration are requested `ahead` iterations before they are trained on. Groups submitted up to version
v are those of the iterations 0 … v + ahead, (v + ahead + 1) batches: the admission of AReaL (Fu et al. 2025, section
4.2). The groups of iteration p are waited for in iteration p + max_staleness − ahead at the latest, so that no group is
too old and none is dropped: long completions are trained on as surely as short ones. What resampling requests is
sampled in the iteration itself.
"""

from typing import Annotated, Literal

from pydantic import Field

from learning.samples.sample import Sample, SampleRequest
from learning.sampling.iteration_context import RequestSamples, ScoreGroup, TrainOnGroup
from learning.sampling.sampler import Sampler
from learning.streaming.overlap import overlaps_training
from learning.streaming.stream import Stream
from schemas.errors import StepError


@overlaps_training
def streamed(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    request_samples: RequestSamples,
    score: ScoreGroup,
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
    """Fully asynchronous: generation, scoring and training go on at the same time (AReaL, Fu et al. 2025).

    No token is older than `max_staleness` iterations. `ahead` null requests so many ahead; with fewer the trainer can
    take groups that are ready before slow ones. `interrupt`: what runs goes on under new weights, each token with
    its own version; otherwise it ends under the old ones, and new weights wait. Real time decides which groups are
    ready first, so runs differ; `steps_per_update` lets so many decode steps pass in the place of an update, and then
    runs are bit-identical.

    `sync: each`: workers take new weights one after the other, and neither the others nor the trainer wait for them
    (DART, Li et al. 2025). One is then at most one version behind, which counts as staleness: `ahead` may be one less.
    Raises StepError for more ahead than may be stale, and for `sync: each` with `interrupt: false`.
    """
    if round:
        return sampler.sample(requests)
    if sync == "each" and not interrupt:
        raise StepError("rollout streamed: `sync: each` changes weights while completions run; set `interrupt: true`")
    room = max_staleness - (sync == "each")
    ahead = _within(room, ahead, max_staleness)
    stream.rolling = sync == "each"
    stream.open(sampler, score, interrupt=interrupt, steps_per_update=steps_per_update)
    for iteration in range(stream.requested, min(step + ahead + 1, max_steps)):
        stream.request(iteration, request_samples(iteration))
    stream.launch()
    return stream.take(step, step - room + ahead)


def _within(room: int, ahead: int | None, max_staleness: int) -> int:
    """Return how many iterations are requested ahead; None: as many as allowed. Raise StepError for more."""
    ahead = max(room, 0) if ahead is None else ahead
    if ahead > room:
        reason = " minus 1, because `sync: each` lets workers be one version behind" if room < max_staleness else ""
        raise StepError(
            f"rollout streamed: ahead {ahead} is more than max_staleness {max_staleness}{reason}; lower ahead"
        )
    return ahead


@overlaps_training
def one_step_off(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    request_samples: RequestSamples,
    score: ScoreGroup,
    step: int,
    round: int,
    max_steps: int,
) -> list[Sample]:
    """Generate the batch of the next iteration while this one is trained on: all tokens are one iteration old.

    Those of the first iteration are fresh. Runs are bit-identical.
    """
    return streamed(
        requests,
        sampler,
        stream,
        request_samples,
        score,
        step,
        round,
        max_steps,
        max_staleness=1,
        interrupt=False,
    )


@overlaps_training
def periodic(
    requests: list[SampleRequest],
    sampler: Sampler,
    stream: Stream,
    score: ScoreGroup,
    consume: TrainOnGroup,
    step: int,
    *,
    order: Literal["asked", "arrived"] = "asked",
) -> list[Sample]:
    """Generation and training overlap within an iteration, and samples are never stale (Periodic Asynchrony, 2025).

    All completions of an iteration are sampled by its weights; the gradient of a group is added as soon as it has been
    scored, while others still run; one optimiser step ends the iteration. The gradient is the synchronous one.
    `order`: groups are trained on as they were asked for, which makes runs bit-identical, or as they arrive, which
    leaves the trainer nothing to wait for but rounds sums otherwise.
    """
    stream.open(sampler, score, interrupt=False, steps_per_update=None)
    stream.request(step, requests)
    stream.launch()
    return stream.take_each(step, consume, in_order=order == "asked")
