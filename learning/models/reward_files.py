"""The files of a reward model, read without torch: which folders are one, and why others are not.

A reward model is a sequence classifier of transformers with one label, published by a reward_model stage (with
`reward_model.json`) or by others; or an adapter of one, over its base in `base/`.
"""

import json
import struct
from pathlib import Path

from learning.models.adapter_files import CONFIG, find_adapter_problem
from schemas.base import JsonObject

FILE = "reward_model.json"
"""Mean and standard deviation of the rewards on held-out pairs, and the longest sequence of the training."""
HEAD = "score"
"""The linear head of transformers' sequence classifiers with a decoder's body."""
NO_SCALE = (
    f"without {FILE} the scale of this model's rewards is unknown; write `normalise: none`, or add the file with mean "
    'and std of its rewards: {"max_length": 2048, "mean": 0.0, "std": 1.0}'
)
LARGEST_HEADER = 100 << 20


def is_reward_model(folder: Path) -> bool:
    """Return whether a folder claims to hold a reward model or another sequence classifier."""
    if (folder / FILE).is_file():
        return True
    if (folder / CONFIG).is_file():
        return _read_json(folder / CONFIG).get("task_type") == "SEQ_CLS"
    return _is_classifier(_read_json(folder / "config.json"))


def find_reward_model_problem(folder: Path) -> str | None:
    """Return why a folder cannot be a reward model and what to do; None if its files fit."""
    if (folder / FILE).is_file():
        return None  # of a reward_model stage
    adapter = (folder / CONFIG).is_file()
    base = folder / "base" if adapter else folder
    config = _read_json(base / "config.json")
    if not config:
        return (
            f"no reward model here: neither {FILE} of a reward_model stage nor a readable config.json; name the output "
            "of a reward_model stage or a sequence classifier with one label"
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
    if f"{HEAD}.weight" not in names:
        return f"{kind} has no linear head `{HEAD}`; only classifiers with a decoder's body are reward models"
    return None


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


def _read_json(file: Path) -> JsonObject:
    """Return the content of a file; empty if there is none or it is no JSON object."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
