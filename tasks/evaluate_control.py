"""kind: evaluate_control — episodes of policies from the same starts: a table with intervals, differences, gates."""

import numpy as np

from learning.control.aggregates import make_run_lines
from learning.control.playing import play
from learning.control.policy import load_control_policy
from learning.control.worlds import Worlds, require_libraries
from learning.data.rows import Row
from learning.evaluation.evaluation import Comparison, Scores, compute_values, make_comparisons, make_table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.gate_statistics import check_gates, judge_gates
from learning.lookup import bind
from learning.models.policy import set_determinism
from schemas.stages.evaluate_control import EvaluateControl
from tasks.context import Context, Result


def run(stage: EvaluateControl, context: Context) -> Result:
    """Play `episodes` starts with every policy, and report; `flows` acts on the gates."""
    require_libraries()
    set_determinism(context.seed, context.num_threads)
    make, names = bind(stage.env, "env"), list(stage.models)
    worlds = Worlds(make, 1, context.seed, "spaces")
    worlds.close()
    compared = Comparison(
        stage.models, stage.metrics, stage.confidence, stage.num_bootstrap, stage.gate, threshold=np.inf
    )
    check_gates(compared, names, [])
    scores: dict[str, np.ndarray] = {}
    samples: list[Row] = []
    for done, name in enumerate(names):
        policy = load_control_policy(context.input(f"models.{name}"))
        worlds.spaces.require(policy.spaces, f"models.{name}")
        return_P = play(make, policy.actor, range(stage.episodes), context.seed, "report")
        scores[name] = return_P[:, None]
        samples += make_sample_rows(name, return_P)
        context.progress(done + 1, len(names))
    measured = Scores(scores, [None] * stage.episodes, first=names[0])
    values = compute_values(compared, measured)
    resampling = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": context.seed}
    results: Row = {
        "confidence": stage.confidence,
        "problems": stage.episodes,
        "table": make_table(compared, measured, context.seed) + make_run_lines(values, **resampling),
        "comparisons": make_comparisons(compared, measured, context.seed),
        "gates": judge_gates(compared, measured, context.seed),
    }
    write_report(context.output("report"), results, samples)
    metrics: dict[str, float | int] = {"episodes": stage.episodes}
    for line in results["table"]:
        metrics[f"{line['metric']}.{line['model']}"] = line["value"]
        if line["model"] == names[-1]:
            metrics[line["metric"]] = line["value"]
    metrics["gates_failed"] = sum(not gate["passed"] for gate in results["gates"])
    return Result(metrics, results)


def make_sample_rows(name: str, return_P: np.ndarray) -> list[Row]:
    """Return a row per episode, in the columns that evaluations have."""
    return [
        {
            "model": name,
            "id": f"start-{start}",
            "family": None,
            "sample": 0,
            "prompt": "",
            "answer": None,
            "completion": "",
            "truncated": False,
            "score": float(earned),
        }
        for start, earned in enumerate(return_P)
    ]
