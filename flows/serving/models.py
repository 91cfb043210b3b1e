"""Which model is meant: a champion, a step, a key, a folder, a source from outside."""

from dataclasses import dataclass
from pathlib import Path

from flows.gates.promotion import artifact
from lineage.champions import ALIAS, champion, check_artifact
from lineage.layout import Layout
from lineage.sources import find_source
from lineage.store import Store
from schemas.errors import PlanError

FILES = ("config.json", "adapter_config.json")
MODELS = ("policy", "adapter")


@dataclass(frozen=True)
class Chosen:
    """A model that can be loaded."""

    name: str
    """What clients call it."""
    folder: Path
    digest: str
    """Content digest, or the hub's commit; empty for a folder."""
    said: str
    """What it is, for people."""
    alias: str | None = None
    """Registered model whose champion it is."""


def choose(word: str, layout: Layout, name: str | None = None) -> Chosen:
    """The model that a word means; `name` is what clients call it. Raises PlanError, UnknownTarget."""
    scheme, colon, rest = word.partition(":")
    folder = Path(word).expanduser()
    if colon and scheme == "mlflow":
        found = _registered(rest, layout)
    elif colon and scheme in ("path", "hub"):
        source = find_source(word, layout, (Path.cwd(), layout.root))
        found = Chosen(rest.rstrip("/").rpartition("/")[2] or rest, source.folder, source.digest, word)
    elif any((folder / file).is_file() for file in FILES):
        found = Chosen(folder.resolve().name, folder.resolve(), "", str(folder))
    else:
        found = _made(word, layout)
    return found if name is None else Chosen(name, found.folder, found.digest, found.said, found.alias)


def _registered(rest: str, layout: Layout) -> Chosen:
    """A version of a registered model, by default its champion."""
    name, _, version = rest.partition("@")
    if version not in ("", ALIAS):
        source = find_source(f"mlflow:{rest}", layout, ())
        return Chosen(name, source.folder, source.digest, f"mlflow:{rest}")
    found = champion(layout, name)
    if found is None:
        raise PlanError(f"mlflow:{name}@{ALIAS}: there is no champion yet; see: posttrain champions")
    manifest = Store(layout).with_key(found.key)
    if manifest is None or found.folder is None:
        raise PlanError(f"mlflow:{name}@{ALIAS}: version {found.version} ({found.key[:16]}) is not in this checkout")
    check_artifact(layout, manifest)
    said = f"mlflow:{name}@{ALIAS}, version {found.version}: {manifest.recipe}.{manifest.step} ({found.key[:12]})"
    return Chosen(name, found.folder, found.digest, said, alias=name)


def _made(word: str, layout: Layout) -> Chosen:
    """A model that a step made."""
    manifest = artifact(layout, word)
    output = next((name for name, output in manifest.outputs.items() if output.type in MODELS), None)
    if output is None:
        kinds = ", ".join(output.type for output in manifest.outputs.values())
        raise PlanError(f"{manifest.step} ({manifest.key[:12]}) makes {kinds}; a policy or an adapter can be served")
    check_artifact(layout, manifest)
    folder = Store(layout).output_folder(manifest.kind, manifest.key, output)
    said = f"{manifest.recipe}.{manifest.step} ({manifest.key[:12]})"
    return Chosen(manifest.step, folder, manifest.outputs[output].digest, said)
