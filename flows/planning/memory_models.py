"""Which model comes into each port of a plan, as far as it is known before anything has run.

A model that is there is known by its `config.json`, one that is still to be made by the `init` stage at its beginning.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learning.memory_model.shape import Shape, shape_of
from lineage.contract import UNBOUNDED
from lineage.layout import Layout
from lineage.sources import find_source
from lineage.store import Store
from schemas.errors import PosttrainError, StepError
from schemas.plan import Input, Plan, Step
from schemas.use import TokenizerUse

MODELS = ("policy", "adapter", "reward_model", "process_reward_model", "value_model")
"""Types of artifacts that are models."""


@dataclass(frozen=True)
class Known:
    """A model: its shape, the longest sequence it holds, whether its head is that of a language model."""

    shape: Shape
    max_length: int
    language: bool = True

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.shape.parameters if self.language else self.shape.body_parameters + self.shape.width


class Models:
    """The models of a plan."""

    def __init__(self, plan: Plan, layout: Layout):
        self.layout, self.store = layout, Store(layout)
        self.folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))
        self.made: dict[str, dict[str, Known | str]] = {}
        for step in plan.steps:
            self.made[step.name] = self._outputs(step)

    def ports(self, step: Step) -> dict[str, Known | str]:
        """Port to its model, or to why it is not known."""
        return {given.port: self._received(given) for given in step.inputs if given.type in MODELS}

    def _outputs(self, step: Step) -> dict[str, Known | str]:
        manifest = self.store.find(step.kind, step.key)
        named = {name: kind for name, kind in step.outputs.items() if kind in MODELS}
        if manifest is not None:
            return {name: _tried(self.store.output_folder(step.kind, step.key, name)) for name in named}
        if step.kind == "init":
            return dict.fromkeys(named, _initial(step.settings))
        first = next(iter(self.ports(step).values()), f"{step.name} makes it, and nothing says of what shape")
        return {name: _as(first, kind) for name, kind in named.items()}

    def _received(self, given: Input) -> Known | str:
        if given.steps:
            found = self.made[given.steps[0]]
            return found.get(given.output or next(iter(found), ""), f"{given.steps[0]} makes no model")
        try:
            return _tried(find_source(str(given.source), self.layout, self.folders).folder)
        except PosttrainError as error:
            return str(error)


def _as(model: Known | str, kind: str) -> Known | str:
    return model if isinstance(model, str) else replace(model, language=kind in ("policy", "adapter"))


def _tried(folder: Path) -> Known | str:
    """The model in a folder; what an adapter belongs to lies in `base/`."""
    base = folder / "base" if (folder / "adapter_config.json").is_file() else folder
    if not (base / "config.json").is_file():
        return f"{folder.name} has no config.json"
    tokenizer = base / "tokenizer_config.json"
    try:
        config = json.loads((base / "config.json").read_text())
        told = json.loads(tokenizer.read_text()).get("model_max_length") if tokenizer.is_file() else None
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder.name}: its configuration cannot be read: {error}"
    labelled = any("ForCausalLM" not in name and "LMHead" not in name for name in config.get("architectures") or [])
    try:
        shape = shape_of(_whole(config))
    except StepError as error:
        return str(error)
    limits = (told, config.get("max_position_embeddings"), config.get("n_positions"))
    return Known(shape, int(min([n for n in limits if n], default=UNBOUNDED)), not labelled)


def _whole(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with what it leaves to its model type filled in; raises StepError for one that it refuses."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING  # takes seconds to import

    kind = config.get("model_type")
    rest = {name: value for name, value in config.items() if name != "model_type"}
    try:
        return CONFIG_MAPPING[kind](**rest).to_dict() if kind in CONFIG_MAPPING else config
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StepError(f"config: {kind} refuses these values: {error}") from error


def _initial(settings: dict[str, Any]) -> Known | str:
    """The model that an init stage will make; its vocabulary is that of its tokenizer."""
    from learning.lookup import bind  # torch comes with it

    try:
        tokenizer = bind(TokenizerUse.model_validate(settings["tokenizer"]), "tokenizer", {})()
        shape = shape_of(_whole({**settings["config"], "vocab_size": len(tokenizer)}))
    except (PosttrainError, TypeError, ValueError) as error:
        return str(error)
    return Known(shape, settings["max_length"])
