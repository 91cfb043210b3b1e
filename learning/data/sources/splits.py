"""The files of one subset and one split of a data set: as its README lists them, else by their names."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import StepError

HEADER = re.compile(r"---\s*\n(.*?)\n---", re.DOTALL)
SHARD = re.compile(r"([A-Za-z_]+)-\d+-of-\d+")
"""File names of data sets on the hub, without suffix: `train-00000-of-00004`."""
NAMES = {"valid": "validation", "val": "validation", "dev": "validation", "eval": "test"}
"""Words in file names for the split that the hub calls so."""
WORD = re.compile(r"(?:^|.*[-_.])(train|test|validation|valid|val|dev|eval)(?:[-_.]?\d*)$")
DEFAULT = "train"


def choose_files(folder: Path, files: Sequence[Path], subset: str | None, split: str | None) -> list[Path]:
    """Return the files of a subset and a split; without them, of the only or default subset and of `train`.

    Raise StepError, with the names that exist, where there is no such subset or split, or several to choose from.
    """
    configs = _read_configs(folder)
    if configs:
        patterns = _choose_config(configs, subset)
        named = {name: _match(folder, files, globs) for name, globs in patterns.items()}
        return _pick_split({name: paths for name, paths in named.items() if paths}, [], split)
    if subset is not None:
        inside = [path for path in files if subset in path.relative_to(folder).parts[:-1]]
        if not inside:
            raise StepError(
                f"no subset `{subset}`; folders: {_join({p.parent.name for p in files if p.parent != folder})}"
            )
        files = inside
    splits: dict[str, list[Path]] = {}
    others: list[Path] = []
    for path in files:
        name = get_split_name(path)
        (others if name is None else splits.setdefault(name, [])).append(path)
    places = {path.parent.relative_to(folder).as_posix() for path in files if SHARD.fullmatch(_stem(path))}
    if subset is None and len(places) > 1:
        raise StepError(f"holds several subsets: {_join(places)}; name one with `subset`")
    return _pick_split(splits, others, split)


def get_split_name(path: Path) -> str | None:
    """Return the split that a file's name says, as the hub calls it; None for a name without one."""
    match = SHARD.fullmatch(_stem(path)) or WORD.fullmatch(_stem(path).lower())
    return NAMES.get(match[1], match[1]) if match else None


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def _pick_split(splits: dict[str, list[Path]], others: list[Path], split: str | None) -> list[Path]:
    if split == DEFAULT and not splits:
        return sorted(others)  # as for the hub, files that name no split are those to train on
    if split is not None:
        wanted = split if split in splits else NAMES.get(split, split)
        if wanted not in splits:
            raise StepError(f"no split `{split}`; splits: {_join(splits)}")
        return splits[wanted]
    if len(splits) < 2:
        return sorted([*others, *(path for paths in splits.values() for path in paths)])
    if DEFAULT not in splits:
        raise StepError(f"holds {_join(splits)} and no {DEFAULT}; name one with `split`")
    return sorted([*others, *splits[DEFAULT]])


def _read_configs(folder: Path) -> dict[str, Any]:
    """Return the files of each subset as the header of README.md lists them; empty without such a list."""
    readme = folder / "README.md"
    match = HEADER.match(readme.read_text(errors="replace")) if readme.is_file() else None
    try:
        header = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError as error:
        raise StepError(f"README.md: its header is no YAML: {str(error).splitlines()[0]}") from error
    listed = header.get("configs") if isinstance(header, dict) else None
    entries = [one for one in listed or () if isinstance(one, dict) and one.get("data_files")]
    return {str(one.get("config_name", "default")): one for one in entries}


def _choose_config(configs: dict[str, Any], subset: str | None) -> dict[str, list[str]]:
    """Return the patterns of each split of a subset."""
    default = next((name for name, one in configs.items() if one.get("default")), "default")
    name = subset or (default if default in configs or len(configs) > 1 else next(iter(configs)))
    if name not in configs:
        problem = f"no subset `{subset}`" if subset else "holds several subsets"
        raise StepError(f"{problem}: {_join(configs)}; name one with `subset`")
    written = configs[name]["data_files"]
    entries = written if isinstance(written, list) else [written]
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        is_map = isinstance(entry, dict)
        paths = entry.get("path") if is_map else entry
        where = patterns.setdefault(str(entry.get("split", DEFAULT)) if is_map else DEFAULT, [])
        where += [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    return patterns


def _match(folder: Path, files: Sequence[Path], patterns: Collection[str]) -> list[Path]:
    try:
        matches = {path for pattern in patterns for path in folder.glob(pattern)}
        # A pattern without wildcards matches no link to a file that was left on the hub.
        matches |= {folder / pattern for pattern in patterns}
    except (ValueError, NotImplementedError) as error:
        raise StepError(f"README.md: a pattern of its data files is no path: {error}") from error
    return [path for path in files if path in matches]


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
