"""A look at the tasks of lm-eval in a plan before it runs: whether they exist, and whether their data are here.

lm-eval takes seconds to import, so its task files are read as text. What only a task's own code knows, such as data
that a Python function makes, shows when the step begins.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flows.planning.installed import OURS
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.evaluation_slots import SCORED_TASKS
from schemas.plan import Plan, Step

FILES = frozenset({"json", "csv", "parquet", "text", "arrow"})
"""Values of `dataset_path` that read the files in `data_files`."""
NAMED = re.compile(r"^[\"']?(?:task|group)[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
TAGGED = re.compile(r"^[\"']?tag[\"']?:((?:[ \t]*\S+[ \t]*$)|(?:[ \t]*\n(?:[ \t]*-[ \t]*\S+[ \t]*\n?)+))", re.MULTILINE)
"""The tag of a task file, or its list of tags."""
INCLUDED = re.compile(r"^[\"']?include[\"']?:[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
DEEPEST = 8


class TaskFile(yaml.SafeLoader):
    """Reads task files; functions of the user's are left out."""


TaskFile.add_multi_constructor("!", lambda loader, suffix, node: None)


def verify_lm_eval_tasks(plan: Plan, layout: Layout) -> None:
    """Raise PlanError if lm-eval, one of its tasks or the data of one is missing."""
    folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))
    for step in plan.steps:
        for index, task in enumerate(step.settings.get("tasks") or ()):
            if isinstance(task, dict) and task.get("use") == SCORED_TASKS:
                _verify(step, f"tasks.{index}", task, layout, folders)


def _verify(step: Step, port: str, task: JsonObject, layout: Layout, folders: tuple[Path, ...]) -> None:
    shipped = find_shipped_folder()
    if shipped is None:
        raise PlanError(f"{step.name}: {port}: lm_eval is not installed: pip install '{OURS}[evals]'")
    own: Path | None = None
    if source := {given.port: given.source for given in step.inputs}.get(f"{port}.include_path"):
        from lineage.sources.resolve import find_source  # the store, which few plans need

        own = find_source(source, layout, folders).folder
    tasks = TaskFiles(own, shipped)
    for name in task["tasks"]:
        for problem in tasks.find_problems(name):
            raise PlanError(f"{step.name}: {port}: {problem}")


class TaskFiles:
    """The task files of a user's folder and of lm-eval."""

    def __init__(self, own: Path | None, shipped: Path) -> None:
        self.own, self.shipped = own, shipped
        self.own_names = dict(_list_names(own)) if own else {}

    def list_tasks(self, name: str, depth: int = 0) -> Iterator[tuple[str, JsonObject]]:
        """Yield the names and settings of a task, or of those of a group; nothing for an unknown name."""
        file = self.find(name)
        settings = {} if file is None else read_task(file)
        if file is None or _is_group(settings):
            for part in (*_list_parts(settings), *self._find_tagged(name)) if depth < DEEPEST else ():
                yield from self.list_tasks(part, depth + 1)
        elif file is not None:
            yield name, settings

    def find_problems(self, name: str, depth: int = 0) -> Iterator[str]:
        """Yield what is missing for a task, or for the tasks of a group."""
        file = self.find(name)
        if file is None and (tagged := self._find_tagged(name)):
            for part in tagged:
                yield from self.find_problems(part, depth + 1)
            return
        if file is None:
            known = [*self.own_names, *_list_shipped(self.shipped)]
            near = get_close_matches(name, known, 1)
            yield f"lm-eval has no task `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")
            return
        settings = read_task(file)
        if _is_group(settings):
            for part in _list_parts(settings) if depth < DEEPEST else ():
                if self.find(part) is not None or self._find_tagged(part):
                    yield from self.find_problems(part, depth + 1)
            return
        yield from _find_missing_data(name, settings, self.own if name in self.own_names else None)

    def _find_tagged(self, tag: str) -> tuple[str, ...]:
        """Return the tasks that have a tag, which lm-eval takes for a name of them all."""
        own = _list_tagged(self.own).get(tag, ()) if self.own else ()
        return own or _list_tagged(self.shipped).get(tag, ())

    def find(self, name: str) -> Path | None:
        """Return the file of a task or group; None if there is none."""
        return self.own_names.get(name) or _list_shipped(self.shipped).get(name)


