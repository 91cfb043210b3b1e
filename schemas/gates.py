"""`gate:` of an evaluation: a condition on its results, and what happens if the condition does not hold.

The condition enters the key of the step. The keys in `POLICY` do not, so changing them does not repeat the evaluation.
"""

from collections.abc import Collection, Iterable
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import JsonObject, Schema

POLICY = frozenset({"on_fail", "branch", "approve_within", "approvers", "floating"})
"""Keys of a gate that do not enter the step's key: the action after the evaluation, and the pinning of a lock."""
RELATIVES = ("parent", "base", "champion")
"""Values of `against` that refer to a model by its role instead of its name."""


class Gate(Schema):
    """A condition on the results; with `against`, on the paired difference of two models on the same problems."""

    metric: str = "accuracy"
    """Metric of this stage, over all problems or over one family: `accuracy`, `accuracy.chain_sum`."""
    model: str | None = None
    """Model to test, by its name in `models`; null: the last one."""
    min: float | None = None
    """Smallest allowed value of the metric."""
    max: float | None = None
    """Largest allowed value of the metric."""
    against: str | None = None
    """Model to compare with: a name in `models`, a stage that produces a model, `parent` (the model that it was trained
    from), `base` (the first model of its training history) or `champion` (the model at the alias in MLflow)."""
    champion: str | None = None
    """Registered model whose champion to compare with; null: the one that the recipe promotes to."""
    floating: bool = False
    """With `against: champion`: whether a locked recipe compares with the current champion. false: the lock pins the
    champion at the time of locking, and any other champion is refused."""
    min_delta: float | None = None
    """Passes only if the lower bound of the difference reaches this; a negative value tests for non-inferiority."""
    max_regression: float | dict[str, float] | None = None
    """Fails only if a regression larger than this is proven. A number for `metric`, or a map with one number per metric
    or metric.family."""
    test: Literal["paired_bootstrap", "mcnemar"] = "paired_bootstrap"
    """Test of a difference; `mcnemar` is exact, for one right or wrong answer per problem."""
    confidence: float | None = Field(default=None, gt=0, lt=1)
    """Level of the two-sided interval, of which the gate uses one end: its error rate is (1 − confidence) / 2;
    null: the stage's `confidence`."""
    noise_repeats: int = Field(default=0, ge=0, le=100)
    """Further evaluations of both models with other sampling seeds; a difference within their noise counts as none."""
    on_fail: Literal["stop", "branch", "approve", "warn"] = "stop"
    """`stop`: stages that depend on this one do not run, and the exit code is 2. `branch`: the stages in `branch` run
    instead. `approve`: a person decides. `warn`: the run continues with a warning."""
    branch: list[str] = []
    """Stages that run only if this gate fails."""
    approve_within: float = Field(default=86400.0, gt=0)
    """Seconds for which a run in Prefect waits for a decision; after that it ends, and can be approved and resumed."""

    approvers: list[str] = []
    """With `on_fail: approve`: accounts of the operating system that may decide, with `posttrain approve` only, and not
    about a run that they started. Empty: those of the recipe (`approvers:` at its top), else anyone."""

    @model_validator(mode="after")
    def check_bounds(self) -> Self:
        """Require a bound, `against` for bounds on a difference, and no key without effect."""
        compares = self.min_delta is not None or self.max_regression is not None
        if self.min is None and self.max is None and not compares:
            raise ValueError("give at least one of `min`, `max`, `min_delta` and `max_regression` (with `against`)")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"`min` ({self.min:g}) is above `max` ({self.max:g}): no value passes")
        if compares != (self.against is not None):
            raise ValueError("`against` belongs together with `min_delta` or `max_regression`")
        if self.champion is not None and self.against != "champion":
            raise ValueError("`champion` needs `against: champion`: it names the registered model")
        if self.floating and self.against != "champion":
            raise ValueError("`floating` needs `against: champion`")
        if self.max_regression == {}:
            raise ValueError("`max_regression` is empty: give a number, or a number per metric")
        if any(allowed < 0 for allowed in list_regressions(self).values()):
            raise ValueError("`max_regression` is an allowed loss: give 0 or a positive number")
        if self.noise_repeats and not compares:
            raise ValueError("`noise_repeats` needs a comparison: give `against`")
        return self

    @model_validator(mode="after")
    def check_outcome(self) -> Self:
        """Require stages for `on_fail: branch`, and a comparison without margins for McNemar's test."""
        if (self.on_fail == "branch") != bool(self.branch):
            raise ValueError("`on_fail: branch` and `branch: [stage, ...]` belong together")
        if self.approvers and self.on_fail != "approve":
            raise ValueError("`approvers` belongs to `on_fail: approve`")
        if self.test == "mcnemar" and self.against is None:
            raise ValueError("`test: mcnemar` compares two models: give `against`")
        if self.test == "mcnemar" and (self.min_delta or any(list_regressions(self).values())):
            raise ValueError(
                "`test: mcnemar` tests for any difference and takes no margin other than 0; "
                "write `test: paired_bootstrap`"
            )
        return self


def refuse_unusable_gates(gates: Iterable[Gate], models: Collection[str], no_noise: str) -> None:
    """Raise ValueError for gates against models that are not evaluated, and for repeats; `no_noise` says why."""
    for gate in gates:
        if gate.against is not None and gate.against not in models:
            names = ", ".join(models)
            raise ValueError(f"gate: `against: {gate.against}` is not in `models`, which are compared: {names}")
        if gate.noise_repeats:
            raise ValueError(f"`noise_repeats`: {no_noise}, so there is no noise to measure")


def list_regressions(gate: Gate) -> dict[str, float]:
    """Return the allowed regressions of a gate by metric or metric.family."""
    if isinstance(gate.max_regression, dict):
        return gate.max_regression
    return {} if gate.max_regression is None else {gate.metric: gate.max_regression}


def strip_policy(settings: JsonObject) -> JsonObject:
    """Return the part of a stage's settings that is in its key: gates without the keys in `POLICY`."""
    gates = settings.get("gate")
    if not isinstance(gates, list):
        return settings
    return settings | {"gate": [{k: v for k, v in gate.items() if k not in POLICY} for gate in gates]}


def name_metric(metric: dict[str, object]) -> str:
    """Return a metric's name in tables and gates: function and options, as `pass_at_4`."""
    name = str(metric["use"]).replace(":", ".").rpartition(".")[2]
    return "_".join([name, *(str(value) for key, value in metric.items() if key != "use")])


def split_metric(name: str, metrics: list[str]) -> tuple[str, str | None] | None:
    """Return the metric and the family that a gate's name refers to, or None if the stage has no such metric."""
    if name in metrics:
        return name, None
    fits = [m for m in metrics if name.startswith(f"{m}.")]
    return (longest := max(fits, key=len), name.removeprefix(f"{longest}.")) if fits else None
