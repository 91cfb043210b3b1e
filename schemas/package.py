"""The folders of posttrain's modules, and the names under which Python imports them.

In a checkout the five packages are at the top level: `learning.rewards.answers`. An installed wheel has them inside
one package: `posttrain.learning.rewards.answers` (docs/decisions/0028-names-in-the-wheel.md). Recipes, keys and errors
use the names without `posttrain.` in both cases, so that recipes and keys do not depend on the installation.
"""

import ast
from pathlib import Path

PREFIX = __name__.removesuffix("schemas.package")
"""Prefix of the names of posttrain's modules: empty in a checkout, `posttrain.` in an installed wheel."""
PACKAGES = ("schemas", "learning", "tasks", "lineage", "flows")
ROOT = Path(__file__).resolve().parent.parent
"""Folder of the five packages and of `recipes/`."""
IMPORT_FOLDER = ROOT.parent if PREFIX else ROOT
"""Folder that must be on the path of a process that imports posttrain's modules."""


def import_path(name: str) -> str:
    """Return the name under which Python imports a module; names of other packages are returned unchanged."""
    return PREFIX + name if name.partition(".")[0] in PACKAGES else name


def parse(source: str | bytes) -> ast.Module:
    """Return the tree of a source text, with posttrain's modules named as in a checkout.

    Raise SyntaxError or ValueError, as `ast.parse` does.
    """
    tree = ast.parse(source)
    if PREFIX:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                node.module = node.module.removeprefix(PREFIX)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    alias.name = alias.name.removeprefix(PREFIX)
    return tree
