"""Adapters as transformers and peft load them: over a base that is a folder of safetensors."""

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

from lineage.layout import Layout
from lineage.sources.converted_bases import find_converted_base, needs_conversion
from lineage.sources.stored_adapters import link_adapter
from schemas.adapter_base import BASE, BaseRecord, read_record


def make_plain(folder: Path, layout: Layout) -> Path:
    """Return a folder with an adapter and a base that transformers loads; any other model's folder as it is.

    A base that is a GGUF file or an adapter is converted once: merged and rounded to the precision of the training, as
    the adapter was trained over it. Raise StepError if it cannot be loaded.
    """
    record = read_record(folder) if needs_conversion(folder) else None
    if record is None:
        return folder
    place = find_converted_base(record, layout)
    if not place.is_dir():
        _convert(folder / BASE, record, place)
    return link_adapter(folder, place, layout)


def _convert(base: Path, record: BaseRecord, place: Path) -> None:
    """Write a base as a folder of transformers; of two processes that do it at once one wins."""
    print("the base of this adapter is converted once, for transformers and peft", file=sys.stderr)
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported: transformers shows a bar per file
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of kernels for weights in 4 bits, none here
    from learning.models.policy import load_policy, save_policy  # torch, which `posttrain path` rarely needs

    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        save_policy(load_policy(base, dtype=record.dtype), fresh)
        fresh.chmod(0o755)
        if not place.is_dir():
            fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
