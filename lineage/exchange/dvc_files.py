"""dvc.yaml and dvc.lock of a recipe: one DVC stage per step.

A stage depends on the folders of its upstream steps and on its own part of the recipe: its entry under `stages`, the
`vars` it names, the `defaults` of its kind and the recipe's seed. So `dvc repro` after a change in the recipe runs
only the stages that the change affects. A recipe that DVC's YAML parser refuses, such as one with `{use: a.b:c}`
(a colon inside of braces or brackets, without quotes), is one file for all of its stages. Only `posttrain plan` detects
changes of code; DVC does not see them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from lineage.digests import digest_file, dvc_digest, folder_digests
from lineage.exchange.dvc_project import complete_project
from lineage.exchange.materialise import materialise, runs_folder, write_curves, write_if_changed
from lineage.layout import Layout
from lineage.records import OutputRecord, Record, read_record
from schemas.base import JsonObject
from schemas.errors import PlanError, RecipeError
from schemas.plan import Input, Plan, Step
from schemas.recipe.load import load_recipe
from schemas.source.parser import read_source
from schemas.stages.union import traits_of

Entry = JsonObject
WRITTEN = "# Written by posttrain from "
HEADER = WRITTEN + "{file}; change that file, not this one.\n"
UNREADABLE = """\
# DVC cannot read that file ({why}), so each of these stages depends on the whole of it. Put values with a
# colon inside of braces or brackets into quotes, and they depend on single keys.
"""


def write_pipeline(layout: Layout, plan: Plan) -> dict[str, Entry]:
    """Write dvc.yaml for a recipe, and what DVC needs to read it; return its stages.

    Raise PlanError for a recipe with a loop, and if there is a dvc.yaml that posttrain did not write.
    """
    text, stages = render_pipeline(layout, plan)
    pipeline = layout.root / "dvc.yaml"
    if pipeline.is_file() and not pipeline.read_text().startswith(WRITTEN):
        raise PlanError(f"{pipeline} was not written by posttrain and stays as it is; move it away to have one written")
    complete_project(layout.root)
    write_if_changed(pipeline, text)
    return stages


def render_pipeline(layout: Layout, plan: Plan) -> tuple[str, dict[str, Entry]]:
    """Return dvc.yaml of a recipe and its stages; needs no run. Raise PlanError for a recipe with a loop.

    The plan may be a part of the recipe: stages written before stay while the recipe still has them.
    """
    recipe = Recipe(layout, plan)
    stages = {step.name: recipe.entry(step) for step in plan.steps}
    others = {n: e for n, e in _read_stages(layout.root / "dvc.yaml").items() if n not in stages and recipe.owns(e)}
    order = list(recipe.source.get("stages", {}))
    stages = dict(sorted({**others, **stages}.items(), key=lambda item: _sort_key(order, item[1]["cmd"], item[0])))
    curves = f"data/runs/{plan.recipe}/curves.csv"
    plots = [{curves: {"template": "curves", "x": "step", "y": "value", "title": f"Curves of {plan.recipe}"}}]
    text = yaml.safe_dump({"stages": stages, "plots": plots}, sort_keys=False, width=120, allow_unicode=True)
    header = HEADER.format(file=recipe.file)
    return header + (UNREADABLE.format(why=recipe.unreadable) if recipe.unreadable else "") + text, stages


def project_dvc(layout: Layout, plan: Plan, *, succeeded: bool) -> None:
    """Update data/runs/<recipe>, dvc.yaml and dvc.lock to the artifacts of a plan.

    dvc.yaml shows the recipe that succeeded last; a run that failed changes it only if it shows this recipe already. A
    plan with a profile or overrides, or with a loop, changes nothing, and a dvc.yaml that posttrain did not write
    stays. Inside `dvc repro` DVC writes the lock.
    """
    if not is_as_written(layout, plan) or not may_show(layout, plan, succeeded=succeeded):
        return
    folder = runs_folder(layout, plan.recipe)
    planned = {step.name: read_record(layout.artifact(step.kind, step.key)) for step in plan.steps}
    records = {name: record for name, record in planned.items() if record is not None}
    for name, record in records.items():
        materialise(folder, name, record)
    write_curves(folder, records, set(planned))
    stages = write_pipeline(layout, plan)
    if "DVC_STAGE" in os.environ:
        return
    recipe = Recipe(layout, plan)
    before = _read_stages(layout.root / "dvc.lock").items()
    locked = {n: e for n, e in before if n not in planned and e["cmd"] == stages.get(n, {}).get("cmd")}
    for step in plan.steps:
        if step.name in records and all(source in records for i in step.inputs for source in i.steps):
            locked[step.name] = recipe.lock(step, stages[step.name], records)
    ordered = {name: locked[name] for name in stages if name in locked}
    text = yaml.safe_dump({"schema": "2.0", "stages": ordered}, sort_keys=False, width=120, allow_unicode=True)
    write_if_changed(layout.root / "dvc.lock", text)


def may_show(layout: Layout, plan: Plan, *, succeeded: bool) -> bool:
    """Return whether dvc.yaml may be written for a plan: it does not exist, or its content may be replaced."""
    pipeline = layout.root / "dvc.yaml"
    text = pipeline.read_text() if pipeline.is_file() else ""
    if text and not text.startswith(WRITTEN):
        return False
    shown = HEADER.format(file=os.path.relpath((layout.root / plan.file).resolve(), layout.root))
    return succeeded or text.startswith(shown)


def is_as_written(layout: Layout, plan: Plan) -> bool:
    """Return whether a plan is an unchanged recipe of this checkout that DVC can show."""
    path = (layout.root / plan.file).resolve()
    if not path.is_relative_to(layout.root) or not path.is_file() or any(step.is_conditional for step in plan.steps):
        return False
    try:
        written = load_recipe(path).resolved
    except RecipeError:  # edited during the run
        return False
    return json.dumps(written, sort_keys=True, default=str) == json.dumps(plan.resolved, sort_keys=True, default=str)


class Recipe:
    """A recipe's file as DVC reads it, and what each step takes from it."""

    def __init__(self, layout: Layout, plan: Plan):
        if loop := next((step.name for step in plan.steps if step.is_conditional), None):
            raise PlanError(
                f"dvc.yaml cannot show {plan.file}: step {loop} is part of a loop or a branch, and DVC knows neither"
            )
        path = (layout.root / plan.file).resolve()
        self.root, self.recipe = layout.root, plan.recipe
        self.file = os.path.relpath(path, layout.root)
        self.unreadable = ""
        """Why DVC cannot read the file; empty if it can."""
        self.source: JsonObject = self._read(path)

    def _read(self, path: Path) -> JsonObject:
        """Return the file as DVC reads it, or as posttrain does where DVC refuses it."""
        from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml  # YAML 1.2: 1e-3 is a number
        from ruamel.yaml.error import MarkedYAMLError  # comes with DVC

        try:
            return json.loads(json.dumps(load_yaml(str(path))))
        except YAMLFileCorruptedError as error:
            cause, self.unreadable = error.__cause__, "its YAML"
            if isinstance(cause, MarkedYAMLError) and cause.problem_mark:
                self.unreadable = f"line {cause.problem_mark.line + 1}: {cause.problem}"
            return read_source(path).plain()

    def owns(self, entry: Entry) -> bool:
        """Return whether a stage of an older dvc.yaml is still one of this recipe."""
        command = entry["cmd"].split()
        return len(command) == 5 and command[2] == self.file and command[4] in self.source.get("stages", {})

    def entry(self, step: Step) -> Entry:
        """Return the step in dvc.yaml."""
        own = f"data/runs/{self.recipe}"
        deps = [self._folder(i) for i in step.inputs] + self._files(step)
        names = self._params(step)
        if not names:
            deps.append(self.file)
        return {
            "cmd": f"posttrain run {self.file} --to {step.stage}",
            **({"deps": list(dict.fromkeys(d for d in deps if d))} if any(deps) else {}),
            **({"params": [{self.file: names}]} if names else {}),
            "outs": [{f"{own}/{step.name}/{output}": {"persist": True}} for output in step.outputs],
            "metrics": [{f"{own}/metrics/{step.name}.json": {"cache": False, "persist": True}}],
        }

    def lock(self, step: Step, entry: Entry, records: dict[str, Record]) -> Entry:
        """Return the step in dvc.lock; digests of artifacts come from their manifests."""
        locked = {
            f"data/runs/{self.recipe}/{name}/{output}": _lock_output(made)
            for name, record in records.items()
            for output, made in record["outputs"].items()
        }
        names = entry["params"][0][self.file] if "params" in entry else []
        params = {name: _value_at(self.source, name) for name in names}
        outs = [next(iter(out)) for out in (*entry["outs"], *entry["metrics"])]
        return {
            "cmd": entry["cmd"],
            **({"deps": [self._locked(dep, locked) for dep in entry["deps"]]} if "deps" in entry else {}),
            **({"params": {self.file: params}} if params else {}),
            "outs": [self._locked(out, locked) for out in outs],
        }

    def _folder(self, source: Input) -> str | None:
        """Return the folder behind a port: of the step above, or of a path outside."""
        if source.steps:
            return f"data/runs/{self.recipe}/{source.steps[0]}/{source.output}"
        scheme, _, path = (source.source or "").partition(":")
        if scheme != "path":
            return None
        places = (self.root / Path(self.file).parent / path, self.root / path)
        return os.path.relpath(next((p for p in places if p.is_dir()), places[0]), self.root)

    def _files(self, step: Step) -> list[str]:
        """Return further files that the recipe depends on: those it extends, and the preset of the step's algorithm."""
        extended = self.source.get("extends") or []
        parents = [extended] if isinstance(extended, str) else extended
        files = [os.path.normpath(Path(self.file).parent / name) for name in parents]
        algorithm = self._stage(step).get("algorithm")
        preset = f"{traits_of(step.kind).presets}/{algorithm}.yaml"
        return [*files, preset] if isinstance(algorithm, str) and (self.root / preset).is_file() else files

    def _params(self, step: Step) -> list[str]:
        """Return the keys of the recipe that the step reads; none if its stage is not in the file itself."""
        stage = self._stage(step)
        if not stage or self.unreadable:
            return []
        own = [f"stages.{step.stage}", f"defaults.{step.kind}"]
        if step.settings.get("decontaminate"):
            own += self._evaluation_tasks()
        own = [name for name in own if _value_at(self.source, name) is not None]
        text = json.dumps([_value_at(self.source, name) for name in own])
        own += _find_variables(self.source.get("vars", {}), text)
        return [*own, "seed"] if "seed" in self.source else own

    def _evaluation_tasks(self) -> list[str]:
        """Return the keys of all evaluation problems, which decontamination compares the training rows with."""
        stages = self.source.get("stages", {}).items()
        return [f"stages.{name}.tasks" for name, stage in stages if "tasks" in (stage or {})]

    def _stage(self, step: Step) -> JsonObject:
        return self.source.get("stages", {}).get(step.stage) or {}

    def _locked(self, path: str, locked: dict[str, Entry]) -> Entry:
        target = self.root / path
        if path in locked:
            return {"path": path, **locked[path]}
        if target.is_dir():
            files = folder_digests(target)
            size = sum(f.size for f in files)
            return {"path": path, "hash": "md5", "md5": dvc_digest(files), "size": size, "nfiles": len(files)}
        file = digest_file(target, path)
        return {"path": path, "hash": "md5", "md5": file.md5, "size": file.size}


def _lock_output(made: OutputRecord) -> Entry:
    size = sum(file["size"] for file in made["files"])
    return {"hash": "md5", "md5": made["dvc"], "size": size, "nfiles": len(made["files"])}


def _find_variables(variables: JsonObject, text: str) -> list[str]:
    """Return `vars.x` for every variable that a text names, also through other variables."""
    names: dict[str, None] = {}
    waiting = re.findall(r"\$\{vars\.([A-Za-z0-9_-]+)", text)
    while waiting:
        name = waiting.pop(0)
        if name in variables and f"vars.{name}" not in names:
            names[f"vars.{name}"] = None
            waiting += re.findall(r"\$\{vars\.([A-Za-z0-9_-]+)", json.dumps(variables[name]))
    return list(names)


def _value_at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _read_stages(path: Path) -> dict[str, Entry]:
    return (yaml.safe_load(path.read_text()) or {}).get("stages", {}) if path.is_file() else {}


def _sort_key(order: list[str], command: str, name: str) -> tuple[int, str]:
    stage = command.split()[-1]
    return (order.index(stage) if stage in order else len(order), name)
