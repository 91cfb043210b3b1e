"""Completions that are trained on without being sampled now: those of past policies, stored successes, an expert's.

A source is given the samples of an iteration, with their scores, and returns those to train on. Stored samples keep the
log-probabilities and the versions they were sampled with; what an expert wrote has none (`external_T`). What a source
remembers is in its `state`, a part of the checkpoint.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.collection.extra_samples.rehearsal import rehearse
from learning.collection.extra_samples.sharing import shared
from learning.collection.extra_samples.success_pool import pooled, successes_of
from learning.data.chat import encode_text
from learning.data.rows import read_rows
from learning.samples.judging import failed, passed
from learning.samples.sample import Sample
from learning.samples.sample import by_group as _by_group
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import logprobs
from schemas.errors import StepError
from schemas.references import ChatRef, TrajectoriesRef

__all__ = ["collected", "expert", "rehearse", "replay", "shared", "successes", "teachers"]

AtLeast1 = Annotated[int, Field(ge=1)]
When = Literal["always", "failed"]
UNSTORED = ("greedy", "replay")


def replay(
    samples: list[Sample],
    step: int,
    sampler: Sampler,
    state: dict[str, Any],
    rng: np.random.Generator,
    *,
    policies: AtLeast1 = 3,
    groups: AtLeast1 | None = None,
) -> list[Sample]:
    """Add groups of the last `policies` iterations, first in first out (ReMix, Liang et al. 2025, and others).

    `groups` of them are drawn without replacement in every iteration (null: all that are stored); they are groups of
    their own again. More updates per batch are the matter of `num_iterations` and `num_mini_batches`.
    """
    stored: list[dict[str, Any]] = state.setdefault("groups", [])
    stored[:] = [entry for entry in stored if entry["step"] >= step - policies]
    count = len(stored) if groups is None else min(groups, len(stored))
    chosen = sorted(rng.choice(len(stored), size=count, replace=False).tolist()) if count else []
    added = []
    for i in chosen:
        group = sampler.new_group()
        added += [restored(values, group) for values in stored[i]["samples"]]
    own = [t for t in samples if t.logprobs is not None and t.reward is not None and t.source not in UNSTORED]
    for of_group in _by_group([t for t in own if t.finish != "suspended"]).values():
        stored.append({"step": step, "samples": [t.to_json() for t in of_group]})
    return [*samples, *added]


def successes(
    samples: list[Sample],
    state: dict[str, Any],
    rng: np.random.Generator,
    *,
    when: When = "failed",
    per_group: AtLeast1 = 1,
    replaced: bool = True,
    keep: AtLeast1 = 8,
    reward: str | None = None,
    at_least: float = 1.0,
) -> list[Sample]:
    """Stored successes of the same problem join a group: one that failed throughout, or (`always`) every one.

    `failed` is experience replay of ARPO for GUI agents (Lu et al. 2025), `always` that of RLEP (Zhang et al. 2025).
    With `replaced` as many of the group's own completions leave it. The last `keep` successes of a problem are kept: a
    score of `reward` (null: the first reward) of at least `at_least`.
    """
    stored: dict[str, list[dict[str, Any]]] = state.setdefault("successes", {})
    added: dict[int, list[Sample]] = {}
    for group, members in _by_group(samples).items():
        known = stored.get(members[0].row["id"], [])
        if known and (when == "always" or failed(members, reward, at_least)):
            chosen = rng.choice(len(known), size=min(per_group, len(known)), replace=False)
            added[group] = [restored(known[int(i)], group) for i in chosen]
    for sample in samples:
        if sample.source == "policy" and sample.finish != "suspended" and passed(sample, reward, at_least):
            key = sample.row["id"]
            stored[key] = [*stored.get(key, []), sample.to_json()][-keep:]
    return joined(samples, added, replaced)


def collected(
    samples: list[Sample],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: TrajectoriesRef,
    when: When = "failed",
    per_group: AtLeast1 = 1,
    replaced: bool = True,
    reward: str | None = None,
    at_least: float = 1.0,
) -> list[Sample]:
    """Successes of the same problem that another stage has sampled join a group that failed throughout (or `always`).

    The pool of successes of DART (Li et al. 2025): `data` are trajectories of a stage before this one; a success is a
    completion that its policy sampled, that ended, and that scored `at_least` there. It comes with its tokens, its
    log-probabilities and the turns of an episode, and is scored by this stage's own rewards. Behind `successes` it
    helps where the stage has none of its own yet. Otherwise as `expert`; a problem without any stays as it is.
    """
    known = successes_of(str(data), reward, at_least)
    added: dict[int, list[Sample]] = {}
    for group, members in _by_group(samples).items():
        row = members[0].row
        lines = known.get(row["id"], [])
        if lines and (when == "always" or failed(members, reward, at_least)):
            chosen = rng.choice(len(lines), size=min(per_group, len(lines)), replace=False)
            added[group] = [pooled(lines[int(i)], row, group, sampler) for i in chosen]
    return joined(samples, added, replaced)


def expert(
    samples: list[Sample],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: ChatRef,
    when: When = "always",
    per_group: AtLeast1 = 1,
    replaced: bool = True,
    reward: str | None = None,
    at_least: float = 1.0,
) -> list[Sample]:
    """An expert's completions of the same problem join every group, or (`failed`) those that failed throughout.

    With `replaced` as many own completions leave the group: seven own and one of the expert's (LUFFY, Yan et al. 2025).
    Completions are found by the id of the problem in `data`, drawn without replacement where there are more; a group
    whose problem has none stays as it is. Raises StepError when no problem of the iteration has one.
    """
    known = completions_of(str(data))
    groups = _by_group(samples)
    if groups and not any(members[0].row["id"] in known for members in groups.values()):
        raise StepError(
            "extra_samples expert: `data` holds no completion for any of these problems; are the ids the same?"
        )
    added: dict[int, list[Sample]] = {}
    for group, members in groups.items():
        row = members[0].row
        texts = known.get(row["id"], [])
        if texts and (when == "always" or failed(members, reward, at_least)):
            chosen = rng.choice(len(texts), size=min(per_group, len(texts)), replace=False)
            added[group] = [given(row, texts[int(i)], sampler, source="expert", group=group) for i in chosen]
    return joined(samples, added, replaced)


def teachers(
    samples: list[Sample],
    sampler: Sampler,
    *,
    data: Annotated[list[ChatRef], Field(min_length=1)],
    per_group: AtLeast1 = 2,
    marker: Annotated[str, Field(min_length=1)] = "####",
    reduce: Literal["mean", "sum"] = "mean",
    reward: str | None = None,
    at_least: float = 1.0,
) -> list[Sample]:
    """Several teachers' answers replace own ones of a group that failed throughout (AMPO, Yuan et al. 2025).

    Chosen are the `per_group` whose reasoning, up to the last `marker`, makes the row's answer likeliest under the
    policy as it is: `reduce` of the log-probabilities of its tokens. An answer that does not lead to the row's (what
    follows the marker differs) is not taken. Every other group stays as it is.
    """
    added: dict[int, list[Sample]] = {}
    for group, members in _by_group(samples).items():
        row = members[0].row
        if row["answer"] is None or not failed(members, reward, at_least):
            continue
        texts = [text for one in data for text in completions_of(str(one)).get(row["id"], [])]
        texts = [text for text in texts if text.rpartition(marker)[2].strip() == row["answer"].strip() != text]
        ranked = _by_comprehension(row, texts, marker, reduce, sampler)[:per_group]
        added[group] = [given(row, text, sampler, source="teacher", group=group) for text in ranked]
    return joined(samples, added, replaced=True)


def _by_comprehension(row: dict[str, Any], texts: list[str], marker: str, reduce: str, sampler: Sampler) -> list[str]:
    """The texts, first the one after whose reasoning the row's answer is likeliest; those too long are left out."""
    prompt, target = sampler.encode(row["prompt"]), encode_text(sampler.policy.tokenizer, row["answer"].strip())
    leads = [text[: len(text) - len(text[text.rindex(marker) + len(marker) :].lstrip())] for text in texts]
    found = logprobs(sampler, [([*prompt, *encode_text(sampler.policy.tokenizer, lead)], target) for lead in leads])
    scores = {i: sum(lps) / (len(lps) if reduce == "mean" else 1) for i, lps in enumerate(found) if lps}
    return [texts[i] for i in sorted(scores, key=lambda i: (-scores[i], i))]


