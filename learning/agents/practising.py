"""A round of practice: groups of rollouts, their scores, and what an extractor makes of those that differ."""

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
"""Characters of an experience."""


def sample_rollouts(
    sampler: Sampler,
    requests: Sequence[SampleRequest],
    journal: RowJournal,
    spend: Callable[[int], None] = lambda tokens: None,
) -> list[Sample]:
    """Completions of everything asked for, in order; those of a group are on disk as soon as all have ended.

    What the journal knows is not sampled again; `spend` hears of the tokens of what is. Raises StepError for a prompt
    that leaves no room for a completion.
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
                journal.add({names[ticket]: [asdict(of[sample]) for sample in sorted(of)]})
                spend(sum(one.sampled for one in of.values()))
    samples: list[Sample] = []
    for name, request in zip(names, requests, strict=True):
        group = sampler.new_group() if request.group is None else request.group
        samples += [sampler.build_sample(request, group, parse_generation(values)) for values in journal[name]]
    return samples


def parse_generation(values: Mapping[str, Any]) -> Generation:
    """What was written down."""
    turns, versions = [Turn(**turn) for turn in values["turns"]], [tuple(span) for span in values["versions"]]
    return Generation(**{**values, "turns": turns, "versions": versions})


def extract_experiences(
    extractor: Bound,
    samples: list[Sample],
    experiences: list[str],
    have: Mapping[str, Any],
    *,
    tokenizer: Any,
    min_margin: float,
    most: int,
) -> tuple[list[str], list[Row]]:
    """The experiences after all groups, one group after the other, and what each group was and taught.

    A group whose scores differ by no more than `min_margin` teaches nothing and is not shown to the extractor; neither
    is a rollout that could not be scored. `most` experiences are kept, the latest. Raises StepError.
    """
    told = []
    for place, group in enumerate(by_group(samples).values()):
        ranked = rank_rollouts(tokenizer, group)
        differs = len(ranked) > 1 and ranked[0].score - ranked[-1].score > min_margin
        before = experiences
        if differs:
            now = {**have, "round": place, "row": group[0].row, "rollouts": ranked, "experiences": list(experiences)}
            experiences = check_experiences(extractor, extractor.ask(have["step"], now))[-most:]
        changes = {
            "learnt": [one for one in experiences if one not in before],
            "dropped": [one for one in before if one not in experiences],
        }
        line = {"id": group[0].row["id"], "prompt": group[0].row["prompt"], "differs": differs, **changes}
        told.append(line | {"rollouts": [one.told() for one in ranked]})
    return experiences, told


def rank_rollouts(tokenizer: Any, group: list[Sample]) -> list[Rollout]:
    """The rollouts of a group that could be scored, the best first, equals in the order of their sampling."""
    scored = [(sample, sample.reward) for sample in group if sample.reward is not None]
    found = [make_rollout(tokenizer, t.completion_ids[t.given :], t.turns, float(score)) for t, score in scored]
    return sorted(found, key=lambda one: -one.score)


def check_experiences(extractor: Bound, found: Any) -> list[str]:
    """What an extractor gave, on one line each. Raises StepError where it is no list of texts."""
    if not isinstance(found, Sequence) or isinstance(found, str) or any(not isinstance(one, str) for one in found):
        raise StepError(f"extractor {extractor.name}: it must return the list of experiences, each a text")
    lines = [" ".join(one.split())[:MAX_LENGTH] for one in found]
    return list(dict.fromkeys(line for line in lines if line))
