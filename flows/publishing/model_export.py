"""`posttrain export hf|gguf`: a model as other tools read it, with its model card."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flows.publishing.model_card import write_model_card
from flows.publishing.new_folder import open_new_folder
from flows.serving.models import Chosen, choose
from learning.models.gguf_writing import GgufType, write_gguf
from learning.models.policy import load_policy, read_dtype, save_policy
from lineage.layout import Layout
from schemas.errors import PlanError

SHARD_SIZE = re.compile(r"\d+(\.\d+)?(MB|GB)")


@dataclass(frozen=True)
class ExportedModel:
    """What was written."""

    folder: Path
    model: str
    """Description of the model that was exported."""
    bytes: int
    files: int
    kept_wider: int = 0
    """Tensors that a GGUF file holds in a wider type than the one that was chosen."""


def export_hf(layout: Layout, word: str, folder: Path, max_shard_size: str) -> ExportedModel:
    """Write a model as a folder of transformers: adapters merged, GGUF files converted, precision kept.

    Raise PlanError if the folder is not empty, UnknownTarget if there is no such model.
    """
    if not SHARD_SIZE.fullmatch(max_shard_size):
        raise PlanError(f"--max-shard-size {max_shard_size}: write a number with MB or GB, as 500MB or 5GB")
    chosen = choose(word, layout)
    with open_new_folder(folder) as fresh:
        write_hf(chosen, fresh, max_shard_size)
        write_model_card(layout, chosen, fresh)
    return _describe(folder, chosen)


def export_gguf(layout: Layout, word: str, folder: Path, kind: GgufType) -> ExportedModel:
    """Write a model as a GGUF file in a folder; raise StepError if a GGUF file cannot hold it exactly."""
    chosen = choose(word, layout)
    with open_new_folder(folder) as fresh, tempfile.TemporaryDirectory(dir=fresh.parent) as work:
        source = Path(work)
        write_hf(chosen, source, "5GB")
        counted = write_gguf(source, fresh / f"{_file_name(chosen.name)}-{kind}.gguf", kind, chosen.name)
        write_model_card(layout, chosen, fresh)
    return _describe(folder, chosen, counted["wider"])


def write_hf(chosen: Chosen, folder: Path, max_shard_size: str) -> None:
    """Write config, weights, tokenizer, template and generation config in the precision of the model's files."""
    policy = load_policy(chosen.folder, dtype=read_dtype(chosen.folder))
    save_policy(policy, folder, max_shard_size)


def _describe(folder: Path, chosen: Chosen, wider: int = 0) -> ExportedModel:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return ExportedModel(folder, chosen.description, sum(sizes), len(sizes), wider)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).removesuffix(".gguf") or "model"
