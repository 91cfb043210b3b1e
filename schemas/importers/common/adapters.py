"""LoRA, its relatives and quantised bases of other tools."""

from dataclasses import dataclass
from typing import Any

from schemas.importers.common.draft import StageDraft
from schemas.importers.common.leaves import is_off
from schemas.importers.common.values import flag, number, whole, words
from schemas.training import ALL_LINEAR

IN_BFLOAT16 = "the recipe has weights in bfloat16, which need more memory; see docs/adapters.md"


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


@dataclass(frozen=True)
class QuantisationNames:
    """What a tool calls the keys of quantised weights, and the defaults that it has."""

    switches: tuple[str, ...]
    """Keys that switch quantised weights on: a flag, or a number of bits."""
    type: str = ""
    nested: str = ""
    rest: tuple[str, ...] = ()
    """Keys that add nothing."""
    fallback_type: str = "nf4"
    is_nested: bool = False


def map_quantisation(stage: StageDraft, names: QuantisationNames, *, sharded: bool = False) -> bool:
    """Take over a base in 4 bits with its options; return whether the input asks for a quantised one.

    One in 8 bits, one that is sharded, and one without adapters become a base in bfloat16.
    """
    leaves, options = stage.leaves, (names.type, names.nested, *names.rest)
    wanted = [key for key in names.switches if not is_off(leaves.get(key))]
    for key in set(names.switches) - set(wanted):
        leaves.harmless(key, "is off")
    if not wanted:
        for key in filter(None, options):
            leaves.harmless(key, "of quantised weights, which are not used")
        return False
    reason = _find_obstacle(stage, wanted[0], sharded)
    use_bfloat16(stage, "instead of quantised weights" if reason else f"of the products with {wanted[0]}")
    for key in wanted:
        leaves.account(key, *(("not supported", reason) if reason else ("mapped", f"{stage.name}.load_in_4bit")))
    if not reason:
        stage.put("load_in_4bit", True, wanted[0])
        stage.copy(names.type or "quant_type", "bnb_4bit_quant_type", str, names.fallback_type)
        stage.copy(names.nested or "double_quant", "use_bnb_nested_quant", flag, names.is_nested)
    for key in filter(None, options):
        leaves.harmless(key, "of weights in 4 bits, which are not used" if reason else "follows from `dtype`")
    return True


def _find_obstacle(stage: StageDraft, switch: str, sharded: bool) -> str:
    """Return why the recipe has no weights in 4 bits; empty if it has."""
    if "8bit" in switch or str(stage.leaves.get(switch)) == "8":
        return f"weights in 8 bits: {IN_BFLOAT16}"
    if not stage.get("use_peft"):
        return f"weights in 4 bits cannot be trained without adapters: {IN_BFLOAT16}"
    return f"weights in 4 bits cannot be sharded: {IN_BFLOAT16}" if sharded else ""


def use_bfloat16(stage: StageDraft, source: str) -> None:
    """Write weights in bfloat16, which take the place of computing in it over float32."""
    stage.lines.pop("bf16", None)
    stage.put("dtype", "bfloat16", source)
    stage.leaves.renote(f"{stage.name}.bf16", f"{stage.name}.dtype: bfloat16, {source}")
