"""A check before a run that the families of problems that gates name are among those of the evaluation."""

from collections.abc import Iterator

from flows.planning.row_remarks import LOOKED_AT, read_port_rows
from lineage.layout import Layout
from schemas.checks.gates import name_metric
from schemas.errors import Problem
from schemas.gates import Gate, split_metric
from schemas.recipe.load import Recipe
from schemas.stages.evaluate import Evaluate
from schemas.steps.slots import is_task
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest


def find_family_problems(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield a problem per family that a gate names and the evaluation does not have, where its problems are known.

    They are known if they are problems of reasoning-gym or rows from outside.
    """
    for info in recipe.steps.values():
        named = dict(_list_families(info, info.stage.gate)) if isinstance(info.stage, Evaluate) else {}
        families = _find_families(recipe, layout, info) if named else None
        if families is not None:
            for path, family in named.items():
                if family not in families:
                    advice = suggest(family, sorted(families), "families of its problems")
                    advice = advice if families else "give the rows a column `family`, or name the metric alone"
                    yield info.problem(path, f"the evaluation has no problems of the family `{family}`", advice)


def _list_families(info: StepInfo, gates: list[Gate]) -> Iterator[tuple[str, str]]:
    """Yield the families that gates name, by their path in the stage."""
    metrics = [name_metric(metric) for metric in info.dump()["metrics"]]
    for index, gate in enumerate(gates):
        names = {"metric": gate.metric}
        if isinstance(gate.max_regression, dict):
            names |= {f"max_regression.{name}": name for name in gate.max_regression}
        for path, name in names.items():
            parts = split_metric(name, metrics)
            if parts is not None and parts[1] is not None:
                yield f"gate.{index}.{path}", parts[1]


def _find_families(recipe: Recipe, layout: Layout, info: StepInfo) -> set[str] | None:
    """Return the families of a step's problems; None if some are not known before a run."""
    families: set[str] = set()
    for slot in info.slots:
        if is_task(slot):
            if slot.signature.name != "reasoning_gym":
                return None
            families.add(str(slot.values["family"]))
    for port in info.ports:
        if port.path in ("prompts", "data"):
            rows = read_port_rows(recipe, layout, port)
            if not rows or len(rows) >= LOOKED_AT:
                return None
            families |= {row["family"] for row in rows if row.get("family") is not None}
    return families
