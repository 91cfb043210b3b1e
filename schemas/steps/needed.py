"""Which steps a recipe still needs once a model from outside has taken the place of a stage."""

from schemas.stages.control import Control
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch
from schemas.stages.practice import Practice
from schemas.stages.preference import Preference
from schemas.stages.python import Python
from schemas.stages.rl import Rl
from schemas.stages.search import Search
from schemas.steps.step_info import StepInfo


def leave_out_unneeded(steps: dict[str, StepInfo]) -> dict[str, StepInfo]:
    """Return the steps that reinforce, merge or evaluate models, and all that they need, in the same order.

    Functions of the user count where they read what such a step made: they report on it. Other kinds only prepare
    something, which nothing needs once its user is gone.
    """
    trainings = (Rl, Preference, Practice, Merge, MergeSearch, Search, Control)
    purposes = (*trainings, Evaluate, EvaluateRewards, EvaluateControl)
    kept = {name for name, info in steps.items() if isinstance(info.stage, purposes)}
    for name, info in steps.items():
        if isinstance(info.stage, Python) and kept.intersection(info.needs):
            kept.add(name)
    frontier = list(kept)
    needed = set(frontier)
    while frontier:
        more = [name for name in steps[frontier.pop()].needs if name not in needed]
        needed.update(more)
        frontier += more
    return {name: info for name, info in steps.items() if name in needed}
