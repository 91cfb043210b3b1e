"""Find the model at each port of a plan, as far as it is known before anything has run.

An existing model is known by its `config.json`, a future one by the stage at its beginning that defines it.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from flows.planning.model_config import read_model_config
from learning.memory_model.expected_forward import expect_forward
from learning.memory_model.forward import FULL, Forward, Pass, Precision
from learning.memory_model.shape import ARCHITECTURES, Shape, read_shape
from lineage.artifacts.contract import UNBOUNDED
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import complete_adapter, find_source
from schemas.adapter_base import find_plain_base, find_tokenizer_folder
from schemas.base import JsonObject
from schemas.errors import PosttrainError, StepError
from schemas.plan import Input, Plan, Step
from schemas.references import MODEL_TYPES, POLICY_TYPES
from schemas.stages.union import traits_of
from schemas.use import TokenizerUse

TRAINED_SIZE = 4096
"""Vocabulary of a trained tokenizer whose recipe does not say it (`learning.data.trained_tokenizers`)."""


@dataclass(frozen=True)
class KnownModel:
    """A model: its shape, its longest sequence, and whether its head is that of a language model."""

    shape: Shape
    max_length: int
    language: bool = True
    forward: str = "forest"
    """The forward pass that its configuration lets expect."""
    tokenizer: Path | TokenizerUse | None = None
    """Folder of its tokenizer, or the settings of a stage that makes it."""
    in_blocks: bool = False
    """Whether its weights are in a GGUF file, which is converted to float32 first."""
    pass_type: type[Forward] = Forward
    """What computes the memory of a forward pass."""

    def estimate_pass(self, tokens: Pass, how: Precision, checkpointing: bool = False) -> Forward:
        """Return what a forward pass holds."""
        return self.pass_type(self.shape, tokens, how, checkpointing)

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        return self.shape.parameters if self.language else self.shape.body_parameters + self.shape.width

    def loading(self, weight_bytes: int) -> int:
        """Return the bytes that are held while it is loaded, where that is more than its weights; else 0."""
        return self.parameters * (FULL + weight_bytes) if self.in_blocks and weight_bytes < FULL else 0


class PlanModels:
    """The models of a plan."""

    def __init__(self, plan: Plan, layout: Layout):
        self.layout, self.store = layout, Store(layout)
        self.folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))
        self.made: dict[str, dict[str, KnownModel | str]] = {}
        self.read: dict[tuple[Path, Path], KnownModel | str] = {}
        """Models by folder and folder of the base: a GGUF file takes seconds to read."""
        for step in plan.steps:
            self.made[step.name] = self._outputs(step)

    def ports(self, step: Step) -> dict[str, KnownModel | str]:
        """Return, by port, its model, or why it is unknown."""
        return {
            step_input.port: self._received(step_input) for step_input in step.inputs if step_input.type in MODEL_TYPES
        }

    def _outputs(self, step: Step) -> dict[str, KnownModel | str]:
        manifest = self.store.find(step.kind, step.key)
        named = {name: kind for name, kind in step.outputs.items() if kind in MODEL_TYPES}
        if manifest is not None:
            return {name: self._read_output(step, name) for name in named}
        if traits_of(step.kind).defines_model and not step.settings.get("model"):
            return dict.fromkeys(named, _define_model(step.settings))
        first = next(iter(self.ports(step).values()), f"{step.name} makes a model of unknown shape")
        return {name: _with_head(first, kind) for name, kind in named.items()}

    def _read_output(self, step: Step, name: str) -> KnownModel | str:
        try:
            return self._read(complete_adapter(self.store.output_folder(step.kind, step.key, name), self.layout))
        except PosttrainError as error:
            return str(error)

    def _received(self, step_input: Input) -> KnownModel | str:
        if step_input.steps:
            outputs = self.made[step_input.steps[0]]
            return outputs.get(step_input.output or next(iter(outputs), ""), f"{step_input.steps[0]} makes no model")
        try:
            return self._read(find_source(str(step_input.source), self.layout, self.folders).folder)
        except PosttrainError as error:
            return str(error)

    def _read(self, folder: Path) -> KnownModel | str:
        """Return the model in a folder, whose base is read once."""
        place = (find_tokenizer_folder(folder).resolve(), find_plain_base(folder).resolve())
        if place not in self.read:
            self.read[place] = _read_model(folder)
        return self.read[place]


def _with_head(model: KnownModel | str, kind: str) -> KnownModel | str:
    if isinstance(model, str):
        return model
    return replace(model, language=kind in POLICY_TYPES, in_blocks=model.in_blocks and kind == "adapter")


def _read_model(folder: Path) -> KnownModel | str:
    """Return the model in a folder; that of an adapter is its base."""
    base = find_plain_base(folder)
    tokenizer = find_tokenizer_folder(folder) / "tokenizer_config.json"
    try:
        config = read_model_config(base)
        max_length = json.loads(tokenizer.read_text()).get("model_max_length") if tokenizer.is_file() else None
    except StepError as error:
        return str(error)
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder.name}: its configuration cannot be read: {error}"
    labelled = any("ForCausalLM" not in name and "LMHead" not in name for name in config.get("architectures") or [])
    try:
        config = complete_config(config)
    except StepError as error:
        return str(error)
    forward = expect_forward(config)
    try:
        shape, pass_type = find_shape(config)
    except StepError as error:
        return f"{error}; expected forward: {forward}"
    limits = (max_length, config.get("max_position_embeddings"), config.get("n_positions"))
    length = int(min([n for n in limits if n], default=UNBOUNDED))
    in_blocks = not (base / "config.json").is_file()
    return KnownModel(shape, length, not labelled, forward, find_tokenizer_folder(folder), in_blocks, pass_type)


def find_shape(config: JsonObject) -> tuple[Shape, type[Forward]]:
    """Return the shape of a complete configuration and what computes its passes.

    Raise StepError if neither a formula nor a pass without data gives them.
    """
    if config.get("model_type") in ARCHITECTURES:
        return read_shape(config), Forward
    from learning.models.traced_memory import TracedForward, trace_shape  # imports torch

    return trace_shape(config), TracedForward


def complete_config(config: JsonObject) -> JsonObject:
    """Return a configuration completed by the defaults of its model type. Raise StepError if the type refuses it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING  # takes seconds to import

    kind = str(config.get("model_type"))
    rest = {name: value for name, value in config.items() if name != "model_type"}
    try:
        return CONFIG_MAPPING[kind](**rest).to_dict() if kind in CONFIG_MAPPING else config
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StepError(f"config: {kind} refuses these values: {error}") from error


def _define_model(settings: JsonObject) -> KnownModel | str:
    """Return the model that a stage's settings define; its vocabulary is that of its tokenizer."""
    try:
        use = TokenizerUse.model_validate(settings["tokenizer"])
        size = _count_vocabulary(use)
        if size is None:
            return f"its tokenizer is that of {use.options.get('source')}, and its vocabulary known when it has run"
        config = complete_config({**settings["config"], "vocab_size": size})
        shape, pass_type = find_shape(config)
    except (PosttrainError, TypeError, ValueError) as error:
        return str(error)
    known = {"forward": expect_forward(config), "tokenizer": use, "pass_type": pass_type}
    return KnownModel(shape, settings["max_length"], **known)


def _count_vocabulary(use: TokenizerUse) -> int | None:
    """Return the number of tokens that a stage's tokenizer has, at most; None if only its files say."""
    from learning.lookup import bind  # torch comes with it

    if "source" in use.options:
        return None
    if "data" not in use.options:
        return len(bind(use, "tokenizer", {})())
    return int(use.options.get("vocab_size") or TRAINED_SIZE)
