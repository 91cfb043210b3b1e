"""The files of an adapter, read without torch: which folders are one that can be merged, and why others are not."""

import json
from pathlib import Path
from typing import Literal

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "megatron_config",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_qalora",
    "velora_config",
)
"""Options of peft whose adapters no test merges."""
MERGE = "merge it with peft (`merge_and_unload`) and name the whole model"


def find_adapter_problem(folder: Path, task: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM") -> str | None:
    """Return why an adapter's folder cannot be merged and what to do; None if its files fit."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        kind, found = config.get("peft_type"), config.get("task_type")
    except (OSError, ValueError, AttributeError) as error:
        return f"{CONFIG} cannot be read: {error}"
    if kind != "LORA":
        return f"an adapter of type {kind}; only LoRA, rsLoRA and DoRA are inputs: {MERGE}"
    if found not in (task, None):
        words = {"CAUSAL_LM": "a language model", "SEQ_CLS": "a reward model"}
        return f"an adapter for {words.get(found, found)}, where {words[task]} is needed"
    if option := next((name for name in UNSUPPORTED if config.get(name)), None):
        return f"an adapter with `{option}`, which is not supported: {MERGE}"
    if not (folder / WEIGHTS).is_file():
        return f"{WEIGHTS} is missing; save the adapter as safetensors"
    return None
