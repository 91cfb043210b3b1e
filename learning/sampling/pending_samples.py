"""Completions that may not have ended, as rollouts keep them from one iteration to the next."""

from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Literal

from learning.samples.engine_protocol import Generation, Request, Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler, stream
from schemas.base import JsonObject


@dataclass
class Pending:
    """One completion: its request, its random stream, and the tokens that exist so far."""

    request: SampleRequest
    group: str
    """Key of its group: completions of one group have the same."""
    prompt_ids: list[int]
    """Sampled under."""
    seed: int
    first: int
    given: list[int] = field(default_factory=list)
    """Tokens that the completion was given to begin with; they count in its length."""
    ids: list[int] = field(default_factory=list)
    """Sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Literal["stop", "length", "suspended"] = "suspended"
    calls: int = 0
    """Calls of the engine so far."""
    turns: list[Turn] = field(default_factory=list)
    """Complete turns of an episode; the first includes given tokens."""
    origins: list[int] = field(default_factory=list)
    """Streams that sampled the tokens which it took over from the completion it branched from; empty: it did not."""
    world: int | None = None
    """Number of the completion whose environment it continues; None: its own."""
    kept: list[str] = field(default_factory=list)
    """Records of the tokens that each one was sampled from."""

    @property
    def sampled(self) -> int:
        """Number of tokens that the model sampled."""
        return len(self.ids) - sum(turn.observed for turn in self.turns)

    def to_json(self) -> JsonObject:
        """Return it as plain values."""
        values = asdict(self)
        return {**values, "request": {**values["request"], "begin": list(self.request.begin)}}

    @classmethod
    def from_json(cls, values: JsonObject) -> "Pending":
        """Return what `to_json` wrote."""
        request = SampleRequest(**{**values["request"], "begin": tuple(values["request"]["begin"])})
        own = {key: list(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**{**own, "request": request, "turns": [Turn(**turn) for turn in values.get("turns", ())]})

    def engine_request(self) -> Request:
        """Return the engine's request for the rest of it."""
        begun = (*self.given, *self.ids)
        return Request(
            self.prompt_ids,
            1,
            self.seed,
            self.first,
            begun,
            self.request.temperature,
            row=self.request.row,
            turns=tuple(self.turns),
            opening=len(self.request.begin),
            world=self.world,
        )

    def extend(self, made: Generation, version: int) -> None:
        """Add what was sampled; `version` is used where the engine does not say which weights sampled which token."""
        self.ids += made.token_ids
        self.logprobs += made.logprobs
        self.entropies += made.entropies
        self.kept += made.kept
        for of, tokens in made.versions or [(version, len(made.token_ids))]:
            self.versions += [of] * tokens
        self.turns += made.turns
        self.finish = made.finish
        self.calls += 1


def start(
    requests: list[SampleRequest], sampler: Sampler, *, running: int = 0, room: int | None = None
) -> list[Pending]:
    """Return completions of the requests, group by group, while fewer than `room` run (None: of all requests)."""
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
    """Give a completion without tokens some to begin with."""
    one.given = list(ids)
    one.request = replace(one.request, source=source)


def list_origins(one: Pending) -> list[int]:
    """Return the random stream that sampled each token of a completion, those that it took over included."""
    return [*one.origins, *[stream(one.seed, one.first)] * (len(one.ids) - len(one.origins))]


def branch(one: Pending, source: Pending, turn: int) -> Pending:
    """Let a completion without tokens continue another one from before its turn `turn` (from 0), and return it.

    Its environment has the randomness of the source, its tokens have random numbers of their own.
    """
    cut = sum(done.sampled + done.observed for done in source.turns[:turn])
    one.origins = list_origins(source)[:cut]
    one.world = source.first if source.world is None else source.world
    one.ids, one.logprobs, one.versions = source.ids[:cut], source.logprobs[:cut], source.versions[:cut]
    one.entropies, one.turns, one.kept = source.entropies[:cut], source.turns[:turn], source.kept[:cut]
    return one


def advance(pool: list[Pending], sampler: Sampler, **limits: int) -> list[Pending]:
    """Continue what has not ended, within `limits` (`target`, `window`, `entropy` of a Sampling), and return it."""
    running = [one for one in pool if one.finish == "suspended"]
    requests = [request for request, _ in together(running)]
    generations = chain(*sampler.engine.generate(requests, replace(sampler.sampling, **limits)))
    for one, made in zip(running, generations, strict=True):
        one.extend(made, sampler.step)
        sampler.sampled += made.sampled
    return running


def together(running: list[Pending]) -> list[tuple[Request, list[Pending]]]:
    """Return the engine's requests for the rest of some completions, each with the completions that it continues.

    Siblings without tokens are one request, so that their prompt is computed once.
    """
    merged: list[tuple[Request, list[Pending]]] = []
    for one in running:
        request, (last, members) = one.engine_request(), merged[-1] if merged else (None, [])
        if last is not None and not request.begun and replace(last, n=1, first=last.first + last.n) == request:
            merged[-1] = (replace(last, n=last.n + 1), [*members, one])
        else:
            merged.append((request, [one]))
    return merged


def ended_groups(pool: list[Pending], sampler: Sampler) -> tuple[list[Sample], list[Pending]]:
    """Return the samples of the groups whose completions have all ended, in order, and the open completions."""
    open_ = {one.group for one in pool if one.finish == "suspended"}
    ended = [one for one in pool if one.group not in open_]
    ids = group_ids(ended, sampler)
    return [build_sample(one, ids[one.group], sampler) for one in ended], [one for one in pool if one.group in open_]


def group_ids(some: list[Pending], sampler: Sampler) -> dict[str, int]:
    """Return group ids: those that requests of this iteration name, new ones for the rest."""
    mark = f"{sampler.step}:given:"
    ids = {one.group: int(one.group.removeprefix(mark)) for one in some if one.group.startswith(mark)}
    used = set(ids.values())
    for one in some:
        while one.group not in ids:
            fresh = sampler.new_group()
            if fresh not in used:
                ids[one.group] = fresh
    return ids


def build_sample(one: Pending, group: int, sampler: Sampler) -> Sample:
    """Return the sample of a completion."""
    request = replace(one.request, begin=(*one.request.begin, *one.given))
    # The sample's first turn leaves out given tokens, which the model did not sample.
    turns = [replace(t, sampled=t.sampled - len(one.given)) if i == 0 else t for i, t in enumerate(one.turns)]
    sample = sampler.build_sample(
        request, group, Generation(one.ids, one.logprobs, one.finish, one.entropies, turns=turns, kept=one.kept)
    )
    sample.versions[sample.given :] = one.versions
    return sample
