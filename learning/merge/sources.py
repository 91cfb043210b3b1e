"""From a merge stage to slices of opened models, checked to fit together; and the other files of a model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learning.merge.document import Slice, Source
from learning.models.weights import Weights
from schemas.errors import StepError
from schemas.stages.merge import Merge

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
OTHER_FILES = (*TOKENIZER, "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json")
"""Files that go with the weights unchanged."""
Open = Callable[[str], Weights]
"""Port of the stage → the model it received."""


def make_slices(stage: Merge, weights_at: Open) -> list[Slice]:
    """Return the document's slices; `models` become one slice of all layers, with an unlisted base model."""
    if bool(stage.models) == bool(stage.slices):
        raise StepError("merge: give either `models` or `slices`")
    base = weights_at("base_model") if stage.base_model else None
    if stage.models:
        models = [
            (f"models.{i}", m.model, weights_at(f"models.{i}.model"), m.parameters) for i, m in enumerate(stage.models)
        ]
        complete = [
            Source(f"{port} ({ref})", w, parameters, 0, _layers(w), base is not None and w.folder == base.folder)
            for port, ref, w, parameters in models
        ]
        if base is not None and not any(source.is_base for source in complete):
            complete.append(Source(f"base_model ({stage.base_model})", base, {}, 0, _layers(base), True, False))
        return [Slice(complete, {})]
    return [_slice(stage, i, weights_at, base) for i in range(len(stage.slices))]


def _slice(stage: Merge, i: int, weights_at: Open, base: Weights | None) -> Slice:
    sources = []
    for j, entry in enumerate(stage.slices[i].sources):
        port = f"slices.{i}.sources.{j}"
        weights, (first, end) = weights_at(f"{port}.model"), entry.layer_range
        if not 0 <= first < end <= _layers(weights):
            raise StepError(f"{port}: layer_range {[first, end]} of {entry.model}, which has {_layers(weights)} layers")
        is_base = base is not None and weights.folder == base.folder
        sources.append(Source(f"{port} ({entry.model})", weights, entry.parameters, first, end - first, is_base))
    counts = {source.count for source in sources}
    if len(counts) > 1:
        raise StepError(f"slices.{i}: sources of {', '.join(map(str, sorted(counts)))} layers; want equally many")
    return Slice(sources, stage.slices[i].parameters)


def _layers(weights: Weights) -> int:
    return int(weights.config.get("num_hidden_layers") or weights.config.get("n_layer") or 0)


def refuse_misfits(slices: list[Slice], template: Weights) -> None:
    """Raise StepError when models differ in architecture or tokenizer."""
    vocabulary = _vocabulary(template.folder)
    for source in (source for piece in slices for source in piece.sources):
        ours, theirs = template.config.get("model_type"), source.weights.config.get("model_type")
        if ours != theirs:
            raise StepError(
                f"merge: {source.label} is a {theirs}, the first or base model a {ours}; they cannot be merged"
            )
        if _vocabulary(source.weights.folder) != vocabulary:
            raise StepError(
                f"merge: {source.label} has another tokenizer than the first or base model; tokens would change their "
                "meaning, so train the models from one base"
            )


def _vocabulary(folder: Path) -> Any:
    file = folder / "tokenizer.json"
    if not file.is_file():
        plain = [folder / name for name in ("vocab.json", "merges.txt", "tokenizer.model")]
        return [path.read_bytes() for path in plain if path.is_file()]
    content = json.loads(file.read_text())
    return [content.get("model"), content.get("added_tokens")]


def write_other_files(slices: list[Slice], template: Weights, dtype: str, folder: Path) -> None:
    """Config of the result, tokenizer and the like of the first or base model."""
    for name in OTHER_FILES:
        if (template.folder / name).is_file():
            shutil.copyfile(template.folder / name, folder / name)
    config = {key: value for key, value in template.config.items() if key not in ("torch_dtype", "_name_or_path")}
    config["dtype"] = dtype
    layers = [piece.sources[0] for piece in slices]
    count = "num_hidden_layers" if "num_hidden_layers" in config else "n_layer"
    config[count] = sum(source.count for source in layers)
    if config.get("layer_types"):
        kinds = [source.weights.config["layer_types"][source.first : source.first + source.count] for source in layers]
        config["layer_types"] = [kind for run in kinds for kind in run]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
