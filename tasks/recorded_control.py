"""kind: evaluate_control with `record` — the same evaluation, and GIFs of its first episodes in the report.

The episodes are played again, from the same starts with the same actions, so that the numbers of an evaluation do not
depend on whether it is recorded.
"""

import re
from dataclasses import replace

import pyarrow.parquet as pq
import torch

from learning.control.reports.pictures import try_picture
from learning.control.reports.recordings import Film, FilmedWorlds, film_episode, read_rate, write_gif
from learning.control.stepping.worlds import Make, Worlds, require_libraries
from learning.data.rows import Row
from learning.lookup import bind
from schemas.errors import StepError
from schemas.stages.evaluate_control import EvaluateControl, Recording
from tasks import evaluate_control
from tasks.context import Context, Result

FOLDER = "recordings"
"""Folder of the GIFs in the report."""


def run(stage: EvaluateControl, context: Context) -> Result:
    """Refuse a world without pictures, then evaluate and record. Raise StepError also if episodes do not repeat."""
    require_libraries()
    assert stage.record is not None
    make = bind(stage.env, "env", context.inputs)
    try:
        try_picture(make)
    except StepError as error:
        raise StepError(f"record: {error}") from error
    result = evaluate_control.run(stage, context)
    earned = _read_returns(context)
    recordings: list[Row] = []
    for number, name in enumerate([*stage.policies, *stage.models]):
        for made in record(
            stage, stage.record, context, name, make, f"{number}-{re.sub(r'[^a-zA-Z0-9_.-]', '-', name)}"
        ):
            if made["return"] != earned[name, made["start"]]:
                raise StepError(
                    f"record: the episode of {name} from start {made['start']} returned {earned[name, made['start']]}, "
                    f"and {made['return']} when it was played again: draw all random numbers from `self.np_random`"
                )
            recordings.append(made)
    return replace(result, details={**result.details, FOLDER: recordings})


def record(
    stage: EvaluateControl, recording: Recording, context: Context, name: str, make: Make, prefix: str
) -> list[Row]:
    """Play the first episodes of what acts under a name, write them as GIFs, and return a row for each."""
    folder = context.output("report") / FOLDER
    folder.mkdir(exist_ok=True)
    world = Worlds(make, 1, context.seed, "spaces")
    world.close()
    actor = evaluate_control.load_actor(stage, context, name, world.spaces)
    torch.manual_seed(context.seed)  # as the evaluation does before the episodes of each policy
    tasks = evaluate_control.make_tasks(stage, context, name, make)
    rows = []
    for start in range(recording.episodes):
        worlds = FilmedWorlds(make, 1, context.seed, f"report.{start}", tasks)
        film = Film(recording.max_frames, recording.max_side)
        earned = film_episode(worlds, actor, film, explore=stage.explore)
        file = folder / f"{prefix}-{start}.gif"
        write_gif(file, film, read_rate(worlds.worlds[0]))
        worlds.close()
        shown = {"steps": film.steps[-1], "frames": len(film.steps), "return": earned}
        rows.append({"model": name, "start": start, "file": f"{FOLDER}/{file.name}", **shown})
    return rows


def _read_returns(context: Context) -> dict[tuple[str, int], float]:
    """Return what each policy earned from each start in the first world, as the evaluation has written it."""
    rows = pq.read_table(context.output("report") / "samples.parquet").to_pylist()
    return {(row["model"], int(row["id"].removeprefix("start-"))): row["score"] for row in rows if row["sample"] == 0}
