"""Rewards of a search by what its calls were worth (environment `classified`)."""

from typing import Annotated

from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.samples.engine_protocol import hash_name
from learning.samples.sample import Sample

Share = Annotated[float, Field(ge=0, le=1)]
AtLeast1 = Annotated[int, Field(ge=1)]


def steered(
    samples: list[Sample],
    *,
    of: RewardFunction,
    search: str = "search",
    query: str = "open",
    searches: AtLeast1 = 8,
    queries: AtLeast1 = 16,
    form: Share = 0.1,
    lowest: Share = 0.5,
    share: Share = 0.2,
    at_least: float = 1.0,
) -> list[float | None]:
    """Steer how broad and deep an agent searches: less for redundant calls, something for new ones that failed.

    An episode that is right (`of` at least `at_least`) earns max(1 − ρ, `lowest`), with ρ the share of its calls that
    are redundant. A wrong one earns `share`·min(1, Δs/`searches`) + `share`·min(1, Δq/`queries`), with Δs its calls of
    the tool `search` and Δq those of `query` that were new or verifying: what it found, up to a budget. Both earn
    `form` in addition if the model ended the episode and every call could be carried out (Fathom-DeepResearch 2025).
    With 2·`share` below `lowest` no wrong episode earns more than a right one of its form; keep them so.
    """
    task: Inner = of
    useful = {tool: {hash_name(f"{tool} {worth}") for worth in ("new", "verifying")} for tool in (search, query)}
    wasted = {hash_name(f"{tool} redundant") for tool in (search, query)}
    results: list[float | None] = []
    for sample, score in zip(samples, score_selected(task, range(len(samples))), strict=True):
        kinds = [turn.kind for turn in sample.turns if turn.kind]
        formed = form * (sample.finish == "stop" and all(turn.ok for turn in sample.turns))
        if score is None:
            results.append(None)
        elif score >= at_least:
            redundant = sum(kind in wasted for kind in kinds) / len(kinds) if kinds else 0.0
            results.append(formed + max(1 - redundant, lowest))
        else:
            new = [sum(kind in useful[tool] for kind in kinds) for tool in (search, query)]
            results.append(formed + share * min(1.0, new[0] / searches) + share * min(1.0, new[1] / queries))
    return results
