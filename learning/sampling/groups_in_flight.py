"""A group of completions that was requested and is not trained on yet."""

from dataclasses import dataclass, field

from learning.samples.sample import Sample
from learning.sampling.pending_samples import Pending
from schemas.base import JsonObject


@dataclass(eq=False)
class GroupInFlight:
    """The completions of one problem; the trainer takes them once all have ended and are scored."""

    iteration: int
    """Iteration that requested it."""
    place: int
    """Place among the groups of that iteration."""
    members: list[Pending]
    sent: bool = False
    """Whether its open completions were sent to the engine."""
    samples: list[Sample] = field(default_factory=list)
    """Samples of its completions, once all have ended."""
    scored: int | None = None
    """How many groups were scored before it; None: it is not scored yet."""

    @property
    def ended(self) -> bool:
        """Whether all completions have ended."""
        return all(one.finish != "suspended" for one in self.members)

    @property
    def order(self) -> tuple[int, int]:
        """Order in which groups were requested."""
        return self.iteration, self.place

    def to_json(self) -> JsonObject:
        """Return it as plain values; a group whose scores are pending is scored again."""
        samples = [sample.to_json() for sample in self.samples] if self.scored is not None else []
        place = {"iteration": self.iteration, "place": self.place, "scored": self.scored}
        return {**place, "members": [one.to_json() for one in self.members], "samples": samples}

    @classmethod
    def from_json(cls, values: JsonObject) -> "GroupInFlight":
        """Return what `to_json` wrote; none of it is in flight."""
        members = [Pending.from_json(one) for one in values["members"]]
        samples = [Sample.from_json(one) for one in values["samples"]]
        return cls(values["iteration"], values["place"], members, samples=samples, scored=values["scored"])
