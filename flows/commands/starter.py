"""Starter recipes: copies of the shipped ones, with the JSON Schema for editors."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import PlanError
from schemas.package import ROOT
from schemas.suggestions import suggest

SHIPPED = ROOT / "recipes"
SCHEMA = "recipe.schema.json"
MODELINE = re.compile(r"^(# yaml-language-server: \$schema=).*$", re.MULTILINE)
EXTENDS = re.compile(r"^extends: ([\w./-]+)$", re.MULTILINE)
SOURCE = re.compile(r"path:\.\./([\w./-]+)")
MAX_SOURCE = 1 << 20
"""Bytes of a file or folder of data that is copied with a recipe."""


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name: `quickstart`, `papers/remax`."""
    files = [*SHIPPED.glob("*.yaml"), *SHIPPED.glob("papers/*.yaml")]
    return {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in sorted(files)}


def place_recipe(path: Path) -> Path:
    """Return the file of a new recipe: the path itself, or `recipe.yaml` in it if it is a folder or has no suffix."""
    return path / "recipe.yaml" if path.is_dir() or not path.suffix else path


def write_recipe(path: Path, like: str) -> list[Path]:
    """Copy a shipped recipe, what it extends, its small data and the schema for editors; return what was written.

    Raise PlanError if there is no such recipe, the file exists already, or it cannot be written.
    """
    known = shipped_recipes()
    if like not in known:
        raise PlanError(f"--like {like}: no such recipe is shipped; {suggest(like, list(known), 'recipes')}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return [*_write_copy(known[like], path), _write_schema(path.parent)]
    except FileExistsError as error:
        there = error.filename or path
        raise PlanError(f"{there} is there already; give another name: posttrain init other.yaml") from error
    except OSError as error:
        raise PlanError(f"{error.filename or path} cannot be written: {error.strerror}") from error


def _write_copy(source: Path, path: Path) -> list[Path]:
    """Write a recipe under its new name, and the recipes that it extends unless files of their names exist."""
    name = path.stem.replace(" ", "_")
    text = re.sub(r"^name: .*$", f"name: {name}", source.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    text = MODELINE.sub(rf"\1{SCHEMA}", text)
    bases = list(_extended(source))
    if bases:
        text = EXTENDS.sub(f"extends: {bases[0].relative_to(SHIPPED).as_posix()}", text)
    shipped = [name for name in dict.fromkeys(SOURCE.findall(text)) if _is_small(source.parent.parent / name)]
    for name in shipped:
        text = text.replace(f"path:../{name}", f"path:{name}")
    written = [
        _write_new(path, text),
        *(_copy_data(source.parent.parent / name, path.parent / name) for name in shipped),
    ]
    for base in bases:
        copy = path.parent / base.relative_to(SHIPPED)
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            written.append(_write_new(copy, base.read_text(encoding="utf-8")))
    return written


def list_missing_sources(recipe: Path) -> list[str]:
    """Return the files outside of its folder that a recipe reads and that do not exist."""
    names = [f"../{name}" for name in dict.fromkeys(SOURCE.findall(recipe.read_text(encoding="utf-8")))]
    return [name for name in names if not (recipe.parent / name).exists()]


def _is_small(data: Path) -> bool:
    files = [data] if data.is_file() else [file for file in data.rglob("*") if file.is_file()]
    return bool(files) and sum(file.stat().st_size for file in files) <= MAX_SOURCE


def _copy_data(source: Path, target: Path) -> Path:
    """Copy a file or folder, unless there is one of that name."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
    return target


def _extended(source: Path) -> Iterator[Path]:
    """Yield the recipe that a shipped one extends, then the one which that extends, and so on."""
    while named := EXTENDS.search(source.read_text(encoding="utf-8")):
        source = (source.parent / named[1]).resolve()
        yield source


def _write_new(path: Path, text: str) -> Path:
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
    return path


def _write_schema(folder: Path) -> Path:
    """Write the JSON Schema of this version, replacing an older one."""
    from schemas.pages.editor_schema import make_editor_schema  # a second of import, too slow for --help

    file = folder / SCHEMA
    file.write_text(json.dumps(make_editor_schema(), indent=2) + "\n", encoding="utf-8")
    return file
