"""Adapters from outside: a folder as peft writes it names its base model, which is found and put beside it.

The result is a folder of links in the state folder, laid out as the adapters of this checkout are: adapter files, and
the base in `base/`, with the tokenizer of the adapter where it has one.
"""

import errno
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lineage.layout import Layout
from schemas.adapter_base import BASE, CONFIG, is_adapter
from schemas.base import JsonObject
from schemas.errors import PlanError

TOKENIZER = ("tokenizer", "special_tokens_map", "chat_template", "vocab.", "merges.", "added_tokens")
"""How the names of a tokenizer's files begin."""


def lacks_base(folder: Path) -> bool:
    """Return whether a folder is an adapter without its base, or with only a link to it."""
    base = folder / BASE
    return is_adapter(folder) and (base.is_symlink() or not base.is_dir())


def find_base(folder: Path, reference: str, folders: tuple[Path, ...], find_hub: Callable[[str], Path]) -> Path:
    """Return the folder of an adapter's base model.

    That is what its `base` links to, the folder that `base_model_name_or_path` names (for `path:` references), or that
    model in the hub's cache, found by `find_hub`. Raise PlanError with what to do if there is none.
    """
    if (folder / BASE).is_dir():
        return (folder / BASE).resolve()
    config = _read_config(folder, reference)
    name = config.get("base_model_name_or_path")
    where = "its folder" if reference.startswith("path:") else "a copy of its folder (path:./copy)"
    advice = f"put the base model, or a link to its folder, into {where} as `base`"
    if not isinstance(name, str) or not name:
        raise PlanError(f"{reference}: {CONFIG} names no base model (`base_model_name_or_path`); {advice}")
    if reference.startswith("path:"):
        for start in (folder, folder.parent, *folders):
            place = start / Path(name).expanduser()
            if (place / "config.json").is_file():
                return place.resolve()
    revision = config.get("revision")
    try:
        return find_hub(f"{name}@{revision}" if isinstance(revision, str) and revision else name)
    except PlanError as error:
        raise PlanError(
            f"{reference}: the base model of this adapter, {name!r}, is neither a folder here nor in the hub's local "
            f"cache; fetch it: hf download {name}; or {advice}"
        ) from error


def read_base_name(folder: Path, reference: str) -> str | None:
    """Return an adapter's base model as the hub names it, with its revision: `org/name@revision`; None without one.

    Raise PlanError for an adapter whose settings cannot be read.
    """
    config = _read_config(folder, reference)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str) or not name:
        return None
    return f"{name}@{revision}" if isinstance(revision, str) and revision else name


def link_with_base(folder: Path, base: Path, layout: Layout) -> Path:
    """Return a folder that holds links to an adapter's files, and to those of its base in `base/`."""
    own = {file.name: file for file in folder.iterdir() if file.is_file()}
    return link_files({**own, **dict(list_base_files(own, base))}, layout)


def link_files(links: Mapping[str, Path], layout: Layout, config: JsonObject | None = None) -> Path:
    """Return a folder of the state folder with links by their relative names.

    With `config`, peft's settings of an adapter, the folder holds them with the place of its base. The folder appears
    whole: steps that start together make it at the same time, and one of them may be reading it already.
    """
    content = json.dumps([config, *([name, str(target)] for name, target in sorted(links.items()))], sort_keys=True)
    linked = layout.make_state() / "cache" / "adapters" / hashlib.sha256(content.encode()).hexdigest()[:32]
    if linked.is_dir():
        return linked
    fresh = linked.with_name(f".{linked.name}.{secrets.token_hex(4)}.tmp")
    for name, target in links.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).symlink_to(target)
    if config is not None:
        settings = {**config, "base_model_name_or_path": str(linked / BASE)}
        (fresh / CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    try:
        fresh.rename(linked)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        shutil.rmtree(fresh)  # another step has made it meanwhile
    return linked


def list_base_files(own: Mapping[str, Path], base: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and target of the links to a base, which may be an adapter with its own base.

    The tokenizer among an adapter's `own` files takes the place of the base's.
    """
    tokenizer = {name: file for name, file in own.items() if name.startswith(TOKENIZER)}
    has_tokenizer = "tokenizer.json" in tokenizer
    for name, file in _list_model_files(base):
        if not (has_tokenizer and name.startswith(TOKENIZER)):
            yield f"{BASE}/{name}", file
    if has_tokenizer:
        yield from ((f"{BASE}/{name}", file) for name, file in tokenizer.items())


def _list_model_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a model folder by relative name; subfolders other than an adapter's base are left out."""
    for file in folder.iterdir():
        if file.is_file():
            yield file.name, file
        elif file.name == BASE and is_adapter(folder):
            yield from ((f"{BASE}/{name}", below) for name, below in _list_model_files(file))


def _read_config(folder: Path, reference: str) -> JsonObject:
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise PlanError(f"{reference}: {CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise PlanError(f"{reference}: {CONFIG} has no settings")
    return config
