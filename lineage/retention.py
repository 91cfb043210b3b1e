"""Which artifacts must stay, and why: promoted, pinned, among the best or used by recent runs; with all ancestors."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lineage.champions import history
from lineage.keepsakes import keepsakes
from lineage.layout import Layout
from lineage.records import Record
from lineage.registry import client, is_empty, registry_uri, shown
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow import MlflowClient

Reasons = dict[str, str]
"""Key to why the artifact stays."""


def promoted(layout: Layout) -> Reasons:
    """What any alias of MLflow's registry names, what `rollback` goes back to, and the evidence for both.

    Raises PlanError when the registry cannot be asked: then nothing may be removed.
    """
    if is_empty(layout):
        return {}
    found: Reasons = {}
    try:
        for name, alias, key in _aliases(client(layout)):
            found.setdefault(key, f"{name}@{alias}")
            moves = history(layout, name)
            before = {m.version: m for m in moves}.get(moves[-1].before) if moves else None
            for move in filter(None, (moves[-1] if moves else None, before)):
                found.setdefault(move.key, f"{name}, for rollback")
                if evidence := move.evidence.get("key"):
                    found.setdefault(str(evidence), f"evidence for {name}")
    except Exception as error:  # drivers of databases and servers raise what they like
        raise PlanError(
            f"MLflow's registry at {shown(registry_uri(layout))} cannot be asked, so nothing is removed: {error}"
        ) from error
    return found


def _aliases(mlflow: "MlflowClient") -> Iterator[tuple[str, str, str]]:
    token = None
    while True:
        page = mlflow.search_registered_models(page_token=token)
        for model in page:
            for alias, version in model.aliases.items():
                key = mlflow.get_model_version(model.name, str(version)).tags.get("key")
                if key:
                    yield model.name, alias, key
        if not (token := page.token):
            return


def pinned(layout: Layout) -> Reasons:
    """What somebody pinned."""
    return {key: f"pinned as {said['word']}" for key, said in keepsakes(layout).items()}


def best(records: Iterable[Record], metric: str, count: int) -> Reasons:
    """The artifacts with the highest numbers of a metric. Raises PlanError when none has that metric."""
    valued = [(value, r) for r in records if (value := _number(r["metrics"].get(metric))) is not None]
    if not valued:
        known = sorted({name for r in records for name, value in r["metrics"].items() if _number(value) is not None})
        raise PlanError(f"no artifact has a metric `{metric}`; there are: {', '.join(known[:30]) or 'none'}")
    ranked = sorted(valued, key=lambda pair: (pair[0], pair[1]["started"]), reverse=True)
    return {r["key"]: f"{metric} {value:g}, number {n}" for n, (value, r) in enumerate(ranked[:count], 1)}


def with_ancestors(records: Iterable[Record], reasons: Reasons) -> Reasons:
    """The same with everything that these were made from."""
    known = {record["key"]: record for record in records}
    found: Reasons = {}
    waiting = [(key, why) for key, why in reversed(reasons.items())]
    while waiting:
        key, why = waiting.pop()
        if key in found:
            continue
        found[key] = why
        if key in known:
            above = [given["key"] for given in known[key]["inputs"] if given.get("key")]
            origin = why if why.startswith("made into ") else f"made into what is kept: {why}"
            waiting += [(other, origin) for other in above if other not in reasons]
            waiting += [(other, reasons[other]) for other in above if other in reasons]
    return found


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return float(value) if is_number else None
