"""One iteration's samples: plan, drive, score, follow up until nothing more is asked for, add other sources, gate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.loss_columns import Columns
from learning.lookup import Bound, bind
from learning.samples.engine_protocol import Processor
from learning.samples.history import History
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler, names, score
from schemas.schedules import Controlled, Number, settled
from schemas.stages.rl import Rl


@dataclass(frozen=True)
class Collecting:
    """The slots of an rl stage from problems to the samples that are trained on, bound."""

    plan: Bound
    drive: Bound
    process: tuple[Bound, ...]
    rewards: tuple[Bound, ...]
    weights: tuple[Number, ...]
    follow_ups: tuple[Bound, ...]
    sources: tuple[Bound, ...]
    filter: Bound | None
    max_rounds: int
    read: frozenset[str] = frozenset()
    """Rewards whose raw scores other parts read."""
    shown: set[str] = field(default_factory=set, compare=False)
    """Rewards of which a failure stands in the step's log."""

    def needs(self, name: str) -> bool:
        """Whether a part asks for it."""
        parts = (self.plan, self.drive, *self.rewards, *self.follow_ups, *self.sources)
        return any(name in part.asks for part in (*parts, *((self.filter,) if self.filter else ())))


def bind_collecting(stage: Rl, inputs: Mapping[str, Path]) -> Collecting:
    """Bind every slot; raises StepError for an unknown name or option."""
    rewards = tuple(bind(use, f"rewards.{i}", inputs) for i, use in enumerate(stage.rewards))
    return Collecting(
        bind(stage.plan, "plan", inputs),
        bind(stage.drive, "drive", inputs),
        tuple(bind(use, f"process.{i}", inputs) for i, use in enumerate(stage.process)),
        rewards,
        tuple(use.weight for use in stage.rewards),
        tuple(bind(use, f"follow_up.{i}", inputs) for i, use in enumerate(stage.follow_up)),
        tuple(bind(use, f"source.{i}", inputs) for i, use in enumerate(stage.source)),
        bind(stage.filter, "filter", inputs) if stage.filter else None,
        stage.max_rounds,
        frozenset(_read(stage, rewards)),
    )


def _read(stage: Rl, rewards: Sequence[Bound]) -> Iterator[str]:
    """Names of rewards that stand in other parts, and the first one's, which parts mean that name none."""
    said = set(_texts(stage.model_dump(mode="json", exclude={"rewards"})))
    yield from (name for i, name in enumerate(names(rewards)) if i == 0 or name in said)


def _texts(value: Any) -> Iterator[str]:
    """Every text in plain values, keys of maps included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (str(key), *_texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def processor_of(
    parts: Collecting, step: int, controls: Mapping[str, float], metrics: Mapping[str, float]
) -> Processor | None:
    """What the engine is given, None where there is nothing to change.

    Controllers that look at batches have not seen this one: their last word counts, as it stands in the points of the
    last iteration. A processor that hangs on one which has not spoken yet changes nothing.
    """
    known = {key.removeprefix("control/"): value for key, value in metrics.items() if key.startswith("control/")}
    settled_parts = [part.settled({**known, **controls}) for part in parts.process]
    ready = [p for p in settled_parts if not any(isinstance(value, Controlled) for value in p.options.values())]
    calls = [(part.at(step), part.asks) for part in ready]

    def process(logits_BV: torch.Tensor, place_B: torch.Tensor) -> torch.Tensor:
        for call, inputs in calls:
            have = {"logits_BV": logits_BV, "place_B": place_B}
            logits_BV = call(*(have[name] for name in inputs))
        return logits_BV

    return process if calls else None


def collect(
    parts: Collecting, sampler: Sampler, history: History, controls: Mapping[str, float], have: Mapping[str, Any]
) -> list[Sample]:
    """Everything that an iteration sampled, scored, with what sources add.

    `have` is what plans, rewards and the rest may ask for: rows, num_groups, n, seed, step, states, metrics.
    """
    step = have["step"]
    have = {**have, **services(sampler, history)}
    samples: list[Sample] = []
    seen: list[Sample] = []
    plan, rate = partial(_planned, parts, controls, have), partial(_rated, parts, controls, have)
    # A drive that asks for the plan itself asks it ahead.
    requests: list[SampleRequest] = [] if "plan" in parts.drive.asks else plan(step)
    for number in range(parts.max_rounds):
        now = {**have, "round": number}
        new = parts.drive.settled(controls).ask(step, {**now, "requests": requests, "plan": plan, "score": rate})
        score_all(parts, [t for t in new if not t.scores], controls, now)
        samples += new
        seen += new
        requests = []
        for part in parts.follow_ups:
            samples, more = part.settled(controls).ask(step, {**now, "samples": samples})
            requests += more
        if not requests:
            break
    history.add(seen)
    for part in parts.sources:
        samples = part.settled(controls).ask(step, {**have, "samples": samples})
    score_all(parts, [t for t in samples if not t.scores], controls, have)
    return samples


def _planned(
    parts: Collecting, controls: Mapping[str, float], have: Mapping[str, Any], step: int
) -> list[SampleRequest]:
    """What the plan samples in an iteration, asked for now."""
    return parts.plan.settled(controls).ask(step, {**have, "step": step})


def _rated(
    parts: Collecting,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
    samples: list[Sample],
    step: int,
    place: int,
) -> None:
    """Score a group by itself; what its rewards draw is its own, whenever it comes."""
    score_all(parts, samples, controls, {**have, "step": step, "round": place})


def services(sampler: Sampler, history: History) -> dict[str, Any]:
    """What parts may ask for beside numbers and rows."""
    engine = sampler.engine
    return {"sampler": sampler, "history": history, "policy": sampler.policy, "engine": engine, "stream": engine}


def score_all(parts: Collecting, samples: list[Sample], controls: Mapping[str, float], have: Mapping[str, Any]) -> None:
    """Score samples by the stage's rewards, with the numbers that controllers give."""
    if samples:
        rewards = [part.settled(controls) for part in parts.rewards]
        score(rewards, [settled(w, controls) for w in parts.weights], samples, have, parts.read, parts.shown)


def gate(
    part: Bound | None, samples: list[Sample], step: int, controls: Mapping[str, float], have: Mapping[str, Any]
) -> Batch:
    """Return the batch of the groups of scored samples that the filter keeps; paths are numbered like the samples."""
    batch = forest(samples)
    if part is None or not samples:
        return batch
    columns = Columns(batch, **{**have, "rows": [t.row for t in samples]})
    keep_P = part.settled(controls).ask(step, columns)
    return batch.take(torch.as_tensor(keep_P).nonzero()[:, 0].tolist())
