"""The plan: a recipe compiled into steps with keys."""

from schemas.base import JsonObject, Schema
from schemas.budget import Budget
from schemas.notify import Notify
from schemas.references import ArtifactType
from schemas.resources import Resources
from schemas.schedule import Schedule
from schemas.trackers import Tracker


class Input(Schema):
    """The input of one port of a step."""

    port: str
    """Dotted path of the field: `model`, `models.base`, `rewards.1.model`."""
    steps: tuple[str, ...] = ()
    """Names of the steps it may come from: one, or a loop's iterations, latest first; the first that ran is used."""
    output: str | None = None
    """Named output of that step."""
    source: str | None = None
    """The reference, if it comes from outside."""
    digest: str | None = None
    """Content digest of an outside source (for the hub: the commit)."""
    type: ArtifactType
    """Artifact type."""


class Until(Schema):
    """The exit condition of a loop: a comparison on a metric of a step in an earlier iteration."""

    step: str
    """Step whose manifest holds the metric."""
    metric: str
    """Name of the metric."""
    op: str
    """One of >=, >, <=, <, ==."""
    value: float
    """Right-hand side."""


class BranchOf(Schema):
    """A gate that branches to a step: the step runs only when the gate fails."""

    step: str
    """Step of the evaluation."""
    gate: int
    """Index of the gate in its list."""


class Step(Schema):
    """A stage inside a plan."""

    name: str
    """Unique in the plan; the stage's name, with iteration and matrix suffixes."""
    stage: str
    """Name of the stage in the recipe."""
    kind: str
    """Kind of the stage."""
    settings: JsonObject
    """The stage with all defaults filled in, also those of its slots; without resources, retries and the like."""
    seed: int
    """Seed of the step."""
    inputs: tuple[Input, ...] = ()
    """One entry per reference."""
    after: tuple[str, ...] = ()
    """Steps that must finish first although no data comes from them."""
    unless: tuple[Until, ...] = ()
    """The step is skipped when one of these holds: its loop has ended."""
    branch_of: tuple[BranchOf, ...] = ()
    """Unless empty, the step runs only when one of these gates has failed."""
    outputs: dict[str, ArtifactType]
    """Named outputs, the default first."""
    code: dict[str, str]
    """Module to digest of the normalised source of the definitions that the stage reaches."""
    key: str
    """Identity: sha256 over kind, settings, seed, keys or digests of the inputs, and code (64 hex digits)."""
    identity: JsonObject
    """The content that the key is the hash of, so that two keys can be compared field by field."""
    resources: Resources = Resources()
    """Resources that the step needs."""
    retries: int = 0
    """Further attempts after a failure."""
    timeout: float | None = None
    """Seconds until the process is killed."""

    @property
    def is_conditional(self) -> bool:
        """Whether the step may not run: it is part of a loop with a condition, or a gate branches to it."""
        return bool(self.unless or self.branch_of)

    @property
    def reads(self) -> str:
        """The steps and outside references that it reads, as text."""
        return ", ".join(dict.fromkeys(i.source or i.steps[0] for i in self.inputs))

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all steps that must have ended before this one starts."""
        upstream = [s for i in self.inputs for s in i.steps] + list(self.after) + [u.step for u in self.unless]
        return tuple(dict.fromkeys(upstream + [b.step for b in self.branch_of]))


class Promotion(Schema):
    """Which model becomes champion after a run."""

    name: str
    """Registered model whose alias moves."""
    models: tuple[str, ...]
    """Steps that the model may come from: one, or a loop's iterations, latest first."""
    output: str
    """Named output of that step."""
    gates: tuple[str, ...]
    """Evaluations whose gates it must pass: one, or a loop's iterations, latest first."""


class Plan(Schema):
    """Steps in an order in which they can run."""

    recipe: str
    """Name of the recipe."""
    file: str
    """Path of the recipe as given."""
    profile: str | None = None
    """Profile that was applied."""
    overrides: tuple[str, ...] = ()
    """Values changed with `--set`, as `stages.x.y=v`."""
    steps: tuple[Step, ...]
    """Topologically ordered."""
    resolved: JsonObject
    """The recipe after applying extends, profile, vars, matrix and repeat, with all defaults."""
    promotion: Promotion | None = None
    """Which model becomes champion if its gates pass."""
    budget: Budget | None = None
    """Limits on the cost of a run."""
    schedule: Schedule | None = None
    """When its deployment starts runs."""
    notify: tuple[Notify, ...] = ()
    """Webhooks that receive messages about its runs."""
    track: tuple[Tracker, ...] = ("mlflow",)
    """Trackers that record its runs."""

    def step(self, name: str) -> Step:
        """Return the step of that name."""
        return next(s for s in self.steps if s.name == name)
