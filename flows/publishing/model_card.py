"""README.md and posttrain.json of an exported model: how it was made, what was measured, who let it pass."""

import json
from pathlib import Path
from typing import Any

from flows.serving.models import Chosen
from lineage.layout import Layout
from lineage.tracing.evidence import FILE, collect_evidence
from schemas.base import JsonObject
from schemas.errors import PosttrainError

TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [posttrain]
---

# {name}

{origin}
"""
USE = """\

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
messages = [{"role": "user", "content": "..."}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))
```
"""


def write_model_card(layout: Layout, chosen: Chosen, folder: Path) -> None:
    """Write README.md: origin, data, evaluations with intervals, gates and approvals, as far as this checkout knows.

    `posttrain.json` has the evaluations, gates and approvals for programs. Raise PlanError if the audit log does not
    verify.
    """
    bom = _read_bom(layout, chosen)
    evidence = collect_evidence(layout, chosen.key) if chosen.key else None
    origin = f"Exported by posttrain from `{chosen.description}`."
    parts = [TEXT.format(name=chosen.name, origin=origin)]
    if chosen.digest:
        parts.append(f"\nContent digest: `{chosen.digest}`.\n")
    if bom is not None:
        parts += [_list_materials(bom), _tabulate_metrics(bom)]
    if evidence is not None:
        parts.append(_list_evidence(evidence))
        (folder / FILE).write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n")
    gguf = any(path.suffix == ".gguf" for path in folder.iterdir())
    (folder / "README.md").write_text("".join(parts) + ("" if gguf else USE))


def _read_bom(layout: Layout, chosen: Chosen) -> JsonObject | None:
    """Return the bill of materials of a model of this checkout; None for any other model."""
    from lineage.exports.model_bom import make_model_bom  # imports pyarrow

    if not chosen.key:
        return None
    try:
        return json.loads(make_model_bom(layout, chosen.key))
    except PosttrainError:
        return None


def _list_materials(bom: JsonObject) -> str:
    lines = [
        f"- {component['type']}: `{component['name']}`"
        for component in bom.get("components", [])
        if component["type"] in ("machine-learning-model", "data")
    ]
    return "\n## Made from\n\n" + "\n".join(sorted(lines)) + "\n" if lines else ""


def _tabulate_metrics(bom: JsonObject) -> str:
    card = bom["metadata"]["component"].get("modelCard", {})
    metrics = card.get("quantitativeAnalysis", {}).get("performanceMetrics", [])
    lines = [
        f"| {metric['type']} | {metric.get('slice', 'all')} | {_round(metric['value'])} | "
        f"{_round(interval.get('lowerBound'))} to {_round(interval.get('upperBound'))} |"
        for metric in metrics
        for interval in [metric.get("confidenceInterval", {})]
    ]
    if not lines:
        return ""
    head = "\n## Evaluations\n\n| metric (evaluation) | family | value | interval |\n|---|---|---|---|\n"
    return head + "\n".join(lines) + "\n"


def _list_evidence(evidence: JsonObject) -> str:
    """Return the moves of champions, gates and decisions about a model; empty if there are none."""
    lines = [
        f"- {move['action']} as version {move['version']} of `{move['of']}` on {move['at'][:10]} by {move['who']}"
        for move in evidence["champion"]
    ]
    for evaluation in evidence["evaluations"]:
        where = f"`{evaluation['recipe']}.{evaluation['step']}`"
        lines += [
            f"- gate of {where} {'passed' if gate.get('passed') else 'failed'}: {gate['text']}"
            for gate in evaluation["gates"]
        ]
        lines += [f"- gate of {where} {decision}" for decision in evaluation["decisions"]]
    if not lines:
        return ""
    note = f"\n`{FILE}` has these entries with their signatures.\n"
    return "\n## Gates and approvals\n\n" + "\n".join(" ".join(line.split()) for line in lines) + "\n" + note


def _round(number: Any) -> str:
    return f"{float(number):.3f}" if number is not None else "?"
