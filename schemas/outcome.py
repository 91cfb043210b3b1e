"""`outcome:` of a recipe: the comparison that decides whether a method does what it claims."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema


class Outcome(Schema):
    """A method and its comparator in one evaluation, repeated over seeds by `posttrain evidence`."""

    claim: str = Field(min_length=1)
    """What is claimed, in one sentence."""
    method: str = Field(min_length=1)
    """The method: a name in `models` of the report."""
    against: str = Field(min_length=1)
    """The comparator: a name in `models` of the report, or of a rule in its `policies`, which costs nothing."""
    start: str | None = None
    """The model before training, a name in `models` of the report, or a rule in its `policies`; shown beside both."""
    report: str = "report"
    """The evaluate stage."""
    metric: str = "accuracy"
    """The metric of the report, over all problems or over one family: `accuracy`, `accuracy.chain_sum`."""
    better: Literal["higher", "lower"] = "higher"
    """Whether a higher or a lower value is better."""
    margin: float = Field(default=0.0, ge=0.0)
    """For a claim of *no worse*: the loss that counts as none. 0: the claim is that the method is better."""
    tolerance: float = Field(default=0.05, ge=0.0, le=1.0)
    """Largest relative difference between the completions, and between the tokens, that method and comparator used."""
    unequal: str = ""
    """Why completions or tokens differ by more than that; without a reason such a comparison is refused."""

    def describe_difference(self) -> str:
        """Return the difference that is positive where the method is better: `trained − joint`."""
        names = (self.method, self.against) if self.better == "higher" else (self.against, self.method)
        return " − ".join(names)

    @property
    def compares_returns(self) -> bool:
        """Return whether the metric is made of returns of control policies, whose unit is that of their world."""
        return self.metric.startswith(("mean_return", "worst_return", "hypervolume"))
