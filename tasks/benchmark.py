"""kind: benchmark — one table over several evaluations of the same methods, each trained with several seeds."""

from learning.data.rows import Row
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.methods import make_method_lines, normalise, read_runs
from schemas.stages.benchmark import Benchmark
from tasks.context import Context, Result


def run(stage: Benchmark, context: Context) -> Result:
    """Read the reports of all worlds, and write the table."""
    worlds = list(stage.reports)
    read = read_runs({world: context.input(f"reports.{world}") for world in worlds}, stage.metric)
    bounds = [stage.bounds[world] for world in worlds] if stage.bounds else None
    scores = {method: normalise(score_RW, bounds) for method, score_RW in read.items()}
    resampling = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": context.seed}
    table = make_method_lines(scores, worlds, stage.metric, **resampling)
    runs: dict[str, dict[str, list[float]]] = {
        method: {world: score_RW[:, w].tolist() for w, world in enumerate(worlds)} for method, score_RW in read.items()
    }
    results: Row = {"confidence": stage.confidence, "problems": len(worlds), "table": table}
    results |= {"comparisons": [], "gates": [], "runs": runs}
    write_report(context.output("report"), results, [])
    metrics = {f"{x['metric']}.{x['model']}": x["value"] for x in table if x["family"] == "all"}
    return Result({**metrics, "runs": sum(score_RW.size for score_RW in read.values())}, results)
