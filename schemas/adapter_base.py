"""The base model of an adapter's folder: where it is, and how a finished step refers to it.

The base is in `base/`, a folder or a link to one, and may be an adapter itself. The artifact of a step has no `base/`
but `base.json`, the record of the artifact or outside source that holds it.
"""

import json
from pathlib import Path

from schemas.base import Schema

CONFIG, BASE, RECORD = "adapter_config.json", "base", "base.json"
MOST = 64
"""Most adapters over each other."""


class BaseRecord(Schema):
    """What an adapter was trained over."""

    dtype: str
    """Precision in which the base was loaded."""
    bnb_4bit_quant_type: str | None = None
    """Type of its weights in 4 bits; None: they were not quantised."""
    use_bnb_nested_quant: bool | None = None
    """Whether the scales of its blocks were quantised as well; None: they were not."""
    kind: str | None = None
    """Kind of the artifact that holds the base."""
    key: str | None = None
    """Key of that artifact; None: the base is in the hub's cache."""
    output: str | None = None
    """Named output of that artifact."""
    source: str | None = None
    """Reference to the hub, with the commit."""
    digest: str | None = None
    """Content digest of the output, or digest of the source."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / CONFIG).is_file()


def find_plain_base(folder: Path) -> Path:
    """Return the folder of the model below all adapters of a folder; the folder itself if it is no adapter."""
    for _ in range(MOST):
        if not is_adapter(folder):
            break
        folder = folder / BASE
    return folder


def find_tokenizer_folder(folder: Path) -> Path:
    """Return the folder of a model's tokenizer: an adapter of a step has its own, another one that of its base."""
    for _ in range(MOST):
        own = (folder / RECORD).is_file() or not (folder / BASE / "tokenizer.json").is_file()
        if not is_adapter(folder) or (own and (folder / "tokenizer.json").is_file()):
            break
        folder = folder / BASE
    return folder


def read_record(folder: Path) -> BaseRecord | None:
    """Return the record of an adapter's base; None if its folder has none. Raise ValueError if it cannot be read."""
    file = folder / RECORD
    return BaseRecord.model_validate_json(file.read_bytes()) if file.is_file() else None


def write_record(folder: Path, record: BaseRecord) -> None:
    """Write the record; equal records give equal bytes."""
    content = record.model_dump(exclude_none=True)
    (folder / RECORD).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
