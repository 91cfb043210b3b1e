"""The files of models, read without torch: which folders are adapters, reward models or multimodal, and why not.

An adapter is one of peft over its base model in `base/`. A reward model is a sequence classifier of transformers with
one label, published by a reward_model stage (with `reward_model.json`) or by others; or an adapter of one.
"""

import json
import struct
from pathlib import Path
from typing import Literal

from learning.models.architectures import find_architecture_problem
from learning.models.gguf_header import LFS, find_gguf_problem
from schemas.adapter_base import find_plain_base
from schemas.base import JsonObject

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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

REWARD_FILE = "reward_model.json"
"""Mean and standard deviation of the rewards on held-out pairs, and the longest sequence of the training."""
REWARD_HEAD = "score"
"""The linear head of transformers' sequence classifiers with a decoder's body."""
NO_SCALE = (
    f"without {REWARD_FILE} the scale of this model's rewards is unknown; write `normalise: none`, or add the file "
    'with mean and std of its rewards: {"max_length": 2048, "mean": 0.0, "std": 1.0}'
)
LARGEST_HEADER = 100 << 20
OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
"""Ends of the classes of transformers whose head scores a text, not the next token."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Files of which transformers makes a tokenizer."""


def find_adapter_problem(folder: Path, task: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM") -> str | None:
    """Return why an adapter's folder cannot be merged and what to do; None if its files fit."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        kind, task_type = config.get("peft_type"), config.get("task_type")
    except (OSError, ValueError, AttributeError) as error:
        return f"{ADAPTER_CONFIG} cannot be read: {error}"
    if kind != "LORA":
        return f"an adapter of type {kind}; only LoRA, rsLoRA and DoRA are inputs: {MERGE}"
    if task_type not in (task, None):
        words = {"CAUSAL_LM": "a language model", "SEQ_CLS": "a reward model"}
        return f"an adapter for {words.get(task_type, task_type)}, where {words[task]} is needed"
    if option := next((name for name in UNSUPPORTED if config.get(name)), None):
        return f"an adapter with `{option}`, which is not supported: {MERGE}"
    if not (folder / ADAPTER_WEIGHTS).is_file():
        return f"{ADAPTER_WEIGHTS} is missing; save the adapter as safetensors"
    return None


def find_policy_problem(folder: Path, needs_tokenizer: bool = True) -> str | None:
    """Return which file of a checkpoint is missing or cannot be read and what to do; None if its files fit."""
    if (folder / ADAPTER_CONFIG).is_file():  # its base is resolved with it
        base = read_json_object(find_plain_base(folder) / "config.json")
        return find_architecture_problem(base) if base else None
    if not (folder / "config.json").is_file():
        if files := sorted(folder.glob("*.gguf")):
            return find_gguf_problem(files[0])
        below = sorted(path.parent.name for path in folder.glob("*/config.json"))
        named = f"; there is one in its folder {below[-1]}" if below else ""
        return f"no model here: config.json is missing; name the folder that `save_pretrained` wrote{named}"
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        return f"config.json cannot be read: {error}"
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return "config.json has no `model_type`; name the folder that `save_pretrained` wrote"
    if text := find_architecture_problem(config):
        return text
    if text := _find_weights_problem(folder):
        return text
    if needs_tokenizer and lacks_tokenizer(folder):
        return "no tokenizer: tokenizer.json is missing; save it there: tokenizer.save_pretrained(folder)"
    return None


def lacks_tokenizer(folder: Path) -> bool:
    """Return whether a folder has neither files of a tokenizer nor a GGUF file, which holds one."""
    return not any((folder / name).is_file() for name in TOKENIZER_FILES) and not any(folder.glob("*.gguf"))


def find_head_problem(folder: Path) -> str | None:
    """Return why a whole checkpoint has no head of a language model and what to do; None if nothing is against it."""
    names = read_json_object(folder / "config.json").get("architectures")
    name = next((name for name in names if str(name).endswith(OTHER_HEADS)), None) if isinstance(names, list) else None
    if name is None and not (folder / REWARD_FILE).is_file():
        return None
    return (
        f"{name or 'a reward model'} predicts no tokens: its head scores whole texts; name a language model "
        "(…ForCausalLM), or use it as a reward model (docs/rewards.md)"
    )


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a whole model, which need not exist.

    Raise OSError, ValueError, KeyError or AttributeError for an index that cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else []
    return [folder / name for name in shards or ["model.safetensors"]]


def _find_weights_problem(folder: Path) -> str | None:
    """Return which file of weights is missing or is no safetensors file."""
    try:
        files = list_weight_files(folder)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"model.safetensors.index.json cannot be read: {error}"
    for file in files:
        name = file.name
        if not file.is_file():
            others = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
            of = f"; {others[0]} is not read: save the model as safetensors" if others else ""
            return f"no weights: {name} is missing{of}"
        with file.open("rb") as handle:
            start = handle.read(len(LFS))
        if start == LFS:
            return f"{name} is a pointer of Git LFS; fetch the weights: git lfs pull"
        size = int.from_bytes(start[:8], "little")
        if len(start) < 8 or not 0 < size <= min(LARGEST_HEADER, file.stat().st_size - 8):
            return f"{name} is no safetensors file, or cut off; fetch it again"
    return None


def is_reward_model(folder: Path) -> bool:
    """Return whether a folder claims to hold a reward model or another sequence classifier."""
    if (folder / REWARD_FILE).is_file():
        return True
    if (folder / ADAPTER_CONFIG).is_file():
        return read_json_object(folder / ADAPTER_CONFIG).get("task_type") == "SEQ_CLS"
    return _is_classifier(read_json_object(folder / "config.json"))


def find_reward_model_problem(folder: Path) -> str | None:
    """Return why a folder cannot be a reward model and what to do; None if its files fit."""
    if (folder / REWARD_FILE).is_file():
        return None  # of a reward_model stage
    adapter = (folder / ADAPTER_CONFIG).is_file()
    base = folder / "base" if adapter else folder
    config = read_json_object(base / "config.json")
    if not config:
        return (
            f"no reward model here: neither {REWARD_FILE} of a reward_model stage nor a readable config.json; name the "
            "output of a reward_model stage or a sequence classifier with one label"
        )
    if adapter:
        return find_adapter_problem(folder, "SEQ_CLS")
    kind = (config.get("architectures") or ["model without `architectures`"])[0]
    if not _is_classifier(config):
        return f"{kind} gives no reward: name a sequence classifier with one label (…ForSequenceClassification)"
    if (count := _count_labels(config)) != 1:
        return f"a classifier with {count} labels; a reward model has one (`num_labels: 1`)"
    names = list_tensors(base)
    if names is None:
        return "no readable model.safetensors; save the model as safetensors first"
    if f"{REWARD_HEAD}.weight" not in names:
        return f"{kind} has no linear head `{REWARD_HEAD}`; only classifiers with a decoder's body are reward models"
    return None


def is_multimodal(folder: Path) -> bool:
    """Return whether the config.json of a folder describes towers besides a text model."""
    return has_towers(read_json_object(folder / "config.json"))


def has_towers(config: JsonObject) -> bool:
    """Return whether a model's configuration has a vision or audio tower besides a text model."""
    parts = (config.get("vision_config"), config.get("audio_config"))
    return isinstance(config.get("text_config"), dict) and any(isinstance(part, dict) for part in parts)


def list_tensors(folder: Path) -> set[str] | None:
    """Return the names of a model's tensors in safetensors; None if there are none or a header is unreadable."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            return set(json.loads(index.read_text())["weight_map"])
        with whole.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            return set(json.loads(handle.read(length))) if length <= LARGEST_HEADER else None
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def _is_classifier(config: JsonObject) -> bool:
    return any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def _count_labels(config: JsonObject) -> int:
    """Return the number of labels of a classifier's configuration, by transformers' rule: 2 if it names none."""
    return len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels") or 2)


def read_json_object(file: Path) -> JsonObject:
    """Return the content of a file; empty if there is none or it is no JSON object."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
