"""Run the comparison of a recipe's `outcome:` for several seeds, and judge the difference.

Every seed is a plan of its own, which differs in `vars.seed`; what does not depend on it (data, the cold start) is made
once. Steps whose artifacts exist are not run again, so a measurement that was stopped continues where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from flows.evidence.scores import ReportScores, pair_scores, read_report_scores
from flows.evidence.spending import find_makers, find_unequal, list_ancestors, sum_spending
from flows.execution.progress import TerminalReporter
from flows.execution.states import EXIT_CANCELLED
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import ExecutorName, run_plan
from flows.runs.start import record_in_mlflow
from learning.evaluation.seed_interval import estimate_over_seeds
from lineage.artifacts.provenance import describe_machine
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.outcome import Outcome
from schemas.package import ROOT
from schemas.pages.evidence import CONFIDENCE, DIGITS, Evidence, SeedResult, digest_outcome, judge
from schemas.plan import Plan
from schemas.recipe.load import Recipe, load_recipe
from schemas.suggestions import suggest

KEYS = {"method_key", "against_key"}
OUTCOMES = ROOT / "recipes" / "outcomes"


class Stopped(PlanError):
    """A measurement was stopped."""

    exit_code = EXIT_CANCELLED


@dataclass(frozen=True)
class SeedRun:
    """What one seed left."""

    result: SeedResult
    scores: ReportScores
    versions: dict[str, str]
    method_keys: tuple[str, ...]
    """Keys of all steps that made the method's model and what belongs to it."""


def find_outcome_recipe(name: str) -> Path:
    """Return the recipe with the outcome of a paper's ID, or a file that is named. Raise PlanError."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else OUTCOMES / f"{name}.yaml"
    if not path.is_file():
        known = [file.stem for file in sorted(OUTCOMES.glob("*.yaml"))]
        raise PlanError(f"no outcome of `{name}`; {suggest(name, known, 'outcomes')}")
    return path


def read_outcome(recipe: Recipe) -> Outcome:
    """Return a recipe's outcome. Raise PlanError for a recipe that declares none, or has no variable `seed`."""
    if recipe.head.outcome is None:
        raise PlanError(f"{recipe.file}: declares no `outcome:`, so there is nothing to measure")
    if "seed" not in recipe.head.vars:
        advice = 'add `vars: {seed: 1}` and use it: `defaults: {rl: {seed: "${vars.seed}"}}`'
        raise PlanError(f"{recipe.file}: has no variable `seed` to vary; {advice}")
    return recipe.head.outcome


def measure(path: Path, seeds: Sequence[int], layout: Layout, executor: ExecutorName, console: Console) -> Evidence:
    """Run every seed of a recipe's outcome and return the evidence.

    Raise PlanError if a run fails or is stopped, if seeds change nothing, or if the costs differ without a reason.
    """
    recipe = load_recipe(path)
    outcome = read_outcome(recipe)
    runs = [run_seed(path, seed, outcome, layout, executor, console) for seed in seeds]
    results = tuple(one.result for one in runs)
    refuse_equal_seeds(path, runs)
    if (unequal := find_unequal(outcome, results)) and not outcome.unequal:
        advice = "make them equal, or say in `outcome.unequal` why they differ"
        raise PlanError(f"{path}: not comparable: {'; '.join(unequal)}; {advice}")
    gain_SP = pair_scores([one.scores for one in runs], outcome.method, outcome.against)
    interval = estimate_over_seeds(gain_SP if outcome.better == "higher" else -gain_SP, CONFIDENCE)
    value, low, high, error = (
        round(number, DIGITS) for number in (interval.value, interval.low, interval.high, interval.problems_error)
    )
    return Evidence(
        id=path.stem,
        digest=digest_outcome(recipe),
        outcome=outcome,
        confidence=CONFIDENCE,
        problems=gain_SP.shape[1],
        seeds=results,
        value=value,
        low=low,
        high=high,
        problems_error=error,
        verdict=judge(low, high, outcome.margin),
        machine={**describe_machine(), "torch": runs[0].versions.get("torch", "")},
    )


def run_seed(
    path: Path, seed: int, outcome: Outcome, layout: Layout, executor: ExecutorName, console: Console
) -> SeedRun:
    """Run the report of one seed, as far as it is not there, and return its results. Raise PlanError."""
    plan = plan_recipe(path, layout, overrides=[f"vars.seed={seed}"], to=[outcome.report])
    step = plan.step(outcome.report)
    if Store(layout).find(step.kind, step.key) is None:
        console.print(f"{path.stem}, seed {seed}", highlight=False)
        with TerminalReporter(plan, console) as reporter:
            ended = run_plan(
                plan,
                layout,
                executor=executor,
                prefect=executor == "ray",
                reporter=reporter,
                project=lambda outcome, _: record_in_mlflow(outcome, plan, layout, console),
            )
        if ended.exit_code == EXIT_CANCELLED:
            raise Stopped(f"{path}: stopped in seed {seed}; the same command continues")
        if ended.exit_code == 1:
            failed = "; ".join(f"{s.step}: {s.reason}" for s in ended.states.values() if s.state == "failed")
            raise PlanError(f"{path}: seed {seed} failed: {failed}")
    report = Store(layout).find(step.kind, step.key)
    if report is None:
        raise PlanError(f"{path}: seed {seed} has made no report; see posttrain status")
    return collect_seed(plan, seed, outcome, report, layout)


def collect_seed(plan: Plan, seed: int, outcome: Outcome, report: Manifest, layout: Layout) -> SeedRun:
    """Return what a seed's finished run measured and spent."""
    store = Store(layout)
    method, against = (find_makers(plan, outcome.report, m, store) for m in (outcome.method, outcome.against))
    models = tuple(name for name in (outcome.method, outcome.against, outcome.start) if name)
    threshold = plan.step(outcome.report).settings.get("threshold")
    scores = read_report_scores(report, outcome.metric, models, threshold, layout)
    values = {name: round(value, DIGITS) for name, value in scores.values.items()}
    ours, theirs = list_ancestors(plan, method), list_ancestors(plan, against)
    result = SeedResult(
        seed=seed,
        method=values[outcome.method],
        against=values[outcome.against],
        start=values[outcome.start] if outcome.start else None,
        method_spent=sum_spending(plan, ours - theirs, layout),
        against_spent=sum_spending(plan, theirs - ours, layout),
        method_key=plan.step(method[-1]).key[:16],
        against_key=plan.step(against[-1]).key[:16] if against else "",
    )
    return SeedRun(result, scores, report.versions, tuple(plan.step(name).key for name in method))


def refuse_equal_seeds(path: Path, runs: Sequence[SeedRun]) -> None:
    """Raise PlanError if two seeds trained the same method: then the recipe does not use `vars.seed`."""
    if len({one.method_keys for one in runs}) < len(runs):
        raise PlanError(f"{path}: the seed changes nothing; write `seed: ${{vars.seed}}` in the stages that train")


def list_changed_digits(before: Evidence, now: Evidence) -> list[str]:
    """Return the measured numbers that differ between two measurements of one outcome, in words."""
    changes = [
        f"{k}: {a} → {b}" for k in ("value", "low", "high") if (a := getattr(before, k)) != (b := getattr(now, k))
    ]
    later = {one.seed: one for one in now.seeds}
    for one in before.seeds:
        other = later.get(one.seed)
        if other is None:
            changes.append(f"seed {one.seed}: not measured")
        elif one.model_dump(exclude=KEYS) != other.model_dump(exclude=KEYS):
            changes.append(f"seed {one.seed}: {one.method}, {one.against} → {other.method}, {other.against}")
    return changes
