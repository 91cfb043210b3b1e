"""Merges `extends`, `profiles` and `--set` in this order, and keeps every value's place."""

from itertools import islice
from pathlib import Path

from schemas.errors import Problem, RecipeError, printable
from schemas.source.files import LISTED
from schemas.source.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_FILES, MAX_NODES, MAX_OVERRIDES, measure_size
from schemas.source.parser import parse_value, read_source
from schemas.source.tree import REPLACE, Mark, Node, join_path, make_error, make_problem, merge_nodes, parse_index
from schemas.source.values import check_values
from schemas.suggestions import suggest

WHOLE = {"kind", "repeat"}
"""Keys of which a stage has one; a profile that only changes a stage needs neither."""


def read_recipe(path: Path, profile: str | None = None, overrides: tuple[str, ...] = ()) -> Node:
    """Return the tree of a recipe after extends, profile and overrides. Raise RecipeError."""
    root = _Family().read(path, str(path), ())
    root = _apply_profile(root, profile)
    if len(overrides) > MAX_OVERRIDES:
        message = f"{len(overrides)} overrides are too many"
        raise make_error(Mark("--set", 1, 1), "", message, f"at most {MAX_OVERRIDES}; put them into a profile")
    for text in overrides:
        root = set_key(root, text)
    check_values(root)
    return root


class _Family:
    """A recipe and all that it extends; each file is read and merged once, however often it is extended."""

    def __init__(self) -> None:
        self.done: dict[Path, Node] = {}
        self.merges, self.nodes = 0, 0

    def read(self, path: Path, name: str, above: tuple[Path, ...]) -> Node:
        """Return a file merged over its parents; `above` are the files that lead to it. Raise RecipeError."""
        root = read_source(path, name)
        resolved = path.resolve()
        self.nodes += measure_size(root, MAX_NODES, MAX_CHARACTERS).nodes
        listed = root.get("extends")
        if listed is None:
            return root
        result: Node | None = None
        for item in listed.value if listed.is_list else [listed]:
            base = self._parent(item, path, (*above, resolved))
            result = base if result is None else _merge_recipes(result, base)
        own = root.without("extends")
        return own if result is None else _merge_recipes(result, own)

    def _parent(self, item: Node, path: Path, chain: tuple[Path, ...]) -> Node:
        if not isinstance(item.value, str) or not item.value:
            raise make_error(item.mark, "extends", "wants a file name, or a list of them", "as `extends: base.yaml`")
        parent = path.parent / item.value
        resolved = _resolve_existing(parent)
        if resolved is None:
            raise _make_missing_error(item, path)
        if not resolved.is_file():
            message = f"{printable(item.value, 200)} is not a regular file"
            raise make_error(item.mark, "extends", message, "name a recipe's YAML file")
        if resolved in chain:
            circle = " -> ".join(p.name for p in [*chain, parent])
            raise make_error(item.mark, "extends", f"goes in a circle: {circle}", "remove one of these `extends`")
        self.merges += 1
        if resolved in self.done:
            self.nodes += measure_size(self.done[resolved], MAX_NODES, MAX_CHARACTERS).nodes
        if self.merges > MAX_FILES or self.nodes > 2 * MAX_NODES:
            message = f"more than {MAX_FILES} files, or {2 * MAX_NODES} values, come together here"
            raise make_error(item.mark, "extends", message, "extend fewer files")
        if resolved not in self.done:
            self.done[resolved] = self.read(parent, str(parent), chain)
        return self.done[resolved]


def _merge_recipes(base: Node, over: Node) -> Node:
    """Return a recipe merged onto another; `$replace` in a profile stays until the profile is applied."""
    merged = merge_nodes(base, over)
    profiles, inherited = over.get("profiles"), base.get("profiles")
    if profiles is None or inherited is None:
        return merged if profiles is None else merged.with_value({**merged.value, "profiles": profiles})
    return merged.with_value({**merged.value, "profiles": merge_nodes(inherited, profiles, keep=True)})


