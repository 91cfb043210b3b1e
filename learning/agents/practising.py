"""A round of practice: groups of rollouts, their scores, and experiences extracted from groups whose scores differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from learning.agents.rollouts import Rollout, make_rollout
from learning.data.row_journal import RowJournal
from learning.data.rows import Row
from learning.generation.services.row_streams import stream_completions
from learning.lookup import Bound
from learning.samples.engine_protocol import Generation, Turn
from learning.samples.sample import Sample, SampleRequest, by_group
from learning.sampling.sampler import Sampler
from schemas.errors import StepError

MAX_LENGTH = 2_000
"""Limit of characters of an experience."""


def sample_rollouts(
    sampler: Sampler,
    requests: Sequence[SampleRequest],
    journal: RowJournal,
    spend: Callable[[int], None] = lambda tokens: None,
) -> list[Sample]:
    """Return the completions of all requests, in order; those of a group are on disk as soon as all have ended.

    Groups in the journal are not sampled again; `spend` is called with the number of sampled tokens. Raise StepError if
    a prompt leaves no room for a completion.
    """
    engine_requests = sampler.engine_requests(requests)
    names = [f"{sampler.step}.{place}" for place in range(len(requests))]
    missing = ((i, request) for i, request in enumerate(engine_requests) if names[i] not in journal)
    under_way: dict[int, dict[int, Generation]] = {}
    for made in stream_completions(sampler.engine, missing, sampler.sampling):
        for ticket, one in made:
            under_way.setdefault(ticket, {})[one.sample] = one
            if len(under_way[ticket]) == engine_requests[ticket].n:
                of = under_way.pop(ticket)
                tokens = sum(one.sampled for one in of.values())
                journal.add({names[ticket]: [asdict(of[sample]) for sample in sorted(of)]}, {names[ticket]: tokens})
                spend(tokens)
    samples: list[Sample] = []
    for name, request in zip(names, requests, strict=True):
        group = sampler.new_group() if request.group is None else request.group
        samples += [sampler.build_sample(request, group, parse_generation(values)) for values in journal[name]]
    return samples


def parse_generation(values: Mapping[str, Any]) -> Generation:
    """Return a generation from its plain values in the journal."""
    turns, versions = [Turn(**turn) for turn in values["turns"]], [tuple(span) for span in values["versions"]]
    return Generation(**{**values, "turns": turns, "versions": versions})


def extract_experiences(
    extractor: Bound,
    samples: list[Sample],
    experiences: list[str],
    supplies: Mapping[str, Any],
    *,
    tokenizer: Any,
    min_margin: float,
    most: int,
) -> tuple[list[str], list[Row]]:
    """Return the experiences after all groups, processed one after the other, and a report line for each group.

    A group whose scores differ by at most `min_margin` is not passed to the extractor; neither is a rollout without a
    score. The latest `most` experiences are kept. Raise StepError if an extractor's result is invalid.
    """
    lines = []
    for place, group in enumerate(by_group(samples).values()):
        ranked = rank_rollouts(tokenizer, group)
        differs = len(ranked) > 1 and ranked[0].score - ranked[-1].score > min_margin
        before = experiences
        if differs:
            now = {
                **supplies,
                "round": place,
                "row": group[0].row,
                "rollouts": ranked,
                "experiences": list(experiences),
            }
            experiences = check_experiences(extractor, extractor.ask(supplies["step"], now))[-most:]
        changes = {
            "learnt": [one for one in experiences if one not in before],
            "dropped": [one for one in before if one not in experiences],
        }
        line = {"id": group[0].row["id"], "prompt": group[0].row["prompt"], "differs": differs, **changes}
        lines.append(line | {"rollouts": [one.to_json() for one in ranked]})
    return experiences, lines


def rank_rollouts(tokenizer: Any, group: list[Sample]) -> list[Rollout]:
    """Return the scored rollouts of a group, the best first, ties in the order of sampling."""
    scored = [(sample, sample.reward) for sample in group if sample.reward is not None]
    rollouts = [make_rollout(tokenizer, t.completion_ids[t.given :], t.turns, float(score)) for t, score in scored]
    return sorted(rollouts, key=lambda one: -one.score)


def check_experiences(extractor: Bound, result: Any) -> list[str]:
    """Return an extractor's experiences, each on one line; raise StepError if the result is not a list of texts."""
    if not isinstance(result, Sequence) or isinstance(result, str) or any(not isinstance(one, str) for one in result):
        raise StepError(f"extractor {extractor.name}: it must return the list of experiences, each a text")
    lines = [" ".join(one.split())[:MAX_LENGTH] for one in result]
    return list(dict.fromkeys(line for line in lines if line))
