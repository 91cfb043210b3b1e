"""A checkout with a small finished run of real files: a model folder, a table, curves, and a step that reads both."""

import json
import os
import secrets
import shutil
from pathlib import Path

from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.store import Store
from lineage.layout import Layout

STEPS = '''
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = {"model_type": "qwen3", "hidden_size": 8, "architectures": ["Qwen3ForCausalLM"]}


def model(context, *, fill: int = 1):
    """A model folder whose weights are all `fill`."""
    import torch
    from safetensors.torch import save_file

    folder = context.output("result")
    save_file({"w": torch.full((64, 8), float(fill)), "b": torch.arange(8.0)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))
    for step in range(3):
        context.log(step, loss=1.0 / (step + 1))
    print("made a model of", fill)


def table(context):
    pq.write_table(pa.table({"id": list(range(50)), "answer": [str(n * n) for n in range(50)]}),
                   context.output("result") / "rows.parquet")


def reads(context, *, log: str):
    """Says which sum of weights it saw, and which rows."""
    from safetensors.torch import load_file

    weights = load_file(context.input("inputs.model") / "model.safetensors")
    rows = pq.read_table(context.input("inputs.rows") / "rows.parquet").to_pylist()
    seen = {"sum": float(sum(w.sum() for w in weights.values())), "rows": sum(int(row["answer"]) for row in rows)}
    with open(log, "a") as file:
        file.write(json.dumps(seen) + "\\n")
    (context.output("result") / "seen.json").write_text(json.dumps(seen))
    return seen
'''
RECIPE = """
name: damage
stages:
  model: {kind: python, function: {use: "STEPS:model", fill: 3}}
  twin: {kind: python, function: {use: "STEPS:model", fill: 4}}
  table: {kind: python, function: "STEPS:table"}
  reads: {kind: python, function: {use: "STEPS:reads", log: "LOG"}, inputs: {model: model, rows: table}}
"""
TRUTH = {"sum": 64 * 8 * 3 + 28.0, "rows": sum(n * n for n in range(50))}
"""What `reads` sees in undamaged inputs."""


class Lab:
    """A checkout; `ran` gives the states of a run by step."""

    def __init__(self, root: Path):
        self.root, self.layout, self.store = root, Layout(root), Store(Layout(root))
        self.log = root / "seen.jsonl"

    def write(self, recipe: str = RECIPE, steps: str = STEPS) -> str:
        """Write recipe and steps; returns the name of the steps' module, another for every checkout."""
        module = f"damage_steps_{os.getpid()}_{secrets.token_hex(4)}"
        self.root.mkdir(parents=True)
        (self.root / f"{module}.py").write_text(steps)
        (self.root / "damage.yaml").write_text(recipe.replace("STEPS", module).replace("LOG", str(self.log)))
        return module

    def plan(self):
        return plan_recipe(self.root / "damage.yaml", self.layout)

    def verdicts(self):
        return explain_plan(self.plan(), self.layout)

    def run(self, executor="inprocess"):
        return run_plan(self.plan(), self.layout, executor=executor, prefect=False).states

    def states(self, executor="inprocess"):
        return {name: state.state for name, state in self.run(executor).items()}

    def step(self, name):
        return self.plan().step(name)

    def folder(self, name):
        step = self.step(name)
        return self.layout.artifact(step.kind, step.key)

    def found(self, name):
        step = self.step(name)
        return self.store.find(step.kind, step.key)

    def seen(self):
        """What every call of `reads` has seen."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.is_file() else []

    def forget(self, name):
        """Remove the artifact of a step, so that a run makes it again."""
        shutil.rmtree(self.folder(name))


def flipped(content: bytes, at: int | None = None) -> bytes:
    """The bytes with one bit of one of them changed, in the middle unless said otherwise."""
    at = len(content) // 2 if at is None else at
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def write_over(path: Path, content: bytes) -> None:
    """Write into the very file, with the time of modification that it had."""
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def harms(outside: Path):
    """Ways to damage a file, by name; `outside` is a folder for what a link leads to."""

    def link(path: Path) -> None:
        outside.mkdir(exist_ok=True)
        shutil.copy2(path, outside / path.name)
        path.unlink()
        path.symlink_to(outside / path.name)

    def replaced(path: Path) -> None:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(flipped(content))

    return {
        "flipped": lambda path: path.write_bytes(flipped(path.read_bytes())),
        "flipped, times restored": lambda path: write_over(path, flipped(path.read_bytes())),
        "first byte": lambda path: write_over(path, flipped(path.read_bytes(), 0)),
        "last byte": lambda path: write_over(path, flipped(path.read_bytes(), path.stat().st_size - 1)),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "emptied": lambda path: path.write_bytes(b""),
        "grown": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
        "removed": Path.unlink,
        "another file": replaced,
        "a link to the same bytes": link,
        "a folder": lambda path: (path.unlink(), path.mkdir()),
        "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    }
