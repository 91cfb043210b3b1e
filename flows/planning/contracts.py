"""The contract between stages at plan time: models that meet in one step must share tokenizer and template.

A published model has fingerprints. One that is not made yet inherits them from the model that it starts from, down to a
stage that defines its model, whose tokenizer settings stand for the fingerprints until it has run.
"""

from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from flows.planning.turn_ends import find_model_disagreement
from lineage.artifacts.contract import find_other_setting, holds_tokenizer, override_contract, read_contract
from lineage.artifacts.store import Store
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.base import JsonObject
from schemas.chat_settings import merge_settings, read_chat
from schemas.errors import PlanError
from schemas.manifest import Contract, InputRecord
from schemas.plan import Input, Plan, Step
from schemas.references import MODEL_TYPES
from schemas.stages.union import traits_of
from schemas.use import TokenizerUse

CARRIERS = frozenset({*MODEL_TYPES, "trajectories"})
"""Types of artifacts that are tied to a tokenizer."""
TOKENIZERS = TokenizerUse.home
"""Modules whose code decides a tokenizer."""


@dataclass(frozen=True)
class KnownContract:
    """A model's contract as far as it is known: its fingerprints if the model exists, else its tokenizer settings."""

    contract: Contract | None = None
    tokenizer: JsonObject | None = None
    chat: JsonObject = field(default_factory=dict)
    """Chat settings that the model carries."""
    folder: Path | None = None
    """Folder of the model that has the contract; None if no such model exists yet."""

    def under(self, settings: JsonObject) -> "KnownContract":
        """Return the contract under the chat settings of a stage."""
        chat, contract, tokenizer = read_chat(settings), self.contract, self.tokenizer
        if tokenizer is not None and chat.chat_template is not None:
            tokenizer = {**tokenizer, "chat_template": chat.chat_template}
        contract = None if contract is None else override_contract(contract, settings)
        return KnownContract(contract, tokenizer, merge_settings(self.chat, chat), self.folder)


def shares_tokens(given: Input | InputRecord) -> bool:
    """Return whether an input must fit to the tokenizer of a step's other models.

    A reward model from outside reads texts through its own tokenizer.
    """
    if given.type == "reward_model" and given.source is not None and given.port.startswith("rewards."):
        return False
    return given.type in CARRIERS


def verify_contracts(plan: Plan, layout: Layout, folders: tuple[Path, ...]) -> None:
    """Raise PlanError with both fingerprints and steps if models that meet in a step do not fit together."""
    store = Store(layout)
    bonds: dict[str, KnownContract] = {}
    for step in plan.steps:
        carried = [i for i in step.inputs if shares_tokens(i)]
        met = [(i, _find_received(i, bonds, layout, folders).under(step.settings)) for i in carried]
        if traits_of(step.kind).shares_tokens:
            for (one, first), (other, second) in combinations(met, 2):
                if (problem := _find_disagreement(first, second, step.settings)) is not None:
                    raise PlanError(_format_problem(step, one, other, problem))
        bonds[step.name] = _find_own(step, [bond for _, bond in met], store)


def _find_own(step: Step, received: list[KnownContract], store: Store) -> KnownContract:
    manifest = store.find(step.kind, step.key)
    contract = manifest.contract if manifest else None
    folder = _find_model(step, store) if contract else None
    if traits_of(step.kind).defines_model and received:
        return KnownContract(contract, folder=folder)  # it adds tokens to those of the model that it received
    if traits_of(step.kind).defines_model:
        code = {m: d for m, d in step.code.items() if m.startswith(TOKENIZERS)}
        return KnownContract(contract, {**step.settings.get("tokenizer", {}), "code": digest_of(code)}, folder=folder)
    first = received[0] if received else KnownContract()
    chat = contract.chat if contract else first.chat
    return KnownContract(contract or first.contract, first.tokenizer, chat, folder or first.folder)


def _find_model(step: Step, store: Store) -> Path | None:
    """Return the folder of the output that a step's contract was read from."""
    names = [name for name, artifact_type in step.outputs.items() if artifact_type in CARRIERS]
    folders = (store.output_folder(step.kind, step.key, name) for name in names)
    return next((folder for folder in folders if holds_tokenizer(folder)), None)


def _find_received(
    step_input: Input, bonds: dict[str, KnownContract], layout: Layout, folders: tuple[Path, ...]
) -> KnownContract:
    if step_input.steps:
        return bonds[step_input.steps[0]]
    folder = find_source(str(step_input.source), layout, folders).folder
    contract = read_contract(folder)
    return KnownContract(contract, chat=contract.chat if contract else {}, folder=folder)


def _find_disagreement(one: KnownContract, other: KnownContract, settings: JsonObject) -> str | None:
    if one.contract is not None and other.contract is not None:
        return find_model_disagreement(one.contract, other.contract, one.folder or other.folder, settings)
    if one.tokenizer is None or other.tokenizer is None:
        return None
    if one.tokenizer == other.tokenizer:
        return find_other_setting(one.chat, other.chat)
    names = [k for k in sorted({*one.tokenizer, *other.tokenizer}) if one.tokenizer.get(k) != other.tokenizer.get(k)]
    differing = ", ".join(f"tokenizer.{k}: {one.tokenizer.get(k)!r} against {other.tokenizer.get(k)!r}" for k in names)
    return f"{differing} (fingerprints {digest_of(one.tokenizer)[:12]} and {digest_of(other.tokenizer)[:12]})"


def _format_problem(step: Step, one: Input, other: Input, problem: str) -> str:
    first, second = (f"{i.port} ({i.source or i.steps[0]})" for i in (one, other))
    return (
        f"{step.name}: {first} and {second} do not fit together: {problem}. "
        "Models that meet in one step need the same tokenizer, special tokens, chat template and chat settings; those "
        "that the stage itself sets hold for all of them"
    )
