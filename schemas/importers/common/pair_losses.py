"""Losses of preference pairs: other tools' names, and the functions that posttrain has for them."""

from schemas.base import JsonObject
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.values import number

LOSSES: dict[str, JsonObject] = {
    "sigmoid": {"use": "dpo"},
    "dpo": {"use": "dpo"},
    "dpo_norm": {"use": "dpo_norm"},
    "sigmoid_norm": {"use": "dpo_norm"},
    "hinge": {"use": "hinge"},
    "ipo": {"use": "ipo"},
    "exo_pair": {"use": "exo"},
    "nca_pair": {"use": "nca"},
    "robust": {"use": "robust"},
    "bco_pair": {"use": "bco"},
    "bco": {"use": "bco"},
    "sppo_hard": {"use": "sppo_hard"},
    "aot": {"use": "aot"},
    "aot_pair": {"use": "aot"},
    "aot_unpaired": {"use": "aot_unpaired"},
    "discopop": {"use": "discopop"},
    "apo_zero": {"use": "apo_zero"},
    "apo_down": {"use": "apo_down"},
    "kto": {"use": "kto"},
    "kto_pair": {"use": "kto"},
    "simpo": {"use": "simpo"},
    "orpo": {"use": "orpo"},
    "cpo": {"use": "cpo"},
    "sft": {"use": "nll", "per_token": True},
}
"""A tool's word to the function of the slot `loss`."""
SMOOTHED = frozenset({"dpo", "dpo_norm", "robust", "exo", "aot", "aot_unpaired"})
WITH_BETA = frozenset(loss["use"] for loss in LOSSES.values()) - {"nll", "sppo_hard"}


def map_pair_loss(stage: StageDraft, kind: str, beta: str, default_beta: float | None, smoothing: str = "") -> None:
    """Take over the loss that the key `kind` names, with its β and its label smoothing."""
    leaves = stage.leaves
    given = leaves.get(kind)
    names = given if isinstance(given, list) else ["sigmoid" if given is None else given]
    uses = [dict(LOSSES[str(name)]) for name in names if str(name) in LOSSES]
    if len(uses) < len(names):
        missing = ", ".join(str(name) for name in names if str(name) not in LOSSES)
        leaves.account(kind, "not supported", f"no loss {missing}: there are {', '.join(LOSSES)}; the recipe has dpo")
    elif given is not None:
        leaves.mapped(kind, f"{stage.name}.loss", ", ".join(use["use"] for use in uses))
    set_pair_losses(stage, uses or [{"use": "dpo"}], kind, beta, default_beta, smoothing)


def set_pair_losses(
    stage: StageDraft, uses: list[JsonObject], source: str, beta: str, default_beta: float | None, smoothing: str
) -> None:
    """Write losses with β and label smoothing where they have them."""
    leaves = stage.leaves
    value = leaves.get(beta, default_beta)
    try:
        value = None if value is None else number(value)
    except ValueError as error:
        leaves.account(beta, "not supported", str(error))
        value = default_beta
    for use in uses:
        if value is not None and use["use"] in WITH_BETA:
            use["beta"] = value
            leaves.account(beta, "mapped", f"{stage.name}.loss.beta")
        elif value and use["use"] == "sppo_hard":
            use["eta"] = 1 / value
            leaves.account(beta, "mapped", f"{stage.name}.loss.eta: 1 / β")
    leaves.unsupported(beta, "this loss has no β")
    _map_smoothing(stage, uses, smoothing)
    stage.put("loss", uses[0] if len(uses) == 1 else uses, source if leaves.has(source) else f"default of {source}")


def _map_smoothing(stage: StageDraft, uses: list[JsonObject], smoothing: str) -> None:
    if not smoothing or not stage.leaves.has(smoothing):
        return
    try:
        share = number(stage.leaves.get(smoothing))
    except ValueError as error:
        stage.leaves.account(smoothing, "not supported", str(error))
        return
    for use in uses:
        if share and use["use"] in SMOOTHED:
            use["label_smoothing"] = share
            stage.leaves.account(smoothing, "mapped", f"{stage.name}.loss.label_smoothing")
    stage.leaves.unsupported(smoothing, "this loss has no label smoothing")
