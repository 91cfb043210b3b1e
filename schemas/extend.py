"""A recipe on top of others: `extends`, `profiles` and `--set`, merged in this order with every value's place kept."""

from pathlib import Path

from schemas.errors import RecipeError
from schemas.nearest import suggest
from schemas.source import parse_value, read_source
from schemas.tree import Mark, Node, join, merge, refuse

MAX_PARENTS = 32


def read_recipe(path: Path, profile: str | None = None, overrides: tuple[str, ...] = ()) -> Node:
    """The tree of a recipe after extends, profile and overrides. Raises RecipeError."""
    root = _extended(path, str(path), [])
    root = _profiled(root, profile)
    for text in overrides:
        root = override(root, text)
    return root


def _extended(path: Path, name: str, above: list[Path]) -> Node:
    here = path.resolve()
    root = read_source(path, name)
    listed = root.get("extends")
    if listed is None:
        return root
    result: Node | None = None
    for item in listed.value if listed.is_list else [listed]:
        if not isinstance(item.value, str) or not item.value:
            raise refuse(item.mark, "extends", "wants a file name, or a list of them", "as `extends: base.yaml`")
        parent = path.parent / item.value
        chain = [*above, here]
        if parent.resolve() in chain or len(chain) > MAX_PARENTS:
            circle = " -> ".join(p.name for p in [*chain, parent])
            raise refuse(item.mark, "extends", f"goes in a circle: {circle}", "remove one of these `extends`")
        if not parent.is_file():
            beside = [p.name for p in sorted(path.parent.glob("*.y*ml")) if p.resolve() != here]
            raise refuse(item.mark, "extends", f"no file {item.value}", suggest(item.value, beside, "files beside it"))
        base = _extended(parent, str(parent), chain)
        result = base if result is None else merge(result, base)
    own = root.without("extends")
    return own if result is None else merge(result, own)


def _profiled(root: Node, profile: str | None) -> Node:
    profiles = root.get("profiles")
    if profiles is not None and not profiles.is_map:
        raise refuse(profiles.mark, "profiles", "wants a map of names to overrides", "as `profiles: {tiny: {...}}`")
    if profiles is not None:
        for name, over in profiles.value.items():
            _check_profile(name, over)
    if profile is None:
        return root
    names = list(profiles.value) if profiles is not None else []
    if profile not in names:
        raise refuse(root.mark, "profiles", f"no profile `{profile}`", suggest(profile, names, "profiles"))
    return merge(root, profiles.value[profile]) if profiles is not None else root


def _check_profile(name: str, over: Node) -> None:
    if not over.is_map:
        raise refuse(over.mark, join("profiles", name), "wants a map of overrides", "as `tiny: {stages: {...}}`")
    for key in ("extends", "profiles", "name"):
        if (child := over.get(key)) is not None:
            raise refuse(child.where, join("profiles", name, key), f"a profile cannot set `{key}`", "move it out")


def override(root: Node, text: str) -> Node:
    """Set one key: `stages.sft.learning_rate=1e-4`; the value is YAML. Raises RecipeError."""
    source = f"--set {text}"
    path, equals, value = text.partition("=")
    start = Mark(source, 1, 1)
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise refuse(start, path, "wants key.path=value", "as `--set stages.sft.learning_rate=1e-4`")
    try:
        node = parse_value(value, Mark(source, 1, 1))
    except RecipeError as error:
        raise refuse(start, path, error.problems[0].message, "quote the value for YAML") from None
    return _set(root, keys, Node(node.value, start, start), "", start)


def _set(node: Node, keys: list[str], value: Node, path: str, start: Mark) -> Node:
    key, rest = keys[0], keys[1:]
    here = join(path, key)
    if node.is_list:
        if not key.isdigit() or int(key) >= len(node.value):
            raise refuse(start, here, f"`{path}` has no item {key}", f"it has items 0 to {len(node.value) - 1}")
        items = list(node.value)
        items[int(key)] = _set(items[int(key)], rest, value, here, start) if rest else value
        return node.with_value(items)
    if isinstance(node.value, str) and path.count(".") > 1:
        node = node.with_value({"use": Node(node.value, node.mark, node.mark)})
    if not node.is_map and node.value is not None:
        raise refuse(start, here, f"`{path}` is a single value and has no `{key}`", "set the value itself")
    children = node.value or {}
    if (key not in children and rest and path in ("", "profiles")) or _names_stage(path, key, children):
        raise refuse(start, here, f"there is no `{here}` to set", suggest(key, children, "keys here"))
    below = children.get(key, Node({}, start, start))
    return node.with_value({**children, key: _set(below, rest, value, here, start) if rest else value})


def _names_stage(path: str, key: str, children: dict[str, Node]) -> bool:
    """Whether an unknown key stands where only stages or variables of the recipe can be named."""
    return key not in children and path.rpartition(".")[2] in ("stages", "vars") and path.count(".") % 2 == 0
