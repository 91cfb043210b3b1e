"""How much memory the parts of a step hold at their worst moment: arithmetic only, no model is made.

A place is one process (with its GPU, where it has one). It goes through phases; what it needs is what the largest of
them holds. Sums are of tensors: what Python, the libraries and a CUDA context take themselves is not in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from learning.memory_model.forward import FULL, Forward
from learning.memory_model.shape import Shape

PREFILL_TOKENS = 16384
"""As in `learning.generation.engines.running`."""
COLUMNS = 64
"""As STEP in `learning.generation.engines.slots`."""
LOGITS_AT_ONCE = 1 << 22
"""As in `learning.generation.engines.token_sampling`."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
QUANTISED = 1 + FULL / 256
"""Bytes of a moment in 8 bits, with its share of the scale of a block."""


FOUR_BITS = {False: 0.5 + FULL / 64, True: 0.5 + 1 / 64 + FULL / (64 * 256)}
"""Bytes of a weight in 4 bits with its share of the scale of a block, by whether the scales are quantised as well."""


def moment_bytes(optimizer: str, size: int) -> float:
    """Return the bytes of state that an optimiser keeps for each trained number of `size` bytes.

    Adafactor's row and column factors are not counted; Muon keeps one moment in blocks and two elsewhere, counted as
    two.
    """
    numbers = {"adamw": 2, "muon": 2, "lion": 1, "adafactor": 0}
    quantised = {"adamw_8bit": 2 * QUANTISED, "lion_8bit": QUANTISED}
    return quantised[optimizer] if optimizer in quantised else numbers[optimizer] * size


@dataclass(frozen=True)
class Phase:
    """What is held at one moment, by part, in bytes."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Place:
    """A process of a step: its role, how many there are of the kind, its phases."""

    role: str
    phases: tuple[Phase, ...]
    workers: int = 1

    @property
    def peak(self) -> Phase:
        """The worst moment."""
        return max(self.phases, key=lambda phase: phase.total)


@dataclass(frozen=True)
class Trained:
    """A model that is trained: its weights, which of them change, and on how many processes they are spread."""

    shape: Shape
    parameters: int
    trained: int
    size: int = FULL
    shards: int = 1
    """Processes that hold a share each (fsdp2); 1: everything is here."""
    copies: bool = False
    """Whether gradients are held a second time for their exchange (ddp)."""
    optim: str = "adamw"
    """Name of the optimiser."""
    quantised: tuple[int, ...] = ()
    """Weights of each matrix in 4 bits."""
    nested: bool = False
    """Whether the scales of their blocks are quantised as well."""
    loads_here: bool = False
    """Whether the memory of this place holds the weights before they are quantised."""

    @property
    def weights(self) -> int:
        """Bytes of the weights that stay here; adapters are in float32."""
        frozen = self.parameters - (self.trained if self.trained == self.parameters else 0)
        trained = self.trained * (self.size if not frozen else FULL)
        return -(-(frozen * self.size + trained - self._saved) // self.shards)

    @property
    def _saved(self) -> int:
        """Return the bytes that quantised weights save: all of them, but one matrix is converted back for a product."""
        saved = sum(self.quantised) * (self.size - FOUR_BITS[self.nested])
        return int(saved - max(self.quantised, default=0) * self.size)

    @property
    def loading(self) -> int:
        """Return the bytes of the weights when the first of them are quantised; 0 if that takes no more than later."""
        return self.parameters * self.size if self.quantised and self.loads_here else 0

    @property
    def gradients(self) -> int:
        """Bytes."""
        size = self.size if self.trained == self.parameters else FULL
        return -(-self.trained * size // self.shards)

    @property
    def optimizer(self) -> int:
        """Bytes of the optimiser's state."""
        size = self.size if self.trained == self.parameters else FULL
        return round(self.gradients / size * moment_bytes(self.optim, size))

    @property
    def gathered_to_infer(self) -> int:
        """Bytes of what is whole for a moment in a pass without gradients: two layers and both ends."""
        if self.shards == 1:
            return 0
        ends = self.shape.vocabulary * self.shape.width * (1 if self.shape.tied else 2)
        return (2 * self.shape.layer_parameters + ends) * self.size

    @property
    def gathered(self) -> int:
        """Bytes of what is whole for a moment although it is spread: two layers and both ends, with gradients.

        Replicas hold gradients a second time, in the buckets of their exchange.
        """
        if self.shards == 1:
            return self.gradients if self.copies else 0
        ends = self.shape.vocabulary * self.shape.width * (1 if self.shape.tied else 2)
        return (3 * self.shape.layer_parameters + 2 * ends) * self.size


