"""kind: search — settings of a training stage, chosen by an evaluation of what they train."""

import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learning.data.row_journal import RowJournal
from learning.data.rows import Row
from learning.evaluation.evaluation import ALL
from learning.lookup import bind, load_optional
from learning.search.study import Study, require_library
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.search_space import Value, replace_setting
from schemas.stages.base import BaseStage
from schemas.stages.search import Search
from tasks.context import Context, Result


@dataclass(frozen=True)
class Trial:
    """A training with some settings, and what its model is worth; None if it failed."""

    number: int
    settings: Mapping[str, Value]
    value: float | None
    error: str
    seconds: float


def run(stage: Search, context: Context) -> Result:
    """Write the best model and the record of all trials; trials of an earlier attempt are not repeated."""
    require_library()
    trials = Trials(stage, context)
    done = trials.run()
    finished = [trial for trial in done if trial.value is not None]
    if not finished:
        raise StepError(f"search: all {len(done)} trials failed; the first: {done[0].error}")
    best = trials.choose(finished)
    baseline = read_value(context.input("evaluate"), trials.label, stage.metric)
    is_better = trials.is_better(best.value, baseline)
    shutil.copytree(
        trials.models / str(best.number) if is_better else context.input("train"),
        context.output("model"),
        dirs_exist_ok=True,
    )
    record: JsonObject = {
        "metric": stage.metric,
        "direction": stage.direction,
        "baseline": baseline,
        "best": best.number if is_better else None,
        "settings": dict(best.settings) if is_better else {},
        "trials": [vars(trial) | {"settings": dict(trial.settings)} for trial in done],
    }
    kept = {**record, "trials": [{k: v for k, v in line.items() if k != "seconds"} for line in record["trials"]]}
    (context.output("trials") / "trials.json").write_text(json.dumps(kept, indent=1) + "\n")
    metrics = {
        stage.metric: best.value if is_better else baseline,
        "baseline": baseline,
        "trials": len(done),
        "failed_trials": len(done) - len(finished),
    }
    return Result(metrics, {"search": record}, [describe_choice(stage, best, baseline, is_better)])


