"""kind: collect with `dataset` — steps that were recorded elsewhere, if they fit the env."""

import contextlib

from learning.control.stepping.minari_files import find_minari, read_minari
from learning.control.stepping.recorded_episodes import gather_recorded
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.step_tables import read_tables
from learning.control.stepping.transitions import write_transitions
from learning.control.stepping.worlds import require_libraries
from learning.lookup import bind
from schemas.errors import StepError
from schemas.stages.collect import Collect
from tasks.collect import describe_transitions
from tasks.context import Context, Result


def run(stage: Collect, context: Context) -> Result:
    """Write the first episodes or steps of a data set as transitions."""
    require_libraries()
    folder = context.input("dataset")
    world = bind(stage.env, "env", context.inputs)()
    with contextlib.closing(world):
        spaces = read_spaces(world)
        if spaces.agents > 1:
            raise StepError("dataset: the env is a team, and recorded steps are those of one agent")
        data = find_minari(folder)
        episodes = read_tables(folder, world, spaces) if data is None else read_minari(data, world, spaces)
        transitions = gather_recorded(
            episodes, spaces, most_episodes=stage.episodes, most_steps=stage.environment_steps
        )
    write_transitions(context.output("transitions"), transitions)
    return describe_transitions(transitions)