def estimate_training(model: Trained, forward: Forward, passes: int, *, name: str = "update") -> tuple[Phase, ...]:
    """Return the moments of an update: when the backward pass begins, when it ends, when the optimiser steps.

    With several `passes` per step the gradient of the first is there while the others run.
    """
    bytes_of_parts = {"weights": model.weights, "optimizer": model.optimizer, "exchange": model.gathered}
    shape, size = model.shape, model.size
    trains_all = model.trained == model.parameters
    matrix = shape.vocabulary * shape.width * size if trains_all and forward.chunks else 0
    before = model.gradients if passes > 1 else 0
    head = matrix + max(forward.logits, forward.backward) if forward.chunks else forward.backward
    more = matrix if forward.chunks > 1 else 0
    tied = shape.vocabulary * shape.width * size if trains_all and shape.tied and forward.chunks else 0
    last = forward.backward + forward.layer()
    loading = (Phase("loading", {"weights": model.loading}),) if model.loading else ()
    begins = {
        "gradients": before,
        "activations": forward.saved,
        "logits" if forward.chunks else "backward": head + more,
    }
    ends = {"gradients": model.gradients + tied, "activations": last}
    moments = (("backward begins", begins), ("backward ends", ends))
    return *(Phase(f"{name}: {moment}", {**bytes_of_parts, **parts}) for moment, parts in moments), *loading


@dataclass(frozen=True)
class Slots:
    """What the torch engine is asked for: samples at once, columns of their cache, all samples, and their prompts."""

    slots: int
    columns: int
    completion: int
    samples: int
    prompts: int
    entropy: bool = False
    seats: int = 0
    """Places for samples of a flight, whose results are taken out as they end; 0: a call, which keeps all of them."""
    keeps_turns: bool = False
    """Whether samples are episodes, whose turns leave their keys and values for the next ones."""

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""
        return self.columns - self.completion


def estimate_sampling(shape: Shape, size: int, call: Slots) -> dict[str, int]:
    """Return the peak bytes of a call of engine torch: cache, tables of samples, and the work of a step.

    The slabs of the cache are made once the first prompts are computed; only a later refill holds both.
    """
    columns = -(-call.columns // COLUMNS) * COLUMNS
    slab = call.slots * (shape.cache_bytes(columns, size) + columns * FULL)
    stored, drawn = call.seats or call.samples, call.seats or call.slots
    table = call.completion * (stored * (8 + FULL * (1 + call.entropy)) + drawn * 8)
    rows = min(call.prompts, call.slots)
    prompts = rows * shape.cache_bytes(call.prompt, size)
    width = 3 * shape.width + 3 * shape.inner * max(shape.active, 1)
    prefill = min(rows * call.prompt, PREFILL_TOKENS) * width * size
    drawn_at_once = min(call.slots, max(1, LOGITS_AT_ONCE // shape.vocabulary))
    step = shape.vocabulary * (call.slots * size + drawn_at_once * (2 * FULL + 16))
    moments = [(prompts, prefill), (slab + prompts, 0), (slab, step)]
    if call.keeps_turns:
        kept = call.slots * shape.cache_bytes(call.columns, size)
        moments.append((slab + kept, max(prefill, step)))
    if call.samples > call.slots:
        moments.append((slab + prompts, prefill))
    cache, work = max(moments, key=sum)
    return {"cache": cache + table, "sampling": work}


def estimate_paged(shape: Shape, size: int, tokens: int) -> int:
    """Return bytes of vLLM's cache for so many tokens, in whole blocks of 16."""
    return shape.cache_bytes(-(-tokens // 16) * 16, size)


def estimate_auxiliary(phases: tuple[Phase, ...], part: str, more: int) -> tuple[Phase, ...]:
    """Return the phases with something that is held throughout."""
    return tuple(replace(p, parts={**p.parts, part: p.parts.get(part, 0) + more}) for p in phases) if more else phases
