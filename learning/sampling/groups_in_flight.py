"""A group of completions between being asked for and being trained on."""

from dataclasses import dataclass, field
from typing import Any

from learning.samples.sample import Sample
from learning.sampling.pending_samples import Pending


@dataclass(eq=False)
class GroupInFlight:
    """The completions of one problem, returned when all of them have ended and are scored."""

    plan: int
    """Iteration whose plan asked for it."""
    place: int
    """Among the groups of that plan."""
    members: list[Pending]
    sent: bool = False
    """Whether what has not ended is in flight."""
    samples: list[Sample] = field(default_factory=list)
    """Of its completions, once all have ended."""
    judged: int | None = None
    """How many groups had been scored before it; None: it has not been."""

    @property
    def ended(self) -> bool:
        """Whether all completions have."""
        return all(one.finish != "suspended" for one in self.members)

    @property
    def order(self) -> tuple[int, int]:
        """That of being asked for."""
        return self.plan, self.place

    def to_json(self) -> dict[str, Any]:
        """As plain values; scores that are being waited for are asked for again."""
        samples = [sample.to_json() for sample in self.samples] if self.judged is not None else []
        place = {"plan": self.plan, "place": self.place, "judged": self.judged}
        return {**place, "members": [one.to_json() for one in self.members], "samples": samples}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "GroupInFlight":
        """What `to_json` gave; nothing of it is in flight."""
        members = [Pending.from_json(one) for one in values["members"]]
        samples = [Sample.from_json(one) for one in values["samples"]]
        return cls(values["plan"], values["place"], members, samples=samples, judged=values["judged"])
