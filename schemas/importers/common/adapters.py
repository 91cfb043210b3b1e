"""LoRA, its relatives and quantised bases of other tools."""

from dataclasses import dataclass
from typing import Any

from schemas.importers.common.draft import StageDraft
from schemas.importers.common.values import flag, number, whole, words
from schemas.training import ALL_LINEAR

QUANTISED = (
    "the base is not quantised (QLoRA): the recipe trains LoRA over weights in bfloat16, which needs more memory; "
    "see docs/adapters.md"
)


@dataclass(frozen=True)
class LoraNames:
    """What a tool calls the keys of adapters, and the defaults that it has."""

    r: str = "lora_r"
    alpha: str = "lora_alpha"
    dropout: str = "lora_dropout"
    targets: str = "lora_target_modules"
    saved: str = "lora_modules_to_save"
    rslora: str = "use_rslora"
    dora: str = "use_dora"
    rank: int = 16
    scale: int = 32
    dropped: float = 0.0


def map_adapters(stage: StageDraft, names: LoraNames, wanted: bool, source: str) -> None:
    """Take over the keys of adapters where they are `wanted`, as the key `source` says."""
    leaves = stage.leaves
    keys = (names.r, names.alpha, names.dropout, names.targets, names.saved, names.rslora, names.dora)
    if not wanted:
        for key in keys:
            leaves.harmless(key, "no adapters are trained")
        return
    stage.put("use_peft", True, source)
    rank = stage.copy(names.r, "lora_r", whole, names.rank)
    stage.copy(names.alpha, "lora_alpha", whole, names.scale if names.scale > 0 else 2 * int(rank))
    if stage.kind == "rl" and leaves.get(names.dropout):
        leaves.account(names.dropout, "not supported", "dropout would make training differ from sampling; ours is 0")
    elif stage.kind != "rl":
        stage.copy(names.dropout, "lora_dropout", number, names.dropped or None)
    leaves.harmless(names.dropout, "is 0")
    stage.copy(names.targets, "lora_target_modules", convert_targets)
    stage.copy(names.saved, "modules_to_save", words)
    stage.copy(names.rslora, "use_rslora", flag)
    stage.copy(names.dora, "use_dora", flag)


def convert_targets(value: Any) -> Any:
    """Return target modules: `all-linear` for `all`, else a list, or a regular expression."""
    if isinstance(value, list) and len(value) == 1 and str(value[0]) in ("all", ALL_LINEAR, "all_linear"):
        value = ALL_LINEAR
    if isinstance(value, str) and value in ("all", ALL_LINEAR, "all_linear", "linear"):
        return ALL_LINEAR
    if isinstance(value, str) and any(mark in value for mark in "*\\[(|^$+"):
        return value
    return words(value)


def map_quantisation(stage: StageDraft, keys: tuple[str, ...]) -> bool:
    """Record that the base is not quantised; return whether the input asks for it."""
    asked = False
    for key in keys:
        value = stage.leaves.get(key)
        if value in (None, False, "", "none", "no", "false"):
            stage.leaves.harmless(key, "is off")
        else:
            asked = True
            stage.leaves.account(key, "not supported", QUANTISED)
    if asked and "dtype" not in stage.lines:
        use_bfloat16(stage, "instead of a quantised base")
    return asked


def use_bfloat16(stage: StageDraft, source: str) -> None:
    """Write weights in bfloat16, which take the place of computing in it over float32."""
    stage.lines.pop("bf16", None)
    stage.put("dtype", "bfloat16", source)
    stage.leaves.renote(f"{stage.name}.bf16", f"{stage.name}.dtype: bfloat16, {source}")
