"""Where our modules lie and under which names Python imports them.

In a checkout the five packages are at the top level: `learning.rewards.answers`. An installed wheel has them inside
one package: `posttrain.learning.rewards.answers` (docs/decisions/0028-names-in-the-wheel.md). Recipes, keys and errors
use the names without `posttrain.` in both, so that a recipe means the same and a step keeps its key.
"""

import ast
from pathlib import Path

PREFIX = __name__.removesuffix("schemas.package")
"""Before the name of every module of ours: empty in a checkout, `posttrain.` in an installed wheel."""
PACKAGES = ("schemas", "learning", "tasks", "lineage", "flows")
ROOT = Path(__file__).resolve().parent.parent
"""Folder of the five packages and of `recipes/`."""
IMPORT_FOLDER = ROOT.parent if PREFIX else ROOT
"""Folder that a process must have on its path to import our modules."""


def import_path(name: str) -> str:
    """Return the name under which Python imports a module; names of other packages are returned unchanged."""
    return PREFIX + name if name.partition(".")[0] in PACKAGES else name


def parse(source: str | bytes) -> ast.Module:
    """Parse a module and return its tree with our modules named as in a checkout. Raise what `ast.parse` raises."""
    tree = ast.parse(source)
    if PREFIX:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                node.module = node.module.removeprefix(PREFIX)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    alias.name = alias.name.removeprefix(PREFIX)
    return tree
