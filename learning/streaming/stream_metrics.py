"""What a stream tells of itself: how long the trainer waited, how old tokens are, whether short answers come first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from learning.samples.sample import Sample
from learning.sampling.groups_in_flight import GroupInFlight

TIMED = (
    "trainer_wait_seconds", "generator_idle_share", "generator_seconds", "groups_ready", "groups_under_way",
    "groups_overlapped", "sampled_length", "env_seconds",
)  # fmt: skip
"""Points that depend on how fast things are: no two runs agree on them."""


@dataclass
class Told:
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
    seen: dict[str, float] = field(default_factory=dict)

    def ended(self, group: GroupInFlight) -> None:
        """A group has been scored."""
        self.completions += len(group.members)
        self.tokens += sum(len(one.ids) for one in group.members)

    def took(
        self, seconds: float, chosen: Sequence[GroupInFlight], of: Sequence[GroupInFlight], overlapped: float = 0.0
    ) -> None:
        """The trainer took some of the groups under way, after it had waited; a share of them before the last came."""
        self.trained_completions += sum(len(group.members) for group in chosen)
        self.trained_tokens += sum(len(one.ids) for group in chosen for one in group.members)
        self.wait_s, self.overlapped = seconds, overlapped
        self.ready = sum(group.judged is not None for group in of) - len(chosen)
        self.under_way = len(of) - len(chosen) - self.ready

    def points(self, stats: Sequence[dict[str, float]]) -> dict[str, float]:
        """For the curves: of the last iteration, lengths since the beginning."""
        spent = {name: sum(one[name] for one in stats) for name in ("busy_s", "idle_s")}
        more = {name: value - self.seen.get(name, 0.0) for name, value in spent.items()}
        self.seen = spent
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

    def to_json(self) -> dict[str, Any]:
        """The sums, as plain values."""
        return {**asdict(self), "seen": {}}

    def load(self, values: dict[str, Any]) -> None:
        """Put back what `to_json` gave."""
        for one in fields(self):
            setattr(self, one.name, values[one.name])


def staleness(samples: Sequence[Sample], step: int) -> dict[str, float]:
    """How many iterations older than the trained weights those are that sampled the tokens; none where none is."""
    own = [t for t in samples if t.logprobs is not None]
    ages = [step - v for t in own for v, mine in zip(t.versions[t.given :], t.own, strict=False) if mine]
    if not any(ages):
        return {}
    return {
        "staleness": sum(ages) / len(ages),
        "staleness_max": float(max(ages)),
        "older_tokens": sum(age > 0 for age in ages) / len(ages),
    }
