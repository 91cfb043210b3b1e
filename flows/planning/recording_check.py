"""A check before a run that the worlds whose episodes are recorded have pictures."""

import importlib.util
from collections.abc import Iterator
from functools import partial

from schemas.errors import Problem, StepError
from schemas.recipe.load import Recipe
from schemas.stages.evaluate_control import EvaluateControl

LONGEST_CALL = 120.0
"""Seconds after which a world that is made before a run counts as one that never begins."""


def find_recording_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem per stage with `record` whose world has no pictures, or cannot make them on this machine.

    The world is made, which takes seconds. One that reads what a stage makes is known only when the step begins.
    """
    for info in recipe.steps.values():
        stage = info.stage
        if not isinstance(stage, EvaluateControl) or stage.record is None:
            continue
        if importlib.util.find_spec("gymnasium") is None or any(port.path.startswith("env.") for port in info.ports):
            continue
        # few recipes need the user's own code, and what it takes to call it
        from flows.planning.apart import call_apart
        from flows.planning.reward_tests import find_own_code

        find_own_code(recipe)
        try:
            call_apart(partial(_try_world, stage), "the env", LONGEST_CALL)
        except StepError as error:
            yield info.problem("record", str(error))


def _try_world(stage: EvaluateControl) -> None:
    """Raise StepError if the world of a stage has no pictures."""
    from learning.control.reports.pictures import try_picture  # imports gymnasium
    from learning.lookup import bind  # imports numpy

    try:
        try_picture(bind(stage.env, "env"))
    except StepError:
        raise
    except Exception as error:  # a world of the user's may raise anything
        raise StepError(f"the env cannot be made: {type(error).__name__}: {error}") from error
