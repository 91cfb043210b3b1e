"""Models whose costs are measured, and a suitable cluster and workload for each in a simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Shape:
    """A model, and what is measured with it."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    slots: Sequence[int]
    """Sequences at once at which a decode step is measured."""
    contexts: Sequence[int]
    """Tokens before the one that is decoded."""
    groups: Sequence[int]
    """Groups of an iteration at which the update is measured."""
    size: int
    longest: int
    """Tokens of a completion at most, while the update is measured."""
    tokenizer: dict[str, str]
    tied: bool = True
    by_file: bool = True
    """Whether weights go through a file, or from tensor to tensor in the process."""

    @property
    def config(self) -> dict[str, Any]:
        """As an `init` stage takes it."""
        width = self.hidden // self.heads
        heads = {"num_attention_heads": self.heads, "num_key_value_heads": self.key_value_heads, "head_dim": width}
        sizes = {"hidden_size": self.hidden, "intermediate_size": self.feed_forward, "num_hidden_layers": self.layers}
        return {"model_type": "qwen3", **sizes, **heads, "tie_word_embeddings": self.tied}


PLAIN, SMALL = {"use": "characters"}, {"use": "characters", "alphabet": LETTERS}
SHAPES = {
    "quickstart": Shape(96, 288, 4, 4, 4, (1, 4, 16, 48), (16, 128, 512), (2, 8, 24), 8, 256, PLAIN),
    "larger": Shape(256, 768, 8, 8, 4, (1, 4, 16, 32), (16, 128, 512), (1, 2, 4), 8, 256, PLAIN),
    "async_rollout": Shape(64, 128, 2, 4, 2, (1, 8, 32, 128), (4, 12, 24), (2, 8, 32), 4, 24, SMALL, False, False),
}


def make_model(shape: Shape, folder: Path) -> Path:
    """Random weights of a shape."""
    from schemas.stages.init import Init
    from tasks.context import Context
    from tasks.init import run

    values = {"kind": "init", "config": shape.config, "tokenizer": shape.tokenizer, "max_length": 2048}
    folder.mkdir()
    run(Init.model_validate(values), Context({}, folder, folder, seed=0))
    return folder / "outputs" / "model"


def cluster_of(name: str) -> dict[str, Any]:
    """Workers of the simulation."""
    if name == "async_rollout":
        return _told(gpus_per_replica=(1, "the generator is one thread"), slots=(256, "the torch engine's own"))
    return _told(gpus_per_replica=(1, "a worker is one core"), slots=(24, "as many in all as the assumed cluster has"))


def work_of(name: str) -> dict[str, Any]:
    """Work of the simulation: that of the assumed cluster at 1/32 of its lengths, or that of the benchmark."""
    late = "that of benchmarks/async_rollout.py"
    waits = {"latency_from": (0.05, late), "latency_shape": (1.5, late), "latency_cut": (60.0, late)}
    if name == "async_rollout":
        sizes = {"groups": (8, late), "size": (4, late), "prompt": (5, late), "longest": (24, late)}
        return _told(**sizes, stops=(0.0125, "a mean of 20.9 tokens, cut at 24: that of its completions"), **waits)
    shorter = "1/32 of the assumed work's"
    sizes = {"groups": (512, "as in the assumed work"), "size": (16, "as in the assumed work"), "prompt": (16, shorter)}
    spread = {"median_length": (125, shorter), "length_sigma": (1.0, "as there"), "longest": (1024, shorter)}
    return _told(**sizes, **spread, **waits)


def _told(**values: tuple[float, str]) -> dict[str, Any]:
    return {key: {"value": value, "why": why} for key, (value, why) in values.items()}
