"""The page for a person who decides about a gate: tests, table, samples side by side, lineage, cost."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from flows.execution.approval import ApprovalRequest
from flows.execution.execute import Execution
from lineage.artifacts.store import Store
from lineage.reports.formatting import format_duration
from schemas.manifest import Manifest
from schemas.plan import Plan, Step

SAMPLES = 12
"""Problems shown side by side."""
LONG = 240
"""Characters of a completion that are shown."""


class Sample(TypedDict):
    """A problem with the completions of all models, as an evaluation keeps it."""

    prompt: str
    answer: object
    completions: dict[str, str]
    scores: dict[str, float | None]


def summarise_request(question: ApprovalRequest, link: str) -> str:
    """Return the request in a few lines, shown above the form."""
    return (
        f"**{question.step.name}**: a gate on `{question.gate.name}` did not pass.\n\n{question.gate.text}\n\n"
        f"[The evidence: tests, samples, lineage, cost]({link})"
    )


def make_evidence_page(execution: Execution, question: ApprovalRequest) -> str:
    """Return the whole page as markdown."""
    manifest, plan = question.manifest, execution.plan
    made = _find_ancestors(plan, question.step, Store(execution.layout))
    table = Store(execution.layout).output_folder(manifest.kind, manifest.key, "report") / "table.md"
    parts = [
        f"# {question.step.name}: approve or reject",
        f"The gate on `{question.gate.name}` did not pass. Run `{execution.run}` of `{plan.file}`; the key of the "
        f"evaluation is `{manifest.key[:16]}`. If you approve, the run continues as if the gate had passed.",
        "## Gates",
        make_gate_table(manifest.details.get("gates", [])),
    ]
    if table.is_file():
        parts += ["## Results", table.read_text(encoding="utf-8")]
    if samples := manifest.details.get("samples"):
        parts += ["## Samples side by side", make_sample_table(samples)]
    parts += ["## Lineage", _make_lineage_table(made), "## Cost", _describe_cost([*made.values(), manifest])]
    return "\n\n".join(parts)


def make_gate_table(gates: Sequence[Mapping[str, object]]) -> str:
    """Return a table with one row per gate."""
    rows = [
        [str(i), str(g.get("metric", "")), "passed" if g.get("passed") else "**failed**", str(g.get("text", ""))]
        for i, g in enumerate(gates)
    ]
    return _make_table(["gate", "metric", "", "measured and required"], rows)


def make_sample_table(samples: Sequence[Sample]) -> str:
    """Return a table of every model's completions for the same problems, with their scores."""
    models = list(samples[0]["completions"])
    rows = [
        [
            one["prompt"],
            str(one["answer"]),
            *(_format_score(one["scores"][m]) + " " + one["completions"][m] for m in models),
        ]
        for one in samples[:SAMPLES]
    ]
    return _make_table(["problem", "answer", *models], rows)


def _format_score(score: float | None) -> str:
    return "?" if score is None else f"{score:g}:"


def _find_ancestors(plan: Plan, step: Step, store: Store) -> dict[str, Manifest]:
    """Return everything that an evaluation was made from, in the order of the plan."""
    ancestors = {name for step_input in step.inputs for name in step_input.steps}
    for before in reversed(plan.steps):
        if before.name in ancestors:
            ancestors |= {name for step_input in before.inputs for name in step_input.steps}
    manifests = {s.name: store.find(s.kind, s.key) for s in plan.steps if s.name in ancestors}
    return {name: manifest for name, manifest in manifests.items() if manifest is not None}


def _make_lineage_table(made: dict[str, Manifest]) -> str:
    rows = []
    for name, manifest in made.items():
        read = ", ".join(r.step or f"{r.source} {r.digest[:12]}" for r in manifest.inputs)
        outputs = ", ".join(f"{n} {o.digest[:12]}" for n, o in manifest.outputs.items())
        commit = f"{manifest.commit[:12]}{' with changes' if manifest.dirty else ''}" if manifest.commit else "–"
        rows.append([name, manifest.kind, manifest.key[:16], read, outputs, manifest.run, commit])
    return _make_table(["step", "kind", "key", "made from", "outputs", "run", "commit"], rows)


def _describe_cost(made: list[Manifest]) -> str:
    wall, cpu, gpu = (sum(getattr(m, what) for m in made) for what in ("seconds", "cpu_seconds", "gpu_seconds"))
    return f"{format_duration(wall)} of steps, {cpu:.0f} core-seconds, {gpu:.0f} GPU-seconds for all steps above."


def _make_table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_escape_cell(cell) for cell in cells) + " |" for cells in lines)


def _escape_cell(text: str) -> str:
    short = text if len(text) <= LONG else f"{text[:LONG]} …"
    return short.replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`").replace("<", "&lt;").replace("\n", " ⏎ ")
