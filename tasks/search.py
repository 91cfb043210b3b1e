"""kind: search — settings of a training stage, chosen by an evaluation of what they train."""

import json
import math
import shutil
from pathlib import Path

from learning.data.rows import Row
from learning.evaluation.evaluation import ALL
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.stages.search import Search
from tasks.context import Context, Result
from tasks.search_trials import Trial, Trials


def run(stage: Search, context: Context) -> Result:
    """Write the best model and the record of all trials; trials of an earlier attempt are not repeated."""
    trials = Trials(stage, context, read_value)
    done, baseline = trials.run(), trials.baseline
    best = trials.choose(done)
    if best is None or best.value is None:
        raise StepError(f"search: all {len(done)} trials failed; the first: {done[0].error}")
    if baseline is None:
        baseline = read_value(context.input("evaluate"), trials.label, stage.metric)
    is_better = trials.is_better(best.value, baseline)
    tested = trials.test(best if is_better else None, done)
    own = trials.models / "baseline" / "0" if stage.seeds else context.input("train")
    model = trials.models / str(best.number) / "0" if is_better else own
    if stage.test_seeds:
        model = trials.models / ("test-best" if is_better else "test-baseline")
    shutil.copytree(model, context.output("model"), dirs_exist_ok=True)
    record: JsonObject = {
        "metric": stage.metric,
        "direction": stage.direction,
        "baseline": baseline,
        "best": best.number if is_better else None,
        "settings": dict(best.settings) if is_better else {},
        "seeds": stage.seeds,
        "test_seeds": stage.test_seeds,
        "tested": tested,
        "environment_steps": sum(trial.environment_steps for trial in done),
        "trials": [vars(trial) | {"settings": dict(trial.settings)} for trial in done],
    }
    kept = {**record, "trials": [{k: v for k, v in line.items() if k != "seconds"} for line in record["trials"]]}
    (context.output("trials") / "trials.json").write_text(json.dumps(kept, indent=1) + "\n")
    chosen = best.value if is_better else baseline
    metrics = {
        stage.metric: chosen,
        "baseline": baseline,
        "trials": len(done),
        "failed_trials": sum(trial.value is None for trial in done),
        "environment_steps": record["environment_steps"],
    }
    if tested:  # what chose is no result: those of the other seeds are
        results = {name: sum(values) / len(values) for name, values in tested.items()}
        shown = results["best" if is_better else "baseline"]
        metrics |= {stage.metric: shown, "baseline": results["baseline"], "chosen_by": chosen}
    return Result(metrics, {"search": record}, [describe_choice(stage, best, baseline, is_better)])


def read_value(report: Path, model: str, metric: str) -> float:
    """Return a model's value of a metric in the report of an evaluation. Raise StepError without a finite one."""
    lines: list[Row] = json.loads((report / "results.json").read_text(encoding="utf-8"))["table"]
    values = {line["metric"]: line["value"] for line in lines if line["model"] == model and line["family"] == ALL}
    named = [name for name in values if name.startswith(f"{metric}_")]  # a metric's options are part of its name
    if metric not in values and len(named) == 1:
        metric = named[0]
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
    assert best.value is not None
    named = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in best.settings.items())
    return (
        f"trial {best.number} ({named}) is the best of {stage.trials}: {stage.metric} {best.value:.3f}, "
        f"{stage.train} {baseline:.3f}. It was chosen by this evaluation, so evaluate it by another one"
    )