def given(row: dict[str, Any], text: str, sampler: Sampler, *, source: str, group: int) -> Sample:
    """Somebody's completion as a sample; raises StepError for one that the model has no room for."""
    sample = sampler.sample_from_text(row, text, source=source, group=group)
    size = len(sample.prompt_ids) + len(sample.completion_ids)
    if size > sampler.policy.max_length:
        raise StepError(
            f"extra_samples {source}: problem {row['id']} and its completion have {size} tokens, but the model holds "
            f"{sampler.policy.max_length}; drop long rows in a curate stage"
        )
    return sample


def restored(values: dict[str, Any], group: int) -> Sample:
    """A stored sample in a group of this iteration."""
    return replace(Sample.from_json(values), group=group, source="replay")


def joined(samples: Sequence[Sample], added: dict[int, list[Sample]], replaced: bool) -> list[Sample]:
    """The samples and those added to their groups; with `replaced` the last own ones of a group make room."""
    leaving = {group: len(new) if replaced else 0 for group, new in added.items()}
    kept = []
    for sample in reversed(samples):
        if sample.source == "policy" and leaving.get(sample.group, 0) > 0:
            leaving[sample.group] -= 1
        else:
            kept.append(sample)
    return [*reversed(kept), *(sample for new in added.values() for sample in new)]


@lru_cache(maxsize=8)
def completions_of(folder: str) -> dict[str, list[str]]:
    """The completions of a chat artifact by the id of their problem; kept: an artifact never changes."""
    found: dict[str, list[str]] = {}
    for row in read_rows(Path(folder), "chat"):
        found.setdefault(row["id"], []).append(row["completion"][-1]["content"])
    return found
