"""A small finished run made by hand: lessons → lessons_clean → tuned (with a base), and a model of raw lessons."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.artifacts.store import Store
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.manifest import InputRecord, Manifest
from schemas.plan import Input, Plan, Step
from schemas.recipe.load import load_recipe

RECIPE = """\
schema_version: 1
name: small
seed: 7
vars: {rate: 0.1}
stages:
  base:
    kind: init
    config: {model_type: qwen3}
    tokenizer: {use: characters}
    max_length: 32
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 3, seed: 1}]
    teacher: {use: answer}
  lessons_clean:
    kind: curate
    data: lessons
  tuned:
    kind: sft
    model: base
    data: lessons_clean
    learning_rate: ${vars.rate}
"""


class Maker:
    """Publishes artifacts into the store of a fresh checkout."""

    def __init__(self, root):
        self.layout = Layout(root)
        self.store = Store(self.layout)
        self.made = {}

    def make(self, step, kind, files, types, inputs=(), *, salt="", source=None, curves=(), **more):
        """`files`: output name to {path: bytes or a list of rows}; `inputs`: (port, step, output)."""
        settings = more.pop("settings", {})
        identity = {"made": step + salt, "settings": settings}
        key = digest_of(identity)
        folder = self.layout.work(key) / "tmp-x"
        for output, content in files.items():
            for path, body in content.items():
                target = folder / "outputs" / output / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(body, bytes):
                    target.write_bytes(body)
                else:
                    pq.write_table(pa.Table.from_pylist(body), target)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in curves))
        records = [self._input(*entry) for entry in inputs]
        if source:
            records.append(InputRecord(port="outside", source=source, digest="ab" * 32, type="directory"))
        facts = {
            "recipe": "small",
            "run": "run-1",
            "seed": 7,
            "started": f"2026-01-01T00:00:{len(self.made):02d}Z",
            "seconds": 1.5,
        }
        manifest = Manifest(
            key=key,
            kind=kind,
            identity=identity,
            step=step,
            inputs=tuple(records),
            outputs=self.store.describe(folder, types),
            **facts | more,
        )
        self.made[step] = self.store.publish(folder, manifest)
        return self.made[step]

    def _input(self, port, step, output):
        upstream = self.made[step]
        made = upstream.outputs[output]
        return InputRecord(port=port, step=step, key=upstream.key, output=output, digest=made.digest, type=made.type)

    def plan(self, **settings):
        """The plan whose steps were made."""
        steps = tuple(
            Step(
                name=name,
                stage=name,
                kind=m.kind,
                settings=m.identity["settings"] | settings,
                seed=7,
                key=m.key,
                code={},
                identity=m.identity,
                outputs={output: o.type for output, o in m.outputs.items()},
                inputs=tuple(
                    Input(port=i.port, steps=(i.step,), output=i.output, type=i.type) for i in m.inputs if i.step
                ),
            )
            for name, m in self.made.items()
        )
        file = self.layout.root / "recipes/small.yaml"
        return Plan(recipe="small", file="recipes/small.yaml", steps=steps, resolved=load_recipe(file).resolved)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


@pytest.fixture
def small_run(maker):
    """The run of RECIPE; row b is dropped by lessons_clean."""
    return make_small_run(maker)


def make_small_run(maker):
    """Make the artifacts of the run of RECIPE."""
    rows = [{"id": name, "answer": name.upper()} for name in "abc"]
    (maker.layout.root / "recipes").mkdir()
    (maker.layout.root / "recipes/small.yaml").write_text(RECIPE)
    maker.make("base", "init", {"policy": {"model.safetensors": b"w0", "config.json": b"{}"}}, {"policy": "policy"})
    maker.make("lessons", "synthesize", {"data": {"rows.parquet": rows}}, {"data": "chat"}, source="path:./words")
    dropped = [{"row": 1, "id": "b", "reason": "contaminated", "detail": "holds problem 3"}]
    maker.make(
        "lessons_clean",
        "curate",
        {"data": {"rows.parquet": [rows[0], rows[2]]}, "report": {"dropped.parquet": dropped}},
        {"data": "chat", "report": "directory"},
        [("data", "lessons", "data")],
        details={"dropped": {"contaminated": 1, "length": 0}},
        metrics={"kept": 2, "dropped": 1},
    )
    maker.make(
        "tuned",
        "sft",
        {"policy": {"model.safetensors": b"w1"}},
        {"policy": "policy"},
        [("model", "base", "policy"), ("data", "lessons_clean", "data")],
        settings={"learning_rate": 0.1},
        metrics={"loss": 0.25, "converged": True, "note": "fine"},
        curves=[{"step": n, "time": 100.0 + n, "loss": 1.0 / n} for n in (1, 2, 4)],
    )
    maker.make(
        "raw", "sft", {"policy": {"model.safetensors": b"w2"}}, {"policy": "policy"}, [("data", "lessons", "data")]
    )
    return maker
