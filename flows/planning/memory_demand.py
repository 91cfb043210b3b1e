"""What the memory of a step follows from, as the estimates of all kinds (`flows.planning.memory_kinds`) read it.

Where a length depends on data that are still to be made, the longest that the settings allow counts. The estimates are
not part of the tasks, so that a change of an estimate does not change the key of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flows.planning.memory_lengths import Lengths
from flows.planning.memory_models import KnownModel
from learning.memory_model.estimate import BYTES, Trained
from learning.memory_model.forward import Forward, Pass, Precision
from learning.memory_model.shape import Adapters
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.resources import Resources, Role


def read_adapters(settings: JsonObject) -> Adapters:
    """Return the adapters that the settings of a stage with `use_peft` describe."""
    saved, targets = tuple(settings["modules_to_save"]), settings["lora_target_modules"]
    return Adapters(settings["lora_r"], targets, saved, settings["use_dora"])


@dataclass(frozen=True)
class StepDemand:
    """A step: settings, resources, models by port, lengths of rows; limits `gpu` (bytes) and `prompt` (tokens)."""

    settings: JsonObject
    resources: Resources
    models: Mapping[str, KnownModel | str]
    gpu: int | None = None
    prompt: int | None = None
    lengths: Lengths | None = None
    """Lengths of the rows; None where they are not known before a run."""

    def model(self, port: str = "model") -> KnownModel:
        """Return the model at a port. Raise StepError if it is unknown."""
        model = self.models.get(port, f"port `{port}` has no model")
        if isinstance(model, str):
            raise StepError(model)
        return model

    @property
    def trainer(self) -> Role | Resources:
        """Return the resources that hold the trained model: those of the group, or of the step's own process."""
        return self.resources.train or self.resources

    @property
    def workers(self) -> int:
        """Return the number of processes that train."""
        return self.resources.train.workers if self.resources.train else 1

    @property
    def role(self) -> str:
        """Return the role of these processes."""
        return "train" if self.resources.train else "step"

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of a weight."""
        return BYTES[self.settings.get("dtype", "float32")]

    @property
    def precision(self) -> Precision:
        """Return the precision of a training pass."""
        rank = self.settings["lora_r"] if self.settings.get("use_peft") else 0
        mixed = bool(self.settings.get("bf16"))
        return Precision(self.weight_bytes, on_cpu=not self.trainer.num_gpus, rank=rank, mixed=mixed)

    def forward(self, model: KnownModel, tokens: Pass) -> Forward:
        """Return a training pass of a model."""
        return model.estimate_pass(tokens, self.precision, bool(self.settings.get("gradient_checkpointing")))

    def trained(self, model: KnownModel, parameters: int | None = None) -> Trained:
        """Return a model in training, spread as `resources` says."""
        total = trainable = parameters or model.parameters
        if self.settings.get("use_peft"):
            head = model.shape.width if self.settings["kind"] == "reward_model" else 0
            trainable = model.shape.adapter_parameters(read_adapters(self.settings)) + head
        strategy = self.resources.train.strategy if self.resources.train and self.workers > 1 else None
        shards = self.workers if strategy == "fsdp2" else 1
        optim = self.settings.get("optim", "adamw")
        saved, in_4_bits = (
            tuple(self.settings.get("modules_to_save") or ()),
            self.settings.get("use_peft") and self.settings["load_in_4bit"],
        )
        return Trained(
            model.shape,
            total,
            trainable,
            self.weight_bytes,
            shards,
            copies=strategy == "ddp",
            optim=optim,
            quantised=tuple(model.shape.quantised_matrices(saved)) if in_4_bits else (),
            nested=bool(self.settings.get("use_bnb_nested_quant")),
            loads_here=not self.trainer.num_gpus,
        )

    def row_limit(self, model: KnownModel) -> int:
        """Return the most tokens that a row may have."""
        return min(self.settings.get("max_length") or model.max_length, model.max_length)

    def row_tokens(self, model: KnownModel) -> int:
        """Return the tokens of the longest row."""
        limit = self.row_limit(model)
        return limit if self.lengths is None else min(limit, self.lengths.row)

    def prompt_tokens(self, model: KnownModel) -> int:
        """Return the tokens of the longest prompt: as given, as the rows are, or all that the model has room for."""
        room = max(1, model.max_length - self.settings["max_completion_length"])
        return min(self.prompt or (self.lengths.prompt if self.lengths else 0) or room, room)

    def samples(self, most: int) -> int:
        """Return the completions that are in progress at a time, `most` or as many as the rows need."""
        if self.lengths is None:
            return most
        rows = min(self.lengths.rows, self.settings.get("limit") or self.lengths.rows)
        return min(most, rows * self.settings["num_generations"])