def _is_group(settings: JsonObject) -> bool:
    return "group" in settings or isinstance(settings.get("task"), list)


def _list_parts(settings: JsonObject) -> Iterator[str]:
    """Yield the names of the tasks and groups of a group."""
    for part in settings.get("task") or ():
        inner = part.get("task") or part.get("group") if isinstance(part, dict) else part
        if isinstance(inner, str):
            yield inner


def read_task(file: Path, depth: int = 0) -> JsonObject:
    """Return the settings of a task file with those of the files that it includes; empty if it is not one."""
    try:
        settings = yaml.load(file.read_text(encoding="utf-8"), TaskFile)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    if not isinstance(settings, dict):
        return {}
    included = settings.get("include") or ()
    merged: JsonObject = {}
    for part in [included] if isinstance(included, str) else included if depth < DEEPEST else ():
        merged |= read_task(file.parent / str(part), depth + 1)
    return merged | settings


def _find_missing_data(name: str, settings: Mapping[str, Any], own: Path | None) -> Iterator[str]:
    path, options = settings.get("dataset_path"), settings.get("dataset_kwargs") or {}
    if not isinstance(path, str) or settings.get("custom_dataset") is not None or "class" in settings:
        return
    if path not in FILES:
        subset = settings.get("dataset_name")
        if not (own and (own / path).exists()) and not _is_cached(path, subset):
            subset_text = "" if subset is None else f", {str(subset)!r}"
            yield (
                f"task `{name}`: its data set {path} is not in the local cache; fetch it first: "
                f'python -c "import datasets; datasets.load_dataset({path!r}{subset_text})"'
            )
        return
    for file in _flatten(options.get("data_files") if isinstance(options, dict) else None):
        if "://" in file:
            yield f"task `{name}`: its data file {file} is not on this machine; fetch it and name its path"
        elif not any(mark in file for mark in "*?[") and not ((own or Path.cwd()) / file).exists():
            yield f"task `{name}`: its data file {file} is not in `include_path`"


def _flatten(files: Any) -> Iterator[str]:
    if isinstance(files, str):
        yield files
    elif isinstance(files, dict | list):
        for part in files.values() if isinstance(files, dict) else files:
            yield from _flatten(part)


def _is_cached(path: str, subset: object) -> bool:
    """Return whether the library `datasets` has prepared a data set of the hub on this machine."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cached = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    wanted = _simplify(path.replace("/", "___"))
    folders = [one for one in cached.iterdir() if _simplify(one.name) == wanted] if cached.is_dir() else []
    if subset is None:
        return bool(folders)
    return any(part.name.startswith(str(subset)) for folder in folders for part in folder.iterdir())


def _simplify(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_shipped_folder() -> Path | None:
    """Return the folder of the tasks that come with lm-eval; None if it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    places: Sequence[str] = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(place) / "tasks" for place in places), None)


def _list_names(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.yaml")):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for name in NAMED.findall(text):
            yield name, file


@cache
def _list_tagged(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the tasks in a folder by their tags."""
    tasks: dict[str, tuple[str, ...]] = {}
    for name, file in _list_names(folder):
        for tag in _read_tags(file):
            tasks[tag] = (*tasks.get(tag, ()), name)
    return tasks


@cache
def _read_tags(file: Path, depth: int = 0) -> tuple[str, ...]:
    """Return the tags of a task file, or those of the file that it includes."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    if match := TAGGED.search(text):
        return tuple(name for word in match[1].split() if (name := word.strip("\"'-")))
    included = INCLUDED.search(text)
    return _read_tags(file.parent / included[1], depth + 1) if included and depth < DEEPEST else ()


@cache
def _list_shipped(folder: Path) -> dict[str, Path]:
    return dict(_list_names(folder))
