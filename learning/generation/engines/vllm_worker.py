"""Code inside vLLM's workers: sampling of tokens and loading of weights. Importing this module imports vLLM.

Tokens are drawn as in engine `torch`, by `token_sampling.pick` from the random stream of (seed, number): a completion
does not depend on the rest of the batch, continues where it was suspended, and reports the log-probabilities of the
distribution it was drawn from. vLLM's own sampler has neither resumable streams nor logits processors per call.

Shapes: B rows of a decode step, X those with the same sampling, V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality  # pyright: ignore[reportMissingImports]  # an extra
from vllm.v1.sample.metadata import SamplingMetadata  # pyright: ignore[reportMissingImports]  # an extra
from vllm.v1.sample.sampler import Sampler  # pyright: ignore[reportMissingImports]  # an extra

from learning.generation.engines.token_sampling import pick
from learning.samples.engine_protocol import Processor
from schemas.kept_tokens import KeptTokens

Record = tuple[int, int, float, float, str]
"""Number of a completion, position of the token in it, log-probability, entropy, record of the kept tokens."""


Settings = tuple[Processor | None, bool, KeptTokens | None]
"""Of a flight: its logits processor, whether entropies are recorded, and which tokens are kept."""


@dataclass(frozen=True)
class Row:
    """One running completion: number, sampling, temperature, tokens of its suspended beginning, stream, new tokens."""

    number: int
    sampling: int
    temperature: float
    begun: int
    uniform_K: np.ndarray
    sampled: list[int]

    @property
    def place(self) -> int:
        """Return the position in the completion of the next token."""
        return self.begun + len(self.sampled)


class Rows(LogitsProcessor):
    """Tracks which row of vLLM's batch is which completion; does not change logits."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Return True: the logits are not changed."""
        return True

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits unchanged."""
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply removed, added and moved rows, in the order that vLLM prescribes."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, params, _, sampled in batch_update.added:
            extra = params.extra_args
            if not extra:
                self.rows.pop(index, None)
                continue
            stream = np.random.Generator(np.random.Philox(key=np.array(extra["stream"], dtype=np.uint64)))
            uniform_K = stream.random(extra["most"])
            self.rows[index] = Row(
                extra["number"], extra["sampling"], extra["temperature"], extra["begun"], uniform_K, sampled
            )
        for first, second, direction in batch_update.moved:
            row, other = self.rows.pop(first, None), self.rows.pop(second, None)
            if row is not None:
                self.rows[second] = row
            if other is not None and direction is MoveDirectionality.SWAP:
                self.rows[first] = other


class Picking(Sampler):
    """Draws tokens from the random streams of the rows and records their log-probabilities and entropies."""

    def __init__(self) -> None:
        super().__init__()
        self.samplings: dict[int, Settings] = {}
        """By the number of a flight's sampling."""
        self.records: list[Record] = []

    def sample(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, logprobs_mode_override: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return tokens (B,), without log-probabilities, which are in `records`."""
        rows_processor = next((p for p in sampling_metadata.logitsprocs.argmax_invariant if isinstance(p, Rows)), None)
        if rows_processor is None or not rows_processor.rows:
            return super().sample(logits, sampling_metadata, logprobs_mode_override)
        rows = [rows_processor.rows[index] for index in range(len(logits))]
        together: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            together.setdefault(row.sampling, []).append(index)
        token_B = torch.zeros(len(rows), dtype=torch.long, device=logits.device)
        for sampling, members in together.items():
            at_X = torch.tensor(members, device=logits.device)
            token_B[at_X] = self._picked(logits[at_X], [rows[index] for index in members], self.samplings[sampling])
        return token_B, None

    def _picked(self, logits_XV: Tensor, rows: list[Row], settings: Settings) -> Tensor:
        """Return tokens (X,) of rows with the same sampling."""
        processor, entropy, kept_tokens = settings
        heats, places = [row.temperature for row in rows], [row.place for row in rows]
        uniforms = [row.uniform_K[min(row.place, len(row.uniform_K) - 1)] for row in rows]
        picked = pick(
            logits_XV,
            torch.tensor(heats, dtype=torch.float32, device=logits_XV.device),
            torch.tensor(uniforms, dtype=torch.float64, device=logits_XV.device)[:, None] if any(heats) else None,
            greedy=not all(heats),
            place_B=torch.tensor(places, device=logits_XV.device),
            processor=processor,
            entropy=entropy,
            kept_tokens=kept_tokens,
        )
        entropies = [0.0] * len(rows) if picked.entropy_B is None else picked.entropy_B.tolist()
        numbers = [row.number for row in rows]
        kept = picked.kept or [""] * len(rows)
        self.records += zip(numbers, places, picked.logprob_B.tolist(), entropies, kept, strict=True)
        return picked.token_B


class Extension:
    """Methods that are added to every worker of vLLM."""

    model_runner: Any

    def posttrain_install(self) -> None:
        """Replace vLLM's sampler by `Picking`."""
        self.model_runner.sampler = Picking()

    def posttrain_sampling(self, number: int, settings: Settings, over: list[int]) -> None:
        """Set the sampling of a flight; remove those in `over`, which have ended."""
        samplings = self.model_runner.sampler.samplings
        samplings[number] = settings
        for one in over:
            samplings.pop(one, None)

    def posttrain_records(self) -> list[Record]:
        """Return and clear the records since the last call."""
        records, self.model_runner.sampler.records = self.model_runner.sampler.records, []
        return records

    def posttrain_load(self, weights: Iterable[tuple[str, Tensor]] | str) -> dict[str, list[str]]:
        """Load weights, given as pairs or as the path of a safetensors file.

        Return names: `given` tensors that arrived, `missing` parameters of the engine that none of them filled,
        `proven` parameters that equal what was given, `wrong` ones that do not; repacked parameters are in neither.
        """
        given: dict[str, Tensor] = {}
        model = self.model_runner.get_model()
        wanted = {name for name, _ in model.named_parameters()}
        filled: set[str] = set()
        load = model.load_weights

        def noting(arriving: Iterable[tuple[str, Tensor]]) -> Any:
            loaded = load(arriving)
            filled.update(wanted if loaded is None else loaded)  # some models do not report it
            return loaded

        model.load_weights = noting
        try:
            self.model_runner.reload_weights(weights_iterator=_record_tensors(weights, given))
        finally:
            del model.load_weights
        proven, wrong = _compare_parameters(model, given)
        return {"given": [*given], "missing": sorted(wanted - filled), "proven": proven, "wrong": wrong}


def _record_tensors(
    weights: Iterable[tuple[str, Tensor]] | str, given: dict[str, Tensor]
) -> Iterable[tuple[str, Tensor]]:
    """Yield the tensors one by one and record them in `given`."""
    if isinstance(weights, str):
        from safetensors.torch import load_file

        weights = load_file(Path(weights)).items()
    for name, tensor in weights:
        given[name] = tensor
        yield name, tensor


def _compare_parameters(model: Any, given: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """Return parameters that equal what was given, and those that do not; shards and packed ones are left out.

    vLLM fuses tensors (`qkv_proj` of `q_proj`, `k_proj`, `v_proj`) and pads the vocabulary.
    """
    fused = getattr(model, "packed_modules_mapping", {})
    proven, wrong = [], []
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        above, _, last = module.rpartition(".")
        parts = [f"{above}.{part}.{kind}" for part in fused.get(last, ())]
        if name not in given and not (parts and all(part in given for part in parts)):
            continue
        came = given[name] if name in given else torch.cat([given[part] for part in parts])
        if parameter.ndim != came.ndim or not 0 < came.numel() <= parameter.numel():
            continue
        if parameter.shape[1:] != came.shape[1:]:
            continue
        same = torch.equal(parameter[: len(came)], came.to(parameter.device, parameter.dtype))
        (proven if same else wrong).append(name)
    return proven, wrong