class Trials:
    """The trials of a search, one after the other; each is trained and evaluated in a folder of its own."""

    def __init__(self, stage: Search, context: Context) -> None:
        if stage.trained is None or stage.evaluated is None:
            raise StepError("search: its stages are filled in when a recipe is read; run it from a recipe")
        self.stage, self.context = stage, context
        self.trained, self.evaluated = stage.trained, stage.evaluated
        self.label = next(iter(stage.evaluated.models))
        self.models = context.checkpoints / "models"
        """The best model so far, under its trial's number."""

    def run(self) -> list[Trial]:
        """Return all trials. Raise StepError if the sampler does not repeat those of an earlier attempt."""
        if (refuse := load_optional(self.stage, "refuse_test_splits")) is not None:
            refuse(self.evaluated, replace(self.context, inputs=self._select_inputs("evaluated")))
        study = Study(self.stage, bind(self.stage.sampler, "sampler")(self.context.seed))
        done: list[Trial] = []
        with RowJournal(self.context.checkpoints / "trials.jsonl") as journal:
            self.context.recall(journal.tokens)
            for number in range(self.stage.trials):
                settings, name = study.ask(), str(number)
                if name not in journal:
                    before = self._count_tokens()
                    trial = self.make_trial(number, settings, done)
                    journal.add({name: vars(trial) | {"settings": settings}}, {name: self._count_tokens() - before})
                    journal.flush()
                    self._remove_others([*done, trial])
                trial = Trial(**journal[name])
                if trial.settings != settings:
                    raise StepError(
                        f"search: trial {number} was made with {trial.settings}, and the sampler now gives {settings}; "
                        "run it with --fresh"
                    )
                study.tell(trial.value)
                done.append(trial)
                self._report(done)
        return done

    def make_trial(self, number: int, settings: Mapping[str, Value], done: list[Trial]) -> Trial:
        """Train and evaluate with some settings; keep the model if it is the best so far. A failure is a result."""
        started, folder = time.monotonic(), self.context.checkpoints / f"trial-{number}"
        changed = self.trained.model_dump(mode="json", by_alias=True)
        for path, value in settings.items():
            changed = replace_setting(changed, path, value)
        value, error, model = None, "", folder / "trained" / "outputs" / "model"
        try:
            self._run_part("trained", type(self.trained).model_validate(changed), folder / "trained", {})
            inputs = {f"models.{self.label}": model}
            self._run_part("evaluated", self.evaluated, folder / "evaluated", inputs)
            value = read_value(folder / "evaluated" / "outputs" / "report", self.label, self.stage.metric)
        except StepError as failure:
            error = str(failure)
        best = self.choose([trial for trial in done if trial.value is not None])
        if value is not None and (best is None or self.is_better(value, best.value)):
            self.models.mkdir(exist_ok=True)
            kept = self.models / str(number)
            shutil.rmtree(kept, ignore_errors=True)
            model.rename(kept)
        return Trial(number, settings, value, error, time.monotonic() - started)

    def _run_part(self, part: str, stage: BaseStage, folder: Path, inputs: Mapping[str, Path]) -> None:
        """Run one of the two stages in a folder, with its inputs; from its own checkpoints if it was interrupted."""
        shutil.rmtree(folder / "outputs", ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        run_task = load_optional(self.stage, part)
        assert run_task is not None
        run_task(
            stage,
            replace(
                self.context,
                inputs={**self._select_inputs(part), **inputs},
                folder=folder,
                checkpoints=folder / "checkpoints",
                seed=self.context.seed if stage.seed is None else stage.seed,
                on_progress=lambda event: self.context.on_progress(event) if "spent" in event else None,
            ),
        )

    def _select_inputs(self, part: str) -> dict[str, Path]:
        """Return the inputs of one of the two stages under its own names."""
        prefix = f"{part}."
        return {p.removeprefix(prefix): given for p, given in self.context.inputs.items() if p.startswith(prefix)}

    def choose(self, finished: list[Trial]) -> Any:
        """Return the best of some trials, of equal ones the first; None if there are none."""
        best = None
        for trial in finished:
            if best is None or self.is_better(trial.value, best.value):
                best = trial
        return best

    def is_better(self, one: float | None, other: float | None) -> bool:
        """Return whether a value is better than another."""
        assert one is not None
        assert other is not None
        return one > other if self.stage.direction == "maximize" else one < other

    def _remove_others(self, done: list[Trial]) -> None:
        """Remove the folder of the last trial, and all models but the best."""
        shutil.rmtree(self.context.checkpoints / f"trial-{done[-1].number}", ignore_errors=True)
        best = self.choose([trial for trial in done if trial.value is not None])
        for model in self.models.iterdir() if self.models.is_dir() else ():
            if best is None or model.name != str(best.number):
                shutil.rmtree(model)

    def _count_tokens(self) -> int:
        return self.context.spending.tokens + self.context.spending.checkpoint.tokens

    def _report(self, done: list[Trial]) -> None:
        trial, best = done[-1], self.choose([one for one in done if one.value is not None])
        if trial.value is not None:
            numbers = {name: float(v) for name, v in trial.settings.items() if not isinstance(v, str)}
            self.context.log(trial.number, value=trial.value, best=best.value, **numbers)
        self.context.progress(len(done), self.stage.trials)


def read_value(report: Path, model: str, metric: str) -> float:
    """Return a model's value of a metric in the report of an evaluation. Raise StepError without a finite one."""
    lines: list[Row] = json.loads((report / "results.json").read_text(encoding="utf-8"))["table"]
    values = {line["metric"]: line["value"] for line in lines if line["model"] == model and line["family"] == ALL}
    if values.get(metric) is None:
        raise StepError(f"search: the evaluation has no {metric} of {model}; it has {', '.join(values) or 'nothing'}")
    if not math.isfinite(values[metric]):  # no value is better than one that is no number, and none is worse
        raise StepError(f"search: the evaluation's {metric} of {model} is {values[metric]}")
    return float(values[metric])


def describe_choice(stage: Search, best: Trial, baseline: float, is_better: bool) -> str:
    """Return a sentence about the settings that were chosen."""
    if not is_better:
        own = f"{stage.train} with its own settings ({stage.metric} {baseline:.3f})"
        return f"none of {stage.trials} trials is better than {own}, whose model is kept"
    named = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in best.settings.items())
    return (
        f"trial {best.number} ({named}) is the best of {stage.trials}: {stage.metric} {best.value:.3f}, "
        f"{stage.train} {baseline:.3f}. It was chosen by this evaluation, so evaluate it by another one"
    )
