"""kind: merge_search — many merges of the same models, each evaluated on validation problems; the best is kept."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from learning.data.row_journal import RowJournal
from learning.data.rows import Row, read_rows
from learning.evaluation.evaluation import Scores, compute_values, make_comparisons, make_metric_name, make_table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.held_out_problems import refuse_held_out_problems, refuse_test_tasks
from learning.evaluation.scored_tasks import ScoredTasks
from learning.lookup import bind
from learning.merge.candidates import Candidate, list_candidates
from learning.models.policy import set_determinism
from schemas.problem_sampling import ProblemSampling
from schemas.references import PolicyRef
from schemas.stages.evaluate import Evaluate
from schemas.stages.merge import Merge, MergeInput
from schemas.stages.merge_search import MergeSearch
from tasks import merge
from tasks.context import Context, Result
from tasks.evaluate import Evaluation, flatten_metrics, gather_problems, load_scored_tasks, make_sample_rows
from tasks.training_rows import describe_trained_problems


def run(stage: MergeSearch, context: Context) -> Result:
    """Write the best merge to output `model`, every result to `report`; metrics are those of an evaluation.

    Raise StepError if the problems are a test split, or those of an evaluation.
    """
    set_determinism(context.seed, context.num_threads)
    candidates = list_candidates(stage.candidates, len(stage.models), stage.max_candidates, context.seed)
    search = Search(stage, context, candidates)
    trials = search.run()
    scores = {name: trial.score_PN for name, trial in trials.items()}
    families = [row["family"] for row in search.rows]
    reported = {name: trial.reported for name, trial in trials.items()}
    names = list(trials)
    measured = Scores(scores, families, reported=reported, first=names[0])
    metric = make_metric_name(stage.metric)
    values = compute_values(search.settings, measured)[metric]
    means = {name: float(np.nanmean(value_P)) for name, value_P in values.items()}
    best = max(candidates, key=lambda candidate: means[candidate.name])
    search.merge(best, context.folder)
    results = {
        "confidence": stage.confidence,
        "problems": len(search.rows),
        "table": make_table(search.settings, measured, context.seed),
        "comparisons": compare(search.settings, measured, [*stage.models, best.name], context.seed),
        "gates": [],
        "search": {
            "chosen": best.name,
            "metric": metric,
            "candidates": [describe_candidate(one, means[one.name]) for one in candidates],
        },
    }
    write_report(context.output("report"), results, [row for trial in trials.values() for row in trial.samples])
    metrics = flatten_metrics(results, scores, best.name) | {"candidates": len(candidates)}
    choice = describe_choice(best, means, list(stage.models), metric)
    return Result(metrics, results, [choice, *describe_trained_problems(search.rows, context)])


@dataclass(frozen=True)
class Trial:
    """The evaluation of a model of the search."""

    score_PN: np.ndarray
    reported: dict[str, np.ndarray]
    samples: list[Row]


class Search:
    """The models and merges of a search, evaluated one after the other on the same problems."""

    def __init__(self, stage: MergeSearch, context: Context, candidates: Sequence[Candidate]) -> None:
        self.stage, self.context, self.candidates = stage, context, candidates
        self.work = context.folder / "candidate"
        folders = {name: context.input(f"models.{name}") for name in stage.models}
        folders |= {one.name: self.work / "outputs" / "model" for one in candidates}
        shared = {key: getattr(stage, key) for key in ProblemSampling.model_fields}
        models = {name: PolicyRef(folder) for name, folder in folders.items()}
        self.settings = Evaluate(kind="evaluate", models=models, metrics=[stage.metric], **shared)
        quiet = replace(
            context,
            inputs={**context.inputs, **{f"models.{name}": folder for name, folder in folders.items()}},
            on_progress=lambda event: context.on_progress(event) if "spent" in event else None,
        )
        problems, _ = gather_problems(self.settings, quiet)
        scored = load_scored_tasks(self.settings, quiet)
        refuse_test_tasks(scored)
        self.rows = [*problems, *(row for tasks in scored for row in tasks.rows)]
        refuse_held_out_problems(self.rows, read_held_out(stage, context))
        self.evaluation = Evaluation(self.settings, quiet, problems, scored, total=1)

    def run(self) -> dict[str, Trial]:
        """Return the trials of all models and merges by name; those of an earlier attempt are not repeated."""
        trials: dict[str, Trial] = {}
        names = [*self.stage.models, *(one.name for one in self.candidates)]
        by_name = {one.name: one for one in self.candidates}
        spending = self.context.spending
        with RowJournal(self.context.checkpoints / "trials.jsonl") as journal:
            self.context.recall(journal.tokens)
            for place, name in enumerate(names):
                if name not in journal:
                    if name in by_name:
                        self.merge(by_name[name], self.work)
                    before = spending.tokens + spending.checkpoint.tokens
                    trial = self._evaluate(name, place)
                    journal.add({name: trial}, {name: spending.tokens + spending.checkpoint.tokens - before})
                    shutil.rmtree(self.work, ignore_errors=True)
                trials[name] = _read_trial(journal[name])
                self.context.progress(place + 1, len(names))
        return trials

    def merge(self, candidate: Candidate, folder: Path) -> None:
        """Write a merge to `folder/outputs/model`."""
        parts = zip(self.stage.models.values(), candidate.by_model, strict=True)
        stage = Merge(
            kind="merge",
            merge_method=candidate.merge_method,
            models=[MergeInput(model=model, parameters=parameters) for model, parameters in parts],
            base_model=self.stage.base_model,
            parameters=candidate.parameters,
            dtype=self.stage.merge_dtype,
        )
        inputs = {f"models.{i}.model": self.context.input(f"models.{name}") for i, name in enumerate(self.stage.models)}
        if self.stage.base_model is not None:
            inputs["base_model"] = self.context.input("base_model")
        folder.mkdir(exist_ok=True)
        merge.run(stage, replace(self.context, inputs=inputs, folder=folder, on_progress=lambda event: None))

    def _evaluate(self, name: str, place: int) -> Row:
        """Return the trial of a model as JSON; all models use the same random numbers."""
        self.evaluation.started = place  # names the journal of its completions
        evaluated = self.evaluation.evaluate(f"models.{name}", self.context.seed)
        scores = {name: evaluated.score_PN}
        return {
            "scores": evaluated.score_PN.tolist(),
            "reported": {metric: value_P.tolist() for metric, value_P in evaluated.reported.items()},
            "samples": make_sample_rows(self.rows, {name: evaluated.samples}, scores),
        }


def _read_trial(entry: Row) -> Trial:
    reported = {metric: np.array(values, dtype=float) for metric, values in entry["reported"].items()}
    return Trial(np.array(entry["scores"], dtype=float), reported, entry["samples"])


def read_held_out(stage: MergeSearch, context: Context) -> list[Row]:
    """Return the problems of the recipe's evaluations."""
    rows: list[Row] = []
    for i, use in enumerate(stage.held_out):
        made = bind(use, f"held_out.{i}", context.inputs)()
        rows += made.rows if isinstance(made, ScoredTasks) else made
    for i in range(len(stage.held_out_prompts)):
        rows += read_rows(context.input(f"held_out_prompts.{i}"), "prompts")
    return rows