def _resolve_existing(path: Path) -> Path | None:
    """Return the file of a path, or None if there is none."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, a character that no path has
        return None


def _make_missing_error(item: Node, path: Path) -> RecipeError:
    siblings = sorted(p.name for p in islice(path.parent.glob("*.y*ml"), LISTED) if p.name != path.name)
    return make_error(
        item.mark, "extends", f"no file {printable(item.value, 200)}", suggest(item.value, siblings, "files beside it")
    )


def _apply_profile(root: Node, profile: str | None) -> Node:
    profiles = root.get("profiles")
    if profiles is not None and not profiles.is_map:
        raise make_error(profiles.mark, "profiles", "wants a map of names to overrides", "as `profiles: {tiny: {...}}`")
    if profiles is not None:
        # `own: null` takes away what a recipe inherits and does not support.
        profiles = profiles.with_value({name: over for name, over in profiles.value.items() if over.value is not None})
        root = root.with_value({**root.value, "profiles": profiles})
        for name, over in profiles.value.items():
            _check_profile(name, over)
    if profile is None:
        return root
    names = list(profiles.value) if profiles is not None else []
    if profile not in names:
        raise make_error(root.mark, "profiles", f"no profile `{profile}`", suggest(profile, names, "profiles"))
    if problems := find_unknown_stages(root, profile):
        raise RecipeError(problems)
    return merge_nodes(root, profiles.value[profile]) if profiles is not None else root


def _check_profile(name: str, over: Node) -> None:
    if not over.is_map:
        raise make_error(
            over.mark, join_path("profiles", name), "wants a map of overrides", "as `tiny: {stages: {...}}`"
        )
    for key in ("extends", "profiles", "name"):
        if (child := over.get(key)) is not None:
            raise make_error(
                child.where, join_path("profiles", name, key), f"a profile cannot set `{key}`", "move it out"
            )


def find_unknown_stages(root: Node, name: str) -> list[Problem]:
    """Return a problem per stage that a profile changes and the recipe does not have."""
    profiles, own = root.get("profiles"), root.get("stages")
    over = profiles.get(name) if profiles is not None else None
    changed = over.get("stages") if over is not None else None
    if own is None or not own.is_map or changed is None or not changed.is_map or changed.get(REPLACE) is not None:
        return []
    problems = []
    for stage, child in changed.value.items():
        if stage not in own.value and child.is_map and not WHOLE & set(child.value):
            path, advice = join_path("profiles", name, "stages", stage), suggest(stage, own.value, "stages")
            message = f"the profile `{name}` changes the stage `{stage}`, which the recipe does not have"
            problems.append(make_problem(child.where, path, message, f"{advice}; a stage that is new needs `kind`"))
    return problems


def set_key(root: Node, text: str) -> Node:
    """Set one key: `stages.sft.learning_rate=1e-4`; the value is YAML. Raise RecipeError."""
    path, equals, value = text.partition("=")
    start = Mark(f"--set {printable(text, 200)}", 1, 1)
    keys = path.strip().split(".")
    if not equals or not all(keys) or not path.isprintable():
        raise make_error(start, path, "wants key.path=value", "as `--set stages.sft.learning_rate=1e-4`")
    if len(keys) > MAX_DEPTH:
        raise make_error(start, path, f"a path of {len(keys)} keys is too long", f"at most {MAX_DEPTH}")
    try:
        node = parse_value(value, start)
    except RecipeError as error:
        raise make_error(start, path, error.problems[0].message, "quote the value for YAML") from None
    return _set_below(root, keys, Node(node.value, start, start), "", start)


def _set_below(node: Node, keys: list[str], value: Node, path: str, start: Mark) -> Node:
    key, rest = keys[0], keys[1:]
    key_path = join_path(path, key)
    if node.is_list:
        index = parse_index(key, len(node.value))
        if index is None:
            has = f"it has items 0 to {len(node.value) - 1}" if node.value else "it is empty"
            raise make_error(start, key_path, f"`{path}` has no item {key}", has)
        items = list(node.value)
        items[index] = _set_below(items[index], rest, value, key_path, start) if rest else value
        return node.with_value(items)
    if isinstance(node.value, str) and path.count(".") > 1:
        node = node.with_value({"use": Node(node.value, node.mark, node.mark)})
    if not node.is_map and node.value is not None:
        raise make_error(start, key_path, f"`{path}` is a single value and has no `{key}`", "set the value itself")
    children: dict[str, Node] = node.value if isinstance(node.value, dict) else {}
    if (key not in children and rest and path in ("", "profiles")) or _would_name_stage(path, key, children):
        stages = children.get("stages")
        advice = (
            f"write stages.{key}" if stages is not None and stages.get(key) else suggest(key, children, "keys here")
        )
        raise make_error(start, key_path, f"there is no `{key_path}` to set", advice)
    below = children.get(key, Node({}, start, start))
    return node.with_value({**children, key: _set_below(below, rest, value, key_path, start) if rest else value})


def _would_name_stage(path: str, key: str, children: dict[str, Node]) -> bool:
    """Return whether an unknown key is where only stages or variables of the recipe can be named."""
    return key not in children and path.rpartition(".")[2] in ("stages", "vars") and path.count(".") % 2 == 0
