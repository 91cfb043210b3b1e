"""docs/evidence/ID.json: what `posttrain evidence` measured of one recipe in recipes/outcomes/."""

import hashlib
import json
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from schemas.base import Schema
from schemas.outcome import Outcome
from schemas.recipe.load import Recipe, load_recipe
from schemas.steps.outcome import list_needed

CONFIDENCE = 0.95
"""Of the intervals."""
DIGITS = 6
"""Digits after the point of everything measured."""
NOT_COMPARED = {"resources", "retries", "timeout", "description", "tests"}
"""Settings that change no result."""
Verdict = Literal["reproduced", "level", "no effect", "refuted at this size"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
OUT_OF_DATE = "out of date"
"""In place of the verdict if the recipe has changed since."""


class Spent(Schema):
    """What a model cost that the other one of the comparison did not."""

    completions: int
    """Completions of its rl stages, those of other sources included."""
    tokens: int
    """Tokens sampled or trained on by its stages."""
    environment_steps: int = 0
    """Steps of control policies in their worlds."""


class SeedResult(Schema):
    """One seed: what method, comparator and start reached, and what the first two cost."""

    seed: int
    method: float
    against: float
    start: float | None = None
    method_spent: Spent
    against_spent: Spent
    method_key: str
    """First 16 digits of the key of the step that made the method's model, or its agent."""
    against_key: str
    """Of the comparator's; empty for a rule, which no step makes."""


class Evidence(Schema):
    """The outcome of one comparison over seeds."""

    id: str
    digest: str
    """Of the outcome and of all settings that its report depends on, when it was measured."""
    outcome: Outcome
    confidence: float
    problems: int = Field(ge=1)
    """Held-out problems of the metric; 1 if the metric is not a mean over problems."""
    seeds: tuple[SeedResult, ...] = Field(min_length=2)
    value: float
    """Mean over seeds of method − comparator; with `better: lower` of comparator − method."""
    low: float
    high: float
    problems_error: float
    """Standard error of `value` from the choice of problems; that from seeds follows from `seeds`."""
    verdict: Verdict
    machine: dict[str, str | int]
    """Processor, cores and versions with which it was measured."""

    @property
    def gains(self) -> list[float]:
        """The difference of every seed, positive where the method is better."""
        sign = 1 if self.outcome.better == "higher" else -1
        return [sign * (one.method - one.against) for one in self.seeds]


def judge(low: float, high: float, margin: float = 0.0) -> Verdict:
    """Return the verdict on an interval of differences: above −margin, below it, or neither.

    Without a margin an interval of width 0 at 0 means that the method changed nothing: both give the same answers with
    every seed, so its mechanism was not used, and nothing was compared.
    """
    if low == high == margin == 0:
        return "no effect"
    if low > -margin:
        return "reproduced"
    return "refuted at this size" if high < -margin else "level"


def digest_outcome(recipe: Recipe) -> str:
    """Return 16 digits that change with the outcome and with each setting that its report depends on.

    Defaults that the recipe does not write are left out: a new option of a stage makes no evidence stale.
    """
    outcome = recipe.head.outcome
    if outcome is None:
        return ""
    steps = {
        name: recipe.stages[name].model_dump(mode="json", exclude_unset=True, exclude=NOT_COMPARED)
        for name in list_needed(recipe.steps, outcome.report)
    }
    seeds = {name: recipe.seed(name) for name in steps}
    content = [outcome.model_dump(mode="json", exclude={"claim", "unequal"}), steps, seeds]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_evidence(file: Path) -> Evidence:
    """Return the evidence in a file. Raise pydantic's ValidationError for another content."""
    return Evidence.model_validate_json(file.read_text(encoding="utf-8"))


def write_evidence(evidence: Evidence, file: Path) -> None:
    """Write the evidence; equal evidence gives equal bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(evidence.model_dump_json(indent=1) + "\n", encoding="utf-8")


def write_interval(evidence: Evidence) -> str:
    """Return the difference with its interval."""
    return f"{evidence.value:+.3f} [{evidence.low:+.3f}, {evidence.high:+.3f}]"


def is_current(evidence: Evidence, recipe: Path) -> bool:
    """Return whether the evidence was measured with the recipe as it is now. Raise RecipeError."""
    return recipe.is_file() and digest_outcome(load_recipe(recipe)) == evidence.digest
