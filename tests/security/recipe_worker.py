"""Reads recipes in a process of its own and says of each what came of it, how long it took and how large it grew.

    python -m tests.security.recipe_worker hostile|mutated FOLDER SEED COUNT START STOP

prints a line of JSON for each recipe. A recipe that takes longer than the alarm ends the process.
"""

import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.schemas.recipe.test_recipe_fuzz import mutate
from tests.security.hostile_recipes import sampled
from tests.security.recipe_mutations import mutate_tree

ALARM = 60
"""Seconds of wall time after which a recipe counts as one that hangs, on however busy a machine."""
ADDRESS_SPACE = 3 << 30
HOUSE = Path(__file__).resolve().parents[2]
Read = Callable[[Path, tuple[str, ...]], None]


def main() -> None:
    """Read the recipes with numbers from START to before STOP."""
    from schemas.recipe.load import load_recipe

    kind, folder, seed, count, start, stop = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    load_recipe(HOUSE / "recipes" / "quickstart.yaml")  # what every recipe needs is read before the first is timed
    recipes = hostile(folder, seed, count) if kind == "hostile" else mutated(folder, seed, count)
    for number, (name, file, overrides) in enumerate(recipes):
        if start <= number < stop:
            print(json.dumps({"name": name, **measured(file, overrides)}), flush=True)


def measured(file: Path, overrides: tuple[str, ...]) -> dict[str, object]:
    """What came of a recipe."""
    from schemas.errors import RecipeError
    from schemas.recipe.load import load_recipe

    signal.alarm(ALARM)
    before, message, fine = time.process_time(), "", True
    try:
        load_recipe(file, overrides=overrides)
        outcome = "accepted"
    except RecipeError as error:
        outcome, message = "refused", str(error)
        fine = bool(error.problems) and all(p.line >= 1 and p.column >= 1 and p.message for p in error.problems)
    except Exception as error:
        outcome, message = "traceback", f"{type(error).__name__}: {error}"
    seconds = time.process_time() - before
    signal.alarm(0)
    return {
        "outcome": outcome,
        "said": message[:300],
        "length": len(message),
        "placed": fine,
        "seconds": round(seconds, 3),
        "peak_mb": peak_mb(),
    }


def peak_mb() -> int:
    """The most memory that this process has held so far; `ru_maxrss` would count that of its parent too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def hostile(folder: Path, seed: int, count: int) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Hostile recipes, each written just before it is read."""
    os.mkfifo(folder / "pipe")
    (folder / "circle").symlink_to("circle")
    (folder / "nowhere").symlink_to("nothing/here")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(folder)
        listening.bind("socket")
        os.chdir(here)
        for one in sampled(count, seed):
            yield one.name, one.write(folder), one.overrides


def mutated(folder: Path, seed: int, count: int) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Mutations of the recipes of this checkout and of the tests, beside what they extend."""
    shutil.copytree(HOUSE / "recipes", folder / "recipes")
    shutil.copytree(HOUSE / "tests" / "recipes", folder / "tests")
    every = sorted(f for f in folder.rglob("*.yaml") if f.parent.name != "algorithms")
    good = [source for source in every if source.parent.name != "bad"]
    texts = {source: source.read_text() for source in every}
    rng = random.Random(seed)
    for number in range(count):
        by_structure = rng.random() < 0.7
        source = rng.choice(good if by_structure else every)
        changed = mutate_tree(texts[source], rng).encode() if by_structure else mutate(texts[source], rng)
        file = source.with_name("mutated.yaml")
        file.write_bytes(changed)
        yield f"{number} of {source.relative_to(folder)}", file, ()


if __name__ == "__main__":
    main()
