"""Scores of every problem over the iterations of a stage; part of its checkpoints."""

from collections.abc import Iterable

from learning.samples.sample import Sample, by_group
from schemas.base import JsonObject


class History:
    """`rates`: for every problem, by id, the mean of the first reward at each visit (an iteration that sampled it).

    `turns`: the most turns of a completion that this reward gave at least 1; of a problem without one nothing.
    """

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.turns: dict[str, int] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """Add the policy's own samples of an iteration, except those that have not ended or could not be scored."""
        own = [t for t in samples if t.source == "policy" and t.finish != "suspended"]
        for group in by_group(own).values():
            key = group[0].row["id"]
            scored = [(s, t) for t in group if (s := next(iter(t.scores.values()), None)) is not None]
            if scored:
                self.rates.setdefault(key, []).append(sum(s for s, _ in scored) / len(scored))
            if solved := [t.num_turns for s, t in scored if s >= 1]:
                self.turns[key] = max(self.turns.get(key, 0), *solved)

    def to_json(self) -> JsonObject:
        """Return it as plain values."""
        return {"rates": self.rates, "turns": self.turns}

    def load(self, values: JsonObject) -> None:
        """Restore what `to_json` returned."""
        self.rates = {key: list(rates) for key, rates in values["rates"].items()}
        self.turns = dict(values["turns"])
