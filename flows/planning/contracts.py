"""The contract between stages at plan time: models that meet in one step must share tokenizer and template.

A published model says its fingerprints. One that is still to be made inherits them from the model that it starts from,
down to an `init` stage, whose tokenizer settings stand for the fingerprints until it has run.
"""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lineage.contract import disagreement, fingerprint
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.sources import find_source
from lineage.store import Store
from schemas.errors import PlanError
from schemas.manifest import Contract
from schemas.plan import Input, Plan, Step

CARRIERS = frozenset({"policy", "adapter", "reward_model", "process_reward_model", "value_model", "trajectories"})
"""Types of artifacts that are tied to a tokenizer."""
INDEPENDENT = frozenset({"evaluate", "python"})
"""Kinds in which models do not work on each other's tokens."""


@dataclass(frozen=True)
class Bond:
    """What is known of a model's contract: fingerprints once it exists, the settings behind them before."""

    contract: Contract | None = None
    tokenizer: dict[str, Any] | None = None


def check_contracts(plan: Plan, layout: Layout, folders: tuple[Path, ...]) -> None:
    """Raises PlanError naming both fingerprints and steps when models that meet in a step do not fit together."""
    store = Store(layout)
    bonds: dict[str, Bond] = {}
    for step in plan.steps:
        met = [(i, _received(i, bonds, layout, folders)) for i in step.inputs if i.type in CARRIERS]
        if step.kind not in INDEPENDENT:
            for (one, first), (other, second) in combinations(met, 2):
                if (problem := _disagreement(first, second)) is not None:
                    raise PlanError(_message(step, one, other, problem))
        bonds[step.name] = _own(step, [bond for _, bond in met], store)


def _own(step: Step, received: list[Bond], store: Store) -> Bond:
    manifest = store.find(step.kind, step.key)
    contract = manifest.contract if manifest else None
    if step.kind == "init":
        code = {m: d for m, d in step.code.items() if m.startswith("learning.data.tokenizers")}
        return Bond(contract, {**step.settings.get("tokenizer", {}), "code": digest_of(code)})
    first = received[0] if received else Bond()
    return Bond(contract or first.contract, first.tokenizer)


def _received(given: Input, bonds: dict[str, Bond], layout: Layout, folders: tuple[Path, ...]) -> Bond:
    if given.steps:
        return bonds[given.steps[0]]
    return Bond(fingerprint(find_source(str(given.source), layout, folders).folder))


def _disagreement(one: Bond, other: Bond) -> str | None:
    if one.contract is not None and other.contract is not None:
        return disagreement(one.contract, other.contract)
    if one.tokenizer is None or other.tokenizer is None or one.tokenizer == other.tokenizer:
        return None
    names = [k for k in sorted({*one.tokenizer, *other.tokenizer}) if one.tokenizer.get(k) != other.tokenizer.get(k)]
    said = ", ".join(f"tokenizer.{k}: {one.tokenizer.get(k)!r} against {other.tokenizer.get(k)!r}" for k in names)
    return f"{said} (fingerprints {digest_of(one.tokenizer)[:12]} and {digest_of(other.tokenizer)[:12]})"


def _message(step: Step, one: Input, other: Input, problem: str) -> str:
    first, second = (f"{i.port} ({i.source or i.steps[0]})" for i in (one, other))
    return (
        f"{step.name}: {first} and {second} do not fit together: {problem}. "
        "Models that meet in one step need the same tokenizer, special tokens and chat template"
    )
