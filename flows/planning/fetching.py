"""`posttrain fetch`: the models and data sets of the hub that a recipe names, downloaded into the hub's local cache.

No other command downloads anything: runs read the cache only. What `recipe.lock` pins is fetched at that commit.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.planning.locking import lock_path, read_lock
from flows.processes.redaction import make_redactor
from lineage.layout import Layout
from lineage.sources.adapter_base import lacks_base, read_base_name
from lineage.sources.outside import check_outside
from lineage.sources.resolve import COMMIT, find_hub_cache
from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError
from schemas.recipe.load import Recipe
from schemas.references import MODEL_TYPES

TOKEN = "HF_TOKEN"
ENDPOINT = "HF_ENDPOINT"
MAIN = "main"
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.onnx", "*.onnx_data")
"""Copies of the weights in formats that are not read where a repository has safetensors."""


@dataclass(frozen=True)
class Fetched:
    """A repository in the local cache."""

    reference: str
    commit: str
    size: int
    """Bytes of its files."""
    is_pinned: bool
    """Whether the commit is that of recipe.lock."""


def fetch_hub(recipe: Recipe, file: Path, layout: Layout, *, update: bool) -> Iterator[Fetched]:
    """Download every `hub:` reference of a recipe, and the bases of adapters; yield each once it is there.

    Commits are those of the lock beside the recipe's file, if there is one, unless `update`. Raise PlanError for a
    repository that cannot be fetched.
    """
    lock = lock_path(file)
    pins = {} if update or not lock.is_file() else read_lock(lock)["sources"]
    for reference, kind in list_hub_references(recipe).items():
        check_outside(reference, layout, ())
        pinned = pins.get(reference, {}).get("commit", "")
        commit = pinned if COMMIT.fullmatch(pinned) else None
        folder = download(reference, kind, commit)
        yield Fetched(reference, folder.name, measure_size(folder), commit is not None)
        if lacks_base(folder) and (name := read_base_name(folder, reference)) is not None:
            base = f"hub:{name}"
            check_outside(base, layout, ())
            folder = download(base, "model", None)
            yield Fetched(base, folder.name, measure_size(folder), False)


def list_hub_references(recipe: Recipe) -> dict[str, str]:
    """Return the `hub:` references of all steps, each with what it is on the hub: `model` or `dataset`."""
    return {
        port.source: "model" if set(port.accepts) & set(MODEL_TYPES) else "dataset"
        for name in recipe.steps
        for port in recipe.ports(name)
        if port.source is not None and port.source.startswith("hub:")
    }


def download(reference: str, kind: str, commit: str | None) -> Path:
    """Return the folder of a repository's files in the cache, at a commit or else the newest of its revision.

    The cache's name for the revision then stands for that commit. Raise PlanError; the token is in no message.
    """
    from huggingface_hub import HfApi, snapshot_download  # half a second, for this command only
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    name, _, revision = reference.removeprefix("hub:").partition("@")
    token, endpoint = os.environ.get(TOKEN) or None, os.environ.get(ENDPOINT) or None
    try:
        api = HfApi(endpoint=endpoint, token=token)
        describe = api.model_info if kind == "model" else api.dataset_info
        info = describe(name, revision=commit or revision or MAIN, files_metadata=True)
        files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        ignored = OTHER_WEIGHTS if kind == "model" and any(file.endswith(".safetensors") for file in files) else ()
        _require_space(reference, sum(files.values()))
        folder = Path(
            snapshot_download(
                name,
                repo_type=kind,
                revision=info.sha,
                cache_dir=find_hub_cache(),
                ignore_patterns=list(ignored),
                token=token,
                endpoint=endpoint,
            )
        )
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        text = make_redactor(frozenset({token} if token else ())).text(f"{type(error).__name__}: {error}")
        advice = f"a private or gated one needs a token in {TOKEN}"
        raise PlanError(f"{reference}: {kind} {name} was not fetched; {advice}: {text}") from None
    if not COMMIT.fullmatch(revision):
        write_text_atomically(folder.parent.parent / "refs" / (revision or MAIN), folder.name)
    return folder


def _require_space(reference: str, size: int) -> None:
    cache = find_hub_cache()
    cache.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(cache).free) < size:
        raise PlanError(f"{reference}: has {size:,} bytes, and {cache} has {free:,} free; set HF_HUB_CACHE to another")


def measure_size(folder: Path) -> int:
    """Return the bytes of all files below a folder, links followed."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
