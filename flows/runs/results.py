"""What the finished steps of a run measured, from their manifests."""

from dataclasses import asdict

from flows.execution.gates import judge_gates
from flows.execution.results import read_notices, read_scores
from flows.execution.run_log import read_plan
from flows.runs.lookup import find_run
from lineage.artifacts.store import Store
from lineage.layout import Layout


def list_result_records(run: str | None, layout: Layout) -> list[dict[str, object]]:
    """Return step, kind, seconds, metrics, scores, gates and notices of every finished step of a run.

    `metrics` of an evaluation are those with the name of a model: `accuracy.tuned`.
    """
    plan, store = read_plan(layout, find_run(run, layout)), Store(layout)
    records: list[dict[str, object]] = []
    for step in plan.steps:
        manifest = store.find(step.kind, step.key)
        if manifest is None:
            continue
        scores = read_scores(manifest)
        bare = {row["metric"] for row in scores}
        records.append(
            {
                "step": step.name,
                "kind": step.kind,
                "seconds": manifest.seconds,
                "metrics": {name: value for name, value in manifest.metrics.items() if name not in bare},
                "scores": scores,
                "gates": [asdict(gate) for gate in judge_gates(step, manifest, layout)],
                "notices": read_notices(manifest),
            }
        )
    return records
