"""A check before a run that generators have as many problems as the recipe asks them for."""

import contextlib
import hashlib
import importlib.util
import json
import signal
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically
from schemas.errors import Problem, StepError
from schemas.recipe.load import Recipe
from schemas.steps.slots import Slot, identify_slot

TOY_TASKS = "learning.toy_tasks."
REASONING_GYM = ("learning.problems.generators", "reasoning_gym")
LONGEST_DRAW = 3.0
"""CPU seconds for the problems of one generator of reasoning-gym: a family that takes longer is left to its step."""
MAX_REMEMBERED = 4096
"""Generators that a state folder remembers."""


def find_count_problems(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield a problem per generator that has fewer different problems than its `size`, or that refuses its options.

    Problems are drawn as their step draws them: those of toy tasks in milliseconds, those of reasoning-gym for at most
    LONGEST_DRAW CPU seconds. The import of reasoning-gym takes a second, so generators that passed are remembered.
    """
    passed = _read_passed(layout)
    known = len(passed)
    errors: dict[str, str] = {}
    for info in recipe.steps.values():
        for slot in info.slots:
            is_gym = _is_reasoning_gym(slot)
            if not is_gym and not _is_toy_task(slot):
                continue
            content = identify_slot(slot)
            if is_gym and content not in errors:
                digest = hashlib.sha256(f"{version('reasoning-gym')}\n{content}".encode()).hexdigest()
                errors[content] = "" if digest in passed else _draw_in_time(slot)
                if not errors[content]:
                    passed[digest] = None
            elif content not in errors:
                errors[content] = _draw(slot)
            if errors[content]:
                yield info.problem(slot.path if is_gym else f"{slot.path}.size", errors[content])
    if len(passed) > known:
        _write_passed(layout, list(passed)[-MAX_REMEMBERED:])


def _is_toy_task(slot: Slot) -> bool:
    return slot.signature.module.startswith(TOY_TASKS) and {"size", "split"} <= slot.signature.options.keys()


def _is_reasoning_gym(slot: Slot) -> bool:
    is_it = (slot.signature.module, slot.signature.name) == REASONING_GYM
    return is_it and importlib.util.find_spec("reasoning_gym") is not None


def _draw(slot: Slot) -> str:
    """Return the error of a generator; empty if it makes its problems."""
    from learning.lookup import bind  # most recipes have no toy tasks

    try:
        bind(slot.use, slot.path)()
    except StepError as error:
        return str(error)
    return ""


class OutOfTime(BaseException):
    """Problems take too long; not an Exception, which code of reasoning-gym may catch."""


def _draw_in_time(slot: Slot) -> str:
    """Return the error of a generator of reasoning-gym; empty if it makes its problems, or takes too long for this.

    A time limit needs the main thread: in another one nothing is drawn.
    """
    if threading.current_thread() is not threading.main_thread():
        return ""
    from learning.reasoning_gym.families import families  # most recipes that are checked have passed before

    families()  # its import is not counted

    def stop(*_: object) -> None:
        raise OutOfTime

    handler = signal.signal(signal.SIGVTALRM, stop)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_DRAW)
    try:
        return _draw(slot)
    except OutOfTime:
        return ""
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)


def _passed_file(layout: Layout) -> Path:
    return layout.state / "cache" / "problem_counts"


def _read_passed(layout: Layout) -> dict[str, None]:
    """Return the digests of generators that passed before, in the order in which they were checked."""
    try:
        return dict.fromkeys(json.loads(_passed_file(layout).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _write_passed(layout: Layout, passed: list[str]) -> None:
    """Remember digests; a cache that cannot be written costs time, nothing else."""
    with contextlib.suppress(OSError):
        layout.make_state()
        write_text_atomically(_passed_file(layout), json.dumps(passed))