def describe_candidate(candidate: Candidate, value: float) -> Row:
    """Return a merge for the report, with its value."""
    method, settings = candidate.merge_method, candidate.describe()
    return {"name": candidate.name, "merge_method": method, "settings": settings, "value": value}


def compare(settings: Evaluate, measured: Scores, names: list[str], seed: int) -> list[Row]:
    """Return paired differences of the last of some models to each of the others."""
    *others, last = names
    lines: list[Row] = []
    for other in others:
        pair = Scores(
            {name: measured.models[name] for name in (other, last)},
            measured.families,
            reported=measured.reported,
            first=other,
        )
        lines += make_comparisons(settings.model_copy(update={"models": {other: "", last: ""}}), pair, seed)
    return lines


def describe_choice(best: Candidate, means: dict[str, float], models: list[str], metric: str) -> str:
    """Return a sentence about the merge that was chosen, and about the best model that it was made from."""
    part = max(models, key=lambda name: means[name])
    settings = f" ({best.describe()})" if best.describe() else ""
    beats = "" if means[best.name] > means[part] else f"; no merge is better than {part} alone"
    return (
        f"{best.name}{settings} is the best of {len(means) - len(models)} merges: {metric} {means[best.name]:.3f}, "
        f"{part} {means[part]:.3f}{beats}. It was chosen on these problems, so evaluate it on others"
    )
