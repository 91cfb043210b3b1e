"""Models and data sets of other tools as references: files by their path from the recipe, else the hub."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.data_files import is_data_file
from schemas.importers.common.shell import find_unset

HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
OWNERS = {
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community"),
    **dict.fromkeys(("gsm8k", "openai_humaneval", "summarize_from_feedback"), "openai"),
    **dict.fromkeys(("imdb", "sst2"), "stanfordnlp"),
    "ag_news": "fancyzhx",
    "c4": "allenai",
    "distilgpt2": "distilbert",
    "squad": "rajpurkar",
    "wikitext": "Salesforce",
}
"""Owners of repositories that the hub also knows without one."""


@dataclass(frozen=True)
class Places:
    """Where relative paths of the configuration begin, and the folder of the recipe."""

    folders: tuple[Path, ...]
    """Folder of the configuration, then the current one."""
    recipe: Path

    def find(self, name: str) -> Path | None:
        """Return the file or folder of a name, or None."""
        for folder in self.folders:
            try:
                place = folder / Path(name).expanduser()
                if place.exists():
                    return place
            except (OSError, RuntimeError, ValueError):
                return None
        return None

    def write(self, name: str) -> str:
        """Return the `path:` of a file; one that does not exist is taken to be beside the configuration."""
        if name.startswith("~"):
            return f"path:{name}"
        place = self.find(name) or self.folders[0] / name
        if Path(name).is_absolute():
            return f"path:{name}"
        relative = Path(os.path.relpath(place.resolve(), self.recipe.resolve())).as_posix()
        return f"path:{relative if relative.startswith('..') else './' + relative}"


def refer(name: Any, places: Places, revision: Any = None) -> str:
    """Return the reference of a model or data set; what the configuration does not set is a path of its name.

    Raise ValueError for an address on the net, and for a name of the hub without its owner.
    """
    text = str(name).strip()
    if find_unset(text):
        return places.write(re.sub(r"[^\w./-]+", "", text).lstrip("/") or "unset")
    if "://" in text:
        raise ValueError(f"{text} is an address: fetch the files and name their folder")
    is_path = text.startswith(("/", "./", "../", "~")) or is_data_file(text) or places.find(text) is not None
    if is_path:
        return places.write(text)
    text = f"{OWNERS[text]}/{text}" if text in OWNERS else text
    if not HUB.fullmatch(text):
        if re.fullmatch(r"[\w.-]+", text):
            raise ValueError(f"{text} is no file here, and names of the hub have an owner: write owner/{text}")
        if re.fullmatch(r"[\w.\- /]+", text):
            return places.write(text)
        raise ValueError(f"{text!r} is neither a path nor a name of the hub")
    named = revision is not None and str(revision) not in ("", "main", "None")
    return f"hub:{text}@{revision}" if named else f"hub:{text}"
