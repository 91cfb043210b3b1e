"""Limits on the size of a recipe, and the count of what it has become so far.

A recipe of a few lines can stand for millions of values: through anchors, variables, matrix, loops and parents that
extend one another. Every part that puts values into the tree charges them to the allowance of the load, so that a
recipe is refused, at the key where it happens, before the values cost memory or time.
"""

from dataclasses import dataclass

from schemas.source.tree import Mark, Node, make_error

MAX_BYTES = 1_000_000
"""Of one file."""
MAX_FILES = 64
"""That `extends` reads for one recipe."""
MAX_DEPTH = 64
"""Of maps and lists inside one another."""
MAX_KEY = 200
"""Characters of a key."""
MAX_ENTRIES = 2_000
"""Of one map or list."""
MAX_NODES = 50_000
"""Values that are written, aliases put in; and those of one variable."""
MAX_EXPANDED = 150_000
"""Values after variables, matrix and loops."""
MAX_CHARACTERS = 4_000_000
"""Of all texts together, after expansion."""
MAX_TEXT = 100_000
"""Characters of one text that variables are put into."""
MAX_STEPS = 1_000
"""Stages after matrix and loops."""
MAX_OVERRIDES = 500
"""`--set` of one command."""
MAX_PROBLEMS = 40
"""That one error lists; the others are counted."""


@dataclass(frozen=True)
class Size:
    """Values of a tree, and characters of its texts."""

    nodes: int = 1
    characters: int = 0


def measure_size(node: Node, nodes: int, characters: int) -> Size:
    """Return the size of a tree; counting stops beyond `nodes` or `characters`, because shared parts may multiply."""
    count, length, stack = 0, 0, [node]
    while stack and count <= nodes and length <= characters:
        one = stack.pop()
        count += 1
        if isinstance(one.value, str):
            length += len(one.value)
        elif one.is_map:
            length += sum(map(len, one.value))
            stack += one.value.values()
        elif one.is_list:
            stack += one.value
    return Size(count, length)


class Allowance:
    """The size that a tree may still grow by. Every method raises RecipeError at the given place if it is used up."""

    def __init__(self, nodes: int = MAX_EXPANDED, characters: int = MAX_CHARACTERS):
        self.nodes, self.characters = nodes, characters

    def take(self, nodes: int, characters: int, mark: Mark, path: str) -> None:
        """Charge so many values and characters."""
        self.nodes -= nodes
        self.characters -= characters
        if self.nodes < 0:
            raise make_error(
                mark,
                path,
                f"the recipe becomes too large: more than {MAX_EXPANDED} values",
                "variables, matrix, loops or endpoints multiply here",
            )
        if self.characters < 0:
            raise make_error(
                mark,
                path,
                f"the recipe becomes too large: more than {MAX_CHARACTERS} characters",
                "a long text is put in many times; keep data in files of its own",
            )

    def take_tree(self, node: Node, mark: Mark, path: str) -> None:
        """Charge a whole tree that is put in at a place."""
        size = measure_size(node, self.nodes, self.characters)
        self.take(size.nodes, size.characters, mark, path)
