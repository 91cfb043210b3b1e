"""Task files of lm-eval with made-up problems, in place of tasks whose data are not on this machine (`--stand-ins`).

A task keeps its name and its kind of output; its metrics and filters, too, where they are lm-eval's own.
"""

import json

import yaml

from flows.planning.lm_eval_check import TaskFiles, find_shipped_folder
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically
from schemas.base import JsonObject
from schemas.references import STAND_INS

PROBLEMS = 16
GENERATE = "generate_until"
METRICS: dict[str, tuple[str, ...]] = {
    GENERATE: ("exact_match",),
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("acc", "perplexity"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}
"""Kinds of output to metrics that need nothing but the problem."""
TARGETS: dict[str, JsonObject] = {
    GENERATE: {"doc_to_target": "{{answer}}", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}},
    "multiple_choice": {"doc_to_choice": "{{choices}}", "doc_to_target": "label"},
    "loglikelihood": {"doc_to_target": "{{answer}}"},
    "loglikelihood_rolling": {"doc_to_target": "{{question}} {{answer}}"},
}


def replace_missing_tasks(task: JsonObject, layout: Layout) -> JsonObject:
    """Return what an evaluation asks of lm-eval, with made-up problems for those of its tasks whose data are missing.

    A group keeps its tasks.
    A task with an `include_path` of its own stays as it is.
    """
    shipped = find_shipped_folder()
    if shipped is None or task.get("include_path") is not None:
        return task
    files = TaskFiles(None, shipped)
    missing = {
        leaf: read for name in task["tasks"] for leaf, read in files.list_tasks(name) if any(files.find_problems(leaf))
    }
    if not missing:
        return task
    written = {name: _make_task(name, settings) for name, settings in missing.items()}
    folder = layout.make_state() / STAND_INS / f"lm-eval-{digest_of(written)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(
        folder / "problems.jsonl", "".join(f"{json.dumps(_make_problem(i))}\n" for i in range(PROBLEMS))
    )
    for name, settings in written.items():
        write_text_atomically(folder / f"{name}.yaml", yaml.safe_dump(settings, sort_keys=False))
    return task | {"include_path": f"path:{folder}"}


def _make_task(name: str, shipped: JsonObject) -> JsonObject:
    kind = str(shipped.get("output_type") or GENERATE)
    kind = kind if kind in METRICS else GENERATE
    listed = [one for one in shipped.get("metric_list") or () if isinstance(one, dict)]
    own = [one for one in listed if one.get("metric") in METRICS[kind]]
    filters = shipped.get("filter_list") if len(own) == len(listed) else None
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "problems.jsonl"}},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": kind,
        "doc_to_text": "" if kind == "loglikelihood_rolling" else "{{question}}",
        **TARGETS[kind],
        "metric_list": own or [{"metric": metric} for metric in METRICS[kind]],
        **({"filter_list": filters} if filters else {}),
        "metadata": {"version": 0.0},
    }


def _make_problem(number: int) -> JsonObject:
    first, second = 1 + number, 1 + number * 7 % 5
    answer, label = first + second, number % 4
    choices = [str(answer + place - label) for place in range(4)]
    return {"question": f"{first} + {second} =", "answer": str(answer), "choices": choices, "label": label}
