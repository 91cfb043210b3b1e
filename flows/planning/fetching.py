"""`posttrain fetch`: the models and data sets of the hub that a recipe names, downloaded into the hub's local cache.

No other command downloads anything: runs read the cache only. What `recipe.lock` pins is fetched at that commit. Of a
data set only the files that the recipe's sources read are downloaded; the others are links to files that are not there,
so that every source still sees which files, subsets and splits the data set has.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.planning.locking import lock_path, read_lock
from flows.processes.redaction import make_redactor
from lineage.layout import Layout
from lineage.sources.adapter_base import lacks_base, read_base_name
from lineage.sources.outside import check_outside
from lineage.sources.resolve import COMMIT, find_hub_cache
from schemas.atomic_write import write_text_atomically
from schemas.data_slices import parse_split
from schemas.errors import PlanError, StepError
from schemas.recipe.load import Recipe
from schemas.references import MODEL_TYPES
from schemas.stages.data import Data, Source

TOKEN = "HF_TOKEN"
ENDPOINT = "HF_ENDPOINT"
MAIN = "main"
README = "README.md"
ABSENT = "left-on-the-hub"
"""Where the links of files lead that were not downloaded."""
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
    read = list_read_sources(recipe)
    for reference, kind in list_hub_references(recipe).items():
        check_outside(reference, layout, ())
        pinned = pins.get(reference, {}).get("commit", "")
        commit = pinned if COMMIT.fullmatch(pinned) else None
        folder = download(reference, kind, commit, read.get(reference))
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


def list_read_sources(recipe: Recipe) -> dict[str, list[Source]]:
    """Return the sources that read a data set of the hub, by its reference; none of one that is read in other ways."""
    read: dict[str, list[Source]] = {}
    others: set[str] = set()
    for name, stage in recipe.stages.items():
        of_stage = stage.sources if isinstance(stage, Data) else ()
        sources = {f"sources.{i}.from": source for i, source in enumerate(of_stage)}
        for port in recipe.ports(name):
            if port.source is not None and port.source.startswith("hub:"):
                if port.path in sources:
                    read.setdefault(port.source, []).append(sources[port.path])
                else:
                    others.add(port.source)
    return {reference: sources for reference, sources in read.items() if reference not in others}


def download(reference: str, kind: str, commit: str | None, sources: Sequence[Source] | None = None) -> Path:
    """Return the folder of a repository's files in the cache, at a commit or else the newest of its revision.

    With `sources`, only the files that they read are downloaded. The cache's name for the revision then stands for that
    commit. Raise PlanError; the token is in no message.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download  # half a second, for this command only
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
        of_repository: dict[str, Any] = {"repo_type": kind, "revision": info.sha, "cache_dir": find_hub_cache()}
        of_repository |= {"token": token, "endpoint": endpoint}
        if sources is None:
            _require_space(reference, sum(files.values()))
            folder = Path(snapshot_download(name, ignore_patterns=list(ignored), **of_repository))
        else:
            folder = find_hub_cache() / f"{kind}s--{name.replace('/', '--')}" / "snapshots" / str(info.sha)

            def fetch(file: str) -> None:
                _require_space(reference, files[file])
                (folder / file).unlink(missing_ok=True)
                hf_hub_download(name, file, **of_repository)

            link_absent_files(folder, files)
            fetch_read_files(folder, sources, fetch)
    except StepError as error:
        raise PlanError(f"{reference}: {error}") from error
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        text = make_redactor(frozenset({token} if token else ())).text(f"{type(error).__name__}: {error}")
        advice = f"a private or gated one needs a token in {TOKEN}"
        raise PlanError(f"{reference}: {kind} {name} was not fetched; {advice}: {text}") from None
    if not COMMIT.fullmatch(revision):
        write_text_atomically(folder.parent.parent / "refs" / (revision or MAIN), folder.name)
    return folder


def link_absent_files(folder: Path, files: Iterable[str]) -> None:
    """Make a link to nothing for each file of a data set that is not in its folder."""
    for name in files:
        path = folder / name
        if not path.is_symlink() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(ABSENT)


def fetch_read_files(folder: Path, sources: Iterable[Source], fetch: Callable[[str], None]) -> None:
    """Fetch the files below a folder that sources read; of a slice from the start, as many as have its rows."""
    from learning.data.sources.files import is_absent, list_data_files  # pyarrow takes 0.1 s
    from learning.data.sources.readers import count_records

    if is_absent(folder / README):
        fetch(README)  # it lists subsets and splits
    for source in sources:
        split, part = (None, None) if source.split is None else parse_split(source.split)
        last = None if part is None or part.needs_count else part.stop
        rows = 0
        for path in list_data_files(folder, source.subset, split):
            if last is not None and rows >= last:
                break
            if is_absent(path):
                fetch(path.relative_to(folder).as_posix())
            rows += 0 if last is None else count_records(path)


def _require_space(reference: str, size: int) -> None:
    cache = find_hub_cache()
    cache.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(cache).free) < size:
        raise PlanError(f"{reference}: has {size:,} bytes, and {cache} has {free:,} free; set HF_HUB_CACHE to another")


def measure_size(folder: Path) -> int:
    """Return the bytes of all files below a folder, links followed."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
