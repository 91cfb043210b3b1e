"""A curate step killed while its signatures are on disk starts again, to the same bytes, and leaves nothing behind."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.steps.step import run_step
from flows.steps.step_spec import StepSpec
from lineage.artifacts.store import Store
from lineage.layout import Layout
from tests.waiting import wait_for

RECIPE = """
name: killed
stages:
  clean: {kind: curate, data: "path:./data", fuzzy_dedup: {num_perm: 64, threshold: 0.8}, decontaminate: null}
"""


def write_shards(folder, rows=12_000):
    folder.mkdir()
    letters = np.random.default_rng(0).integers(97, 123, (rows, 150), dtype=np.uint8)
    letters[1::10] = letters[::10]
    letters[2::10] = letters[::10]
    letters[2::10, 70] = ord("-")
    prompt = [[{"role": "user", "content": row.tobytes().decode()}] for row in letters]
    replies = [[{"role": "assistant", "content": "yes"}]] * rows
    fixed = {name: [""] * rows for name in ("answer", "family", "metadata")}
    table = pa.table({"id": [f"r{i}" for i in range(rows)], "prompt": prompt, **fixed, "completion": replies})
    for number in range(3):
        pq.write_table(table.slice(number * rows // 3, rows // 3), folder / f"rows-{number:05d}.parquet")


def test_killed_it_starts_again_and_nothing_is_left_of_the_first_try(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    write_shards(tmp_path / "data")
    layout, other = Layout(tmp_path / "state"), Layout(tmp_path / "undisturbed")
    layout.root.mkdir()
    other.root.mkdir()
    plan = plan_recipe(tmp_path / "recipe.yaml", layout)
    step = plan.step("clean")
    spec = StepSpec(layout.root, "r", plan.recipe, (Path(plan.file).parent,), "1", step, inputs={})
    process = multiprocessing.get_context("spawn").Process(target=run_step, args=(spec,))
    process.start()
    work = layout.work(step.key)

    def spilled():
        return any(path.stat().st_size for path in work.glob("tmp-*/spill-*/minhash/signatures"))

    wait_for(spilled, 240, alive=process.is_alive)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert Store(layout).find("curate", step.key) is None
    assert list(work.glob("tmp-*/spill-*"))
    made = [
        run_plan(plan_recipe(tmp_path / "recipe.yaml", at), at, executor="inprocess", prefect=False)
        for at in (layout, other)
    ]
    manifests = [outcome.states["clean"].manifest for outcome in made]
    assert manifests[0].outputs == manifests[1].outputs
    assert manifests[0].metrics["dropped.exact_duplicate"] == 1200
    assert manifests[0].metrics["dropped.near_duplicate"] == 1200
    assert list((layout.state / "work").iterdir()) == []
