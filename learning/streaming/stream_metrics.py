"""Metrics of a stream: how long the trainer waited, how busy generation was, whether short completions come first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields

from learning.sampling.groups_in_flight import GroupInFlight
from schemas.base import JsonObject


@dataclass
class StreamMetrics:
    """Sums so far; the seconds are those of the last iteration."""

    completions: int = 0
    tokens: int = 0
    """Of completions that have ended."""
    trained_completions: int = 0
    trained_tokens: int = 0
    wait_s: float = 0.0
    ready: int = 0
    under_way: int = 0
    overlapped: float = 0.0
    previous: dict[str, float] = field(default_factory=dict)

    def count_scored(self, group: GroupInFlight) -> None:
        """Count a group that has been scored."""
        self.completions += len(group.members)
        self.tokens += sum(len(one.ids) for one in group.members)

    def count_taken(
        self,
        seconds: float,
        chosen: Sequence[GroupInFlight],
        in_flight: Sequence[GroupInFlight],
        overlapped: float = 0.0,
    ) -> None:
        """Count the groups that the trainer took out of those in flight, after it had waited for some seconds.

        `overlapped` is the share of them that came before the last one.
        """
        self.trained_completions += sum(len(group.members) for group in chosen)
        self.trained_tokens += sum(len(one.ids) for group in chosen for one in group.members)
        self.wait_s, self.overlapped = seconds, overlapped
        self.ready = sum(group.scored is not None for group in in_flight) - len(chosen)
        self.under_way = len(in_flight) - len(chosen) - self.ready

    def read(self, stats: Sequence[dict[str, float]]) -> dict[str, float]:
        """Return metrics of the last iteration, and mean lengths since the beginning; `stats` are the services'."""
        spent = {name: sum(one[name] for one in stats) for name in ("busy_s", "idle_s")}
        more = {name: value - self.previous.get(name, 0.0) for name, value in spent.items()}
        self.previous = spent
        seconds = sum(more.values())
        return {
            "trainer_wait_seconds": self.wait_s,
            "generator_idle_share": more["idle_s"] / max(seconds, 1e-9),
            "generator_seconds": seconds,
            "groups_ready": float(self.ready),
            "groups_under_way": float(self.under_way),
            "groups_overlapped": self.overlapped,
            "sampled_length": self.tokens / max(self.completions, 1),
            "trained_length": self.trained_tokens / max(self.trained_completions, 1),
        }

    def to_json(self) -> JsonObject:
        """Return the sums as plain values."""
        return {**asdict(self), "previous": {}}

    def load(self, values: JsonObject) -> None:
        """Restore what `to_json` returned."""
        for one in fields(self):
            setattr(self, one.name, values[one.name])
