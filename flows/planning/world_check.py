"""A check before a run that Gymnasium has the environments that the recipe names.

Gymnasium takes half a second to import, so the file in which it registers its environments is read as text, as is that
of MiniGrid. Ids of other packages (`ALE/Pong-v5`) are known only when the step begins.
"""

import importlib.util
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from schemas.errors import Problem
from schemas.recipe.load import Recipe

MAKERS = frozenset(
    {("learning.control.stepping.worlds", "gymnasium"), ("learning.environments.gymnasium", "Environment")}
)
"""Functions with an option `id`: worlds of control, and environments whose turns are texts."""
MINIGRID = ("learning.control.worlds.mini_grids", "minigrid")
"""Function whose `id` MiniGrid knows; it makes those with `-WFC-` in their name by another way."""
REGISTERED = re.compile(r"\bid=\"([\w./-]+)\"")
PLUGINS = "gymnasium.envs"
"""Group of entry points with which packages register environments; those named `__root__` have ids without a prefix."""


def find_world_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem per environment of the recipe that Gymnasium, or MiniGrid, does not have."""
    for info in recipe.steps.values():
        for slot in info.slots:
            maker, name = (slot.signature.module, slot.signature.name), slot.use.options.get("id")
            if maker not in (*MAKERS, MINIGRID) or not isinstance(name, str) or "/" in name or ":" in name:
                continue
            known = list_minigrid() if maker == MINIGRID else list_registered()
            if known and name not in known and "-WFC-" not in name:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else "name a function of yours as `module:function`"
                library = "MiniGrid" if maker == MINIGRID else "Gymnasium"
                yield info.problem(f"{slot.path}.id", f"{library} has no environment {name}; {hint}")


@cache
def list_registered() -> frozenset[str]:
    """Return the ids that Gymnasium registers itself; empty if it is missing, or if a package may add to them."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None or any(one.name == "__root__" for one in entry_points(group=PLUGINS)):
        return frozenset()
    return frozenset(REGISTERED.findall((Path(spec.origin).parent / "envs" / "__init__.py").read_text()))


@cache
def list_minigrid() -> frozenset[str]:
    """Return the ids that MiniGrid registers; empty if it is missing."""
    spec = importlib.util.find_spec("minigrid")
    if spec is None or spec.origin is None:
        return frozenset()
    return frozenset(REGISTERED.findall(Path(spec.origin).read_text()))
