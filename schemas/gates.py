"""`gate:` of an evaluation: a condition on its results, and what happens where it does not hold.

What a gate asks enters the key of its step; what happens then (`POLICY`) does not: changing it evaluates nothing again.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import JsonObject, Schema

POLICY = frozenset({"on_fail", "branch", "approve_within", "floating"})
"""Keys of a gate that enter no key: what happens after the evaluation, and what a lock holds it to."""
RELATIVES = ("parent", "base", "champion")
"""Words of `against` that are found by what a model is, not by its name."""


class Gate(Schema):
    """A condition on the results; with `against`, on the paired difference of two models on the same problems."""

    metric: str = "accuracy"
    """A metric of this stage, over all problems or one family of them: `accuracy`, `accuracy.chain_sum`."""
    model: str | None = None
    """Name in `models`; null is the last."""
    min: float | None = None
    """Smallest value allowed."""
    max: float | None = None
    """Largest value allowed."""
    against: str | None = None
    """A name in `models`, a stage that makes a model, or one of `parent` (what the model was trained from), `base`
    (where its training began) and `champion` (what the alias in MLflow says)."""
    champion: str | None = None
    """Registered model whose champion is meant; null: the one that the recipe promotes to."""
    floating: bool = False
    """With `against: champion`: a locked recipe compares with the champion of the day. false: the lock pins the
    champion that there was, and refuses another."""
    min_delta: float | None = None
    """Must be proven: the lower bound of the difference reaches this. Negative: proven not to be worse by more."""
    max_regression: float | dict[str, float] | None = None
    """Must not be refuted: fails when a larger regression is proven. A number for `metric`, or one per metric or
    metric.family."""
    test: Literal["paired_bootstrap", "mcnemar"] = "paired_bootstrap"
    """How a difference is judged; `mcnemar` is exact, for right or wrong once per problem."""
    confidence: float | None = Field(default=None, gt=0, lt=1)
    """Of the two-sided interval of whose ends the gate uses one: wrong in (1 − confidence) / 2; null: the stage's."""
    noise_repeats: int = Field(default=0, ge=0, le=100)
    """Evaluate both models so often again with other sampling seeds; a difference as small as theirs counts as none."""
    on_fail: Literal["stop", "branch", "approve", "warn"] = "stop"
    """`stop`: what depends on the stage does not run, exit code 2. `branch`: the stages of `branch` run in its place.
    `approve`: a person decides. `warn`: it is only said."""
    branch: list[str] = []
    """Stages that run only when this gate fails."""
    approve_within: float = Field(default=86400.0, gt=0)
    """Seconds for which a run in Prefect waits for the person; then it ends, and can be approved and resumed."""

    @model_validator(mode="after")
    def something_asked(self) -> Self:
        """A gate without a bound is always open, and a bound on a difference wants something to compare with."""
        compares = self.min_delta is not None or self.max_regression is not None
        if self.min is None and self.max is None and not compares:
            raise ValueError("give at least one of `min`, `max`, `min_delta` and `max_regression` (with `against`)")
        if compares != (self.against is not None):
            raise ValueError("`against` belongs together with `min_delta` or `max_regression`")
        if self.champion is not None and self.against != "champion":
            raise ValueError("`champion` names the registered model for `against: champion`")
        if self.floating and self.against != "champion":
            raise ValueError("`floating` is for `against: champion`: nothing else moves")
        if self.max_regression == {}:
            raise ValueError("`max_regression` is empty: give a number, or one per metric")
        if any(allowed < 0 for allowed in self.regressions.values()):
            raise ValueError("`max_regression` says how much worse is allowed: a number from 0 up")
        if self.noise_repeats and not compares:
            raise ValueError("`noise_repeats` is for gates that compare: give `against`")
        return self

    @model_validator(mode="after")
    def outcome_fits(self) -> Self:
        """Branches have stages; McNemar's test knows no margin."""
        if (self.on_fail == "branch") != bool(self.branch):
            raise ValueError("`on_fail: branch` and `branch: [stage, ...]` belong together")
        if self.test == "mcnemar" and self.against is None:
            raise ValueError("`test: mcnemar` compares two models: give `against`")
        if self.test == "mcnemar" and (self.min_delta or any(self.regressions.values())):
            raise ValueError(
                "McNemar's test asks whether there is a difference at all: a margin other than 0 wants "
                "`test: paired_bootstrap`"
            )
        return self

    @property
    def regressions(self) -> dict[str, float]:
        """Metric or metric.family to its allowed regression."""
        if isinstance(self.max_regression, dict):
            return self.max_regression
        return {} if self.max_regression is None else {self.metric: self.max_regression}


def strip_policy(settings: JsonObject) -> JsonObject:
    """Return the settings of a stage without what its gates do when they fail: the part in the key."""
    gates = settings.get("gate")
    if not isinstance(gates, list):
        return settings
    return settings | {"gate": [{k: v for k, v in gate.items() if k not in POLICY} for gate in gates]}


def split_metric(name: str, metrics: list[str]) -> tuple[str, str | None] | None:
    """Return the metric and the family after it that a gate names, or None if it names no metric of the stage."""
    if name in metrics:
        return name, None
    fits = [m for m in metrics if name.startswith(f"{m}.")]
    return (longest := max(fits, key=len), name.removeprefix(f"{longest}.")) if fits else None
