"""Mutations of recipes by their structure: the text stays YAML, so that what comes after the parser is reached."""

import random
from typing import Any

import yaml

from schemas.source.parser import parse_text
from tests.security.hostile_values import VALUES, paths, replaced, with_value

WORDS = [
    "use",
    "kind",
    "model",
    "data",
    "repeat",
    "matrix",
    "extends",
    "<<",
    "$replace",
    "vars",
    "a b",
    "",
    "é",
    "stages",
]


def mutate_tree(text: str, rng: random.Random) -> str:
    """One to three of: drop, move, copy or wrap a value, rename a key, put in a hostile value."""
    tree: Any = parse_text(text, "source").plain()
    for _ in range(rng.randint(1, 3)):
        all_paths = list(paths(tree))
        if not all_paths:
            break
        path, other = rng.choice(all_paths), rng.choice(all_paths)
        match rng.randrange(6):
            case 0:
                tree = _without(tree, path)
            case 1:
                tree = with_value(tree, path, value_at(tree, other))
            case 2:
                tree = _renamed(tree, path, rng)
            case 3:
                tree = with_value(tree, path, rng.choice([[value_at(tree, path)], {"use": value_at(tree, path)}]))
            case 4:
                tree = with_value(
                    tree, path, rng.choice(["${vars.size}", -1, 0, 10**12, 1e300, None, True, [], {}, ""])
                )
            case 5:
                return replaced(tree, path, rng.choice(list(VALUES.values())))
    return yaml.dump(tree, allow_unicode=True, sort_keys=False)


def value_at(tree: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a path; null where a mutation has taken it away."""
    for key in path:
        try:
            tree = tree[key]
        except (LookupError, TypeError):
            return None
    return tree


def _without(tree: Any, path: tuple[str | int, ...]) -> Any:
    above = value_at(tree, path[:-1])
    if isinstance(above, dict):
        return with_value(tree, path[:-1], {k: v for k, v in above.items() if k != path[-1]})
    return with_value(tree, path[:-1], [v for i, v in enumerate(above) if i != path[-1]])


def _renamed(tree: Any, path: tuple[str | int, ...], rng: random.Random) -> Any:
    above = value_at(tree, path[:-1])
    if not isinstance(above, dict):
        return tree
    name = rng.choice([*WORDS, f"{path[-1]}x", str(path[-1])[:-1] or "a"])
    return with_value(tree, path[:-1], {(name if k == path[-1] else k): v for k, v in above.items()})
