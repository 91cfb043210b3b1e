"""A check before a run that generators of toy tasks have as many problems as the recipe asks them for."""

from collections.abc import Iterator

from schemas.errors import Problem, StepError
from schemas.recipe.load import Recipe
from schemas.steps.slots import Slot, identify_slot

TOY_TASKS = "learning.toy_tasks."


def find_count_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem per generator of a toy task that has fewer different problems than its `size`.

    Problems are drawn as their step draws them, in milliseconds. Those of reasoning-gym are left to their step: there a
    hundred may take ten seconds.
    """
    errors: dict[str, str] = {}
    for info in recipe.steps.values():
        for slot in info.slots:
            if _draws_problems(slot):
                content = identify_slot(slot)
                if content not in errors:
                    errors[content] = _draw(slot)
                if errors[content]:
                    yield info.problem(f"{slot.path}.size", errors[content])


def _draws_problems(slot: Slot) -> bool:
    return slot.signature.module.startswith(TOY_TASKS) and {"size", "split"} <= slot.signature.options.keys()


def _draw(slot: Slot) -> str:
    """Return the error of a generator; empty if it makes its problems."""
    from learning.lookup import bind  # most recipes have no toy tasks

    try:
        bind(slot.use, slot.path)()
    except StepError as error:
        return str(error)
    return ""
