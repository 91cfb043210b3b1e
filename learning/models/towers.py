"""What a multimodal checkpoint has besides its text model: vision and audio towers, and the files of its processors.

transformers loads some of these checkpoints as text models. Saved again, they get back the tensors that the text model
does not have, bit-identical, and their own configuration.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from learning.models.weights import Weights, WeightsWriter

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
TEXT_FILE, TOWER_FILE = "model-text.safetensors", "model-towers.safetensors"
INDEX = "model.safetensors.index.json"
LANGUAGE_PART = "language_model."
"""What some checkpoints (Llama 4, Llama 3.2 Vision) write before the names of the tensors of their text model."""


def keep_towers(origin: Path, folder: Path) -> None:
    """Add the towers and processors of the checkpoint `origin` to the text model that was saved in `folder`.

    A text model whose tensors have other names or shapes than in the checkpoint stays a text model, with a message.
    """
    before, after = Weights(origin), Weights(folder)
    if _list_strange(before, after) and not _list_strange(before, after, LANGUAGE_PART):
        _add_prefix(after, LANGUAGE_PART)
        after = Weights(folder)
    if strange := _list_strange(before, after):
        print(f"{origin.name}: saved as a text model, because {strange[0]} is not the tensor of its checkpoint")
        return
    for name in PROCESSOR_FILES:
        if (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)
    if rest := sorted(before.entries.keys() - after.entries.keys()):
        _add_tensors(before, rest, after)
        _restore_config(before.config, after.config, folder / "config.json")


def _list_strange(before: Weights, after: Weights, prefix: str = "") -> list[str]:
    """Return the tensors of a saved model that are not in its checkpoint, by name after a prefix and shape."""
    shapes = {name: entry.shape for name, entry in before.entries.items()}
    return [name for name, entry in after.entries.items() if shapes.get(prefix + name) != entry.shape]


def _add_prefix(saved: Weights, prefix: str) -> None:
    """Write a prefix before the names of all tensors of a saved model, in its files and in its index."""
    for file in sorted({entry.file for entry in saved.entries.values()}):
        stored = {name: saved.open(name) for name, entry in saved.entries.items() if entry.file == file}
        renamed = file.with_name(f"{file.name}.renamed")
        with WeightsWriter(renamed, {prefix + name: (t.shape, t.dtype) for name, t in stored.items()}) as writer:
            for name, tensor in stored.items():
                writer.write(prefix + name, tensor.read_whole())
        renamed.replace(file)
    if (index := saved.folder / INDEX).is_file():
        content = json.loads(index.read_text())
        content["weight_map"] = {prefix + name: file for name, file in content["weight_map"].items()}
        index.write_text(json.dumps(content, indent=2) + "\n")


def _add_tensors(before: Weights, rest: list[str], after: Weights) -> None:
    """Write the tensors of the towers to a file of their own, and an index over all files."""
    folder = after.folder
    if (folder / "model.safetensors").is_file():
        (folder / "model.safetensors").rename(folder / TEXT_FILE)
    stored = {name: before.open(name) for name in rest}
    with WeightsWriter(folder / TOWER_FILE, {name: (t.shape, t.dtype) for name, t in stored.items()}) as writer:
        for name, tensor in stored.items():
            writer.write(name, tensor.read_whole())
    places = {
        name: TEXT_FILE if entry.file.name == "model.safetensors" else entry.file.name
        for name, entry in after.entries.items()
    }
    total = sum(entry.size for entry in after.entries.values()) + sum(before.entries[name].size for name in rest)
    index = {
        "metadata": {"total_size": total},
        "weight_map": dict(sorted((places | dict.fromkeys(rest, TOWER_FILE)).items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _restore_config(before: dict[str, Any], after: dict[str, Any], file: Path) -> None:
    """Write the configuration of the checkpoint, with the precision of the text model."""
    config = {
        **before,
        "text_config": {**before["text_config"], "dtype": after.get("dtype")},
        "dtype": after.get("dtype"),
    }
    config.pop("torch_dtype", None)
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
