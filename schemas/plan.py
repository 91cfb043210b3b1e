"""What will run: a recipe compiled into steps with keys."""

from schemas.base import JsonObject, Schema
from schemas.budget import Budget
from schemas.references import ArtifactType
from schemas.resources import Resources
from schemas.schedule import Schedule


class Input(Schema):
    """What one port of a step receives."""

    port: str
    """Dotted path of the field: `model`, `models.base`, `rewards.1.model`."""
    steps: tuple[str, ...] = ()
    """Names of the steps it may come from: one, or a loop's iterations, latest first; the first that ran is used."""
    output: str | None = None
    """Named output of that step."""
    source: str | None = None
    """The reference, when it comes from outside."""
    digest: str | None = None
    """Content digest of what comes from outside (for the hub: the commit)."""
    type: ArtifactType
    """Artifact type."""


class Until(Schema):
    """The exit of a loop: a comparison on the metrics of a step of an earlier iteration."""

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
    """Module to digest of its normalised source, over the closure the stage uses."""
    key: str
    """Identity: sha256 over kind, settings, seed, keys or digests of the inputs, and code (64 hex digits)."""
    identity: JsonObject
    """What the key is the hash of, kept so that two keys can be compared field by field."""
    resources: Resources = Resources()
    """What the step needs of a node."""
    retries: int = 0
    """Further tries after a failure."""
    timeout: float | None = None
    """Seconds until the process is killed."""

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on results that the step runs at all: it is part of a loop, or a gate branches to it."""
        return bool(self.unless or self.branch_of)

    @property
    def reads(self) -> str:
        """What it reads, in words: stages, and references to the outside."""
        return ", ".join(dict.fromkeys(given.source or given.steps[0] for given in self.inputs))

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all steps that must have ended before this one starts."""
        upstream = [s for i in self.inputs for s in i.steps] + list(self.after) + [u.step for u in self.unless]
        return tuple(dict.fromkeys(upstream + [b.step for b in self.branch_of]))


class Promotion(Schema):
    """What becomes champion after a run."""

    name: str
    """Registered model whose alias moves."""
    models: tuple[str, ...]
    """Steps that the model may come from: one, or a loop's iterations, latest first."""
    output: str
    """Named output of that step."""
    gates: tuple[str, ...]
    """Evaluations whose gates it must pass, likewise."""


class Plan(Schema):
    """Steps in an order in which they can run."""

    recipe: str
    """Name of the recipe."""
    file: str
    """Path of the recipe as given."""
    profile: str | None = None
    """Profile that was applied."""
    overrides: tuple[str, ...] = ()
    """What `--set` changed, as `stages.x.y=v`."""
    steps: tuple[Step, ...]
    """Topologically ordered."""
    resolved: JsonObject
    """The recipe after extends, profile, vars, matrix and repeat, with all defaults."""
    promotion: Promotion | None = None
    """What becomes champion when its gates pass."""
    budget: Budget | None = None
    """What a run may cost."""
    schedule: Schedule | None = None
    """When it runs by itself once deployed."""

    def step(self, name: str) -> Step:
        """Return the step of that name."""
        return next(s for s in self.steps if s.name == name)
