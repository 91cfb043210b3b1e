"""One rank of a group without Ray: does the jobs of a file, one after the other, and notes what it saw.

Run as a script: group_ranks.py FOLDER RANK. `jobs.json` in the folder says what is to be done.
"""

import hashlib
import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import distributed

from learning.parallel.group import ALONE, Group, gather_shards
from schemas.stages.union import Stage
from tasks.context import Context

TIMED = {"time", "tokens_per_second", "generation_seconds"}


class Stopped(Exception):
    """Interrupts a job, on every rank at the same step."""


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def do(job, folder, group):
    """One job: its stage on this rank, with what came of it in `folder/<name>`."""
    place = folder / job["name"] / str(group.rank)
    place.mkdir(parents=True)
    checkpoints = folder / f"checkpoints-of-{job['name']}"
    if group.main and job["after"]:
        shutil.copytree(folder / f"checkpoints-of-{job['after']}", checkpoints)
    elif group.main:
        checkpoints.mkdir()
    group.barrier()
    stage = TypeAdapter(Stage).validate_python(job["stage"])
    module = importlib.import_module(f"tasks.{stage.kind}")
    watched, events = watch(module, place), []

    def on_progress(event):
        events.append(event)
        if event.get("step") == job.get("stop") and "total" in event:
            raise Stopped

    inputs = {name: Path(path) for name, path in job["inputs"].items()}
    context = Context(inputs, place, checkpoints, seed=3, on_progress=on_progress, group=group)
    try:
        result = module.run(stage, context)
    except Stopped:
        return None
    finally:
        watched()
    digests = {str(p.relative_to(place)): digest(p) for p in sorted((place / "outputs").rglob("*")) if p.is_file()}
    lines = (place / "metrics.jsonl").read_text().splitlines()
    curve = [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]
    spent = sum(event.get("spent", 0) for event in events)
    (place / "told.json").write_text(
        json.dumps({"files": digests, "curve": curve, "metrics": result.metrics, "spent": spent})
    )
    return result


def watch(module, place):
    """Note the summed gradient of the first optimiser step, and what this rank holds of the model; returns the undo."""
    source = importlib.import_module(
        "learning.rl.update" if module.__name__ == "tasks.rl" else "learning.training.loop"
    )
    original, seen = source.clip_gradients, []

    def noting(model, max_norm):
        if not seen:
            seen.append(True)
            named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
            save_file({name: gather_shards(p.grad).contiguous() for name, p in named}, place / "gradient.safetensors")
            held = sum(local(p).numel() for _, p in named)
            (place / "held.json").write_text(json.dumps([held, sum(p.numel() for _, p in named)]))
        return original(model, max_norm)

    source.clip_gradients = noting
    return lambda: setattr(source, "clip_gradients", original)


def local(tensor):
    """What this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(file):
    """sha256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(folder, rank):
    """Do all jobs."""
    record = json.loads((folder / "jobs.json").read_text())
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(record["size"]), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(record["size"]), "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=record["size"])
    torch.set_num_threads(1)
    for job in record["jobs"]:
        do(job, Path(record["folder"]), Group(rank, record["size"], job["strategy"]) if job["strategy"] else ALONE)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
