"""Completions that may not have ended, as drives keep them from one iteration to the next."""

from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Literal

from learning.samples.engine_protocol import Generation, Request, Turn
from learning.samples.sample import JsonObject, Sample, SampleRequest
from learning.sampling.sampler import Sampler


@dataclass
class Pending:
    """One completion: where its numbers come from, what of it exists."""

    request: SampleRequest
    group: str
    """Those that were begun together have the same."""
    prompt_ids: list[int]
    """Sampled under."""
    seed: int
    first: int
    given: list[int] = field(default_factory=list)
    """Tokens that the completion was made to begin with; they count in its length."""
    ids: list[int] = field(default_factory=list)
    """Sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Literal["stop", "length", "suspended"] = "suspended"
    calls: int = 0
    """Calls of the engine so far."""
    turns: list[Turn] = field(default_factory=list)
    """Whole turns of an episode; the first holds what was given."""

    @property
    def sampled(self) -> int:
        """Tokens that the model sampled."""
        return len(self.ids) - sum(turn.observed for turn in self.turns)

    def to_json(self) -> JsonObject:
        """As plain values."""
        values = asdict(self)
        return {**values, "request": {**values["request"], "begin": list(self.request.begin)}}

    @classmethod
    def from_json(cls, values: JsonObject) -> "Pending":
        """What `to_json` gave."""
        request = SampleRequest(**{**values["request"], "begin": tuple(values["request"]["begin"])})
        own = {key: list(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**{**own, "request": request, "turns": [Turn(**turn) for turn in values.get("turns", ())]})

    def engine_request(self) -> Request:
        """What the engine is told to go on."""
        begun = (*self.given, *self.ids)
        told = {"row": self.request.row, "turns": tuple(self.turns), "opening": len(self.request.begin)}
        return Request(self.prompt_ids, 1, self.seed, self.first, begun, self.request.temperature, **told)

    def extend(self, made: Generation, version: int) -> None:
        """Add what was sampled, under `version` where the engine does not say which weights sampled what."""
        self.ids += made.token_ids
        self.logprobs += made.logprobs
        self.entropies += made.entropies
        for of, tokens in made.versions or [(version, len(made.token_ids))]:
            self.versions += [of] * tokens
        self.turns += made.turns
        self.finish = made.finish
        self.calls += 1


def start(
    requests: list[SampleRequest], sampler: Sampler, *, running: int = 0, room: int | None = None
) -> list[Pending]:
    """Completions of the asks, group by group, while fewer than `room` run (None: of all asks)."""
    together: dict[str, list[tuple[SampleRequest, Request]]] = {}
    for place, (request, engine_request) in enumerate(zip(requests, sampler.engine_requests(requests), strict=True)):
        key = f"{sampler.step}:{place}" if request.group is None else f"{sampler.step}:given:{request.group}"
        together.setdefault(key, []).append((request, engine_request))
    made: list[Pending] = []
    for key, members in together.items():
        if room is not None and running + len(made) >= room:
            break
        made += [Pending(request, key, r.prompt_ids, r.seed, i) for request, r in members for i in range(request.n)]
    return made


def begin(one: Pending, ids: list[int], *, source: str) -> None:
    """Make a completion that has no token yet begin with some."""
    one.given = list(ids)
    one.request = replace(one.request, source=source)


def advance(pool: list[Pending], sampler: Sampler, **limits: int) -> list[Pending]:
    """Go on with what has not ended, within `limits` (`target`, `window` of a Sampling); returns those."""
    running = [one for one in pool if one.finish == "suspended"]
    requests = [request for request, _ in together(running)]
    generations = chain(*sampler.engine.generate(requests, replace(sampler.sampling, **limits)))
    for one, made in zip(running, generations, strict=True):
        one.extend(made, sampler.step)
        sampler.sampled += made.sampled
    return running


def together(running: list[Pending]) -> list[tuple[Request, list[Pending]]]:
    """What the engine is told to go on with some, and whose completions each request gives, in order.

    Siblings at their beginning are one request: their prompt is computed once.
    """
    found: list[tuple[Request, list[Pending]]] = []
    for one in running:
        request, (last, members) = one.engine_request(), found[-1] if found else (None, [])
        if last is not None and not request.begun and replace(last, n=1, first=last.first + last.n) == request:
            found[-1] = (replace(last, n=last.n + 1), [*members, one])
        else:
            found.append((request, [one]))
    return found


def ended_groups(pool: list[Pending], sampler: Sampler) -> tuple[list[Sample], list[Pending]]:
    """Samples of the groups whose completions have all ended, in order, and what is left."""
    open_ = {one.group for one in pool if one.finish == "suspended"}
    ended = [one for one in pool if one.group not in open_]
    ids = group_ids(ended, sampler)
    return [build_sample(one, ids[one.group], sampler) for one in ended], [one for one in pool if one.group in open_]


def group_ids(some: list[Pending], sampler: Sampler) -> dict[str, int]:
    """Ids for the groups of completions: those that were asked for in this iteration, new ones for the rest."""
    mark = f"{sampler.step}:given:"
    ids = {one.group: int(one.group.removeprefix(mark)) for one in some if one.group.startswith(mark)}
    taken = set(ids.values())
    for one in some:
        while one.group not in ids:
            found = sampler.new_group()
            if found not in taken:
                ids[one.group] = found
    return ids


def build_sample(one: Pending, group: int, sampler: Sampler) -> Sample:
    """The completion as a sample."""
    request = replace(one.request, begin=(*one.request.begin, *one.given))
    # Its first turn is told without what was given, which is nobody's sample.
    turns = [replace(t, sampled=t.sampled - len(one.given)) if i == 0 else t for i, t in enumerate(one.turns)]
    sample = sampler.build_sample(
        request, group, Generation(one.ids, one.logprobs, one.finish, one.entropies, turns=turns)
    )
    sample.versions[sample.given :] = one.versions
    return sample
