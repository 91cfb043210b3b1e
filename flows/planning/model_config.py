"""The configuration of a model in a folder, from its config.json or from the header of its GGUF file."""

import json
from pathlib import Path

from schemas.base import JsonObject
from schemas.errors import StepError


def read_model_config(base: Path) -> JsonObject:
    """Return the configuration of a model folder.

    Raise StepError if it has none, OSError or ValueError if it cannot be read.
    """
    if (base / "config.json").is_file():
        return json.loads((base / "config.json").read_text())
    from learning.models.policy import open_gguf  # torch comes with it

    if (gguf := open_gguf(base)) is None:
        raise StepError(f"{base.name} has no config.json")
    return gguf.read_config()
