"""From the configuration of another tool to a recipe, and to a report that accounts for every key."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.importers.common.draft import Draft
from schemas.importers.common.files import Config, read_config
from schemas.importers.common.job import Job, Tool
from schemas.importers.common.leaves import Leaves, is_off
from schemas.importers.common.references import Places
from schemas.importers.common.report import Entry
from schemas.importers.common.shell import VARIABLE, find_unset
from schemas.importers.known_keys.trees import matches
from schemas.importers.tools import (
    axolotl,
    llama_factory,
    llama_factory_v1,
    lm_eval,
    mergekit,
    open_instruct,
    oumi,
    trl,
    verl,
)
from schemas.source.tree import Mark, make_error
from schemas.suggestions import find_nearest, suggest

TOOLS: dict[str, Tool] = {
    module.TOOL.name: module.TOOL
    for module in (axolotl, llama_factory, llama_factory_v1, trl, oumi, verl, open_instruct, mergekit, lm_eval)
}
GLOBAL_BATCHES = (verl.TOOL, mergekit.TOOL, lm_eval.TOOL)
"""Tools whose batches are those of all devices together, or that have none."""
INFO = "dataset_info.json"
NO_COUNTERPART = "posttrain has nothing for it; the recipe is written without it"
FALSE_KEYS = ("stage", "template", "finetuning_type")
"""Keys of LLaMA-Factory that are words of other tools as well."""


@dataclass(frozen=True)
class Imported:
    """A recipe and what became of every key of the input."""

    tool: Tool
    text: str
    entries: tuple[Entry, ...]


def import_config(files: Sequence[Path], tool: str | None, recipe: Path, devices: int | None = None) -> Imported:
    """Return the recipe of a configuration; several files are one configuration, the later on top.

    `tool` is a name of `TOOLS`, with a colon and a trainer for TRL (`trl:dpo`), or None: recognised by the keys.
    `recipe` is where the recipe will stand: its paths are relative to it. `devices` are those of the training; None:
    as many as the launcher's options say. Raise RecipeError.
    """
    infos: dict[str, object] = {}
    configs: list[Config] = []
    for file in files:
        config = read_config(file)
        if file.name == INFO:
            infos |= config.tree
        else:
            configs.append(config)
    if not configs:
        raise make_error(
            Mark(str(files[0]), 1, 1), "", f"{INFO} alone is no configuration", "give the YAML file as well"
        )
    tree: dict[str, object] = {}
    for config in configs:
        tree = _merge(tree, config.tree)
    words = tuple(word for config in configs for word in config.words)
    name, _, trainer = (tool or "").partition(":")
    chosen = find_tool(name) if name else recognise(tree, words, configs[0].file)
    tree, negated = _read_negations(tree, chosen) if words else (tree, {})
    leaves = Leaves(tree, configs[0].file)
    places = Places(tuple(dict.fromkeys((configs[0].folder, Path.cwd()))), recipe.resolve().parent)
    infos |= _read_infos(tree, places) if chosen.name == "llama-factory" and not infos else {}
    draft = Draft(leaves, _make_name(recipe))
    devices = devices or _count_devices(leaves, chosen)
    job = Job(leaves, draft, places, devices, (trainer, *words) if trainer else words, infos)
    try:
        chosen.convert(job)
    except ValueError as error:  # a value that is no number where one is needed
        raise make_error(Mark(configs[0].file, 1, 1), "", str(error), "correct the value") from None
    _account_for_rest(leaves, chosen)
    _name_unset(leaves)
    accounted = (_restore_negation(leaves.entries[leaf], negated) for leaf in leaves.values)
    entries = (*accounted, *leaves.defaults)
    return Imported(chosen, draft.write(chosen.title), entries)


def find_tool(name: str) -> Tool:
    """Return a tool by its name. Raise RecipeError with the nearest one."""
    tool = TOOLS.get(name.lower().replace("_", "-"))
    if tool is None:
        raise make_error(Mark("--from", 1, 1), "", f"no tool {name}", suggest(name, TOOLS, "tools"))
    return tool


def recognise(tree: Mapping[str, object], words: Sequence[str], file: str) -> Tool:
    """Return the tool whose own keys a configuration has. Raise RecipeError if there is none, or more than one fits."""
    leaves = Leaves(dict(tree), file)
    for tool in TOOLS.values():
        if any(command in word for command in tool.commands for word in words):
            is_newer = tool is llama_factory.TOOL and leaves.has("model") and not leaves.has("model_name_or_path")
            return llama_factory_v1.TOOL if is_newer else tool
    scores = {tool.name: _score(leaves, tool) for tool in TOOLS.values()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best][0] == 0:
        names = ", ".join(TOOLS)
        raise make_error(Mark(file, 1, 1), "", "no tool is recognised by the keys", f"name it: --from {names}")
    return TOOLS[best]


def _score(leaves: Leaves, tool: Tool) -> tuple[int, float]:
    """Return how many of the tool's own keys are there, and the share of all keys that it knows."""
    known = sum(matches(re.sub(r"\.\d+(?=\.|$)", ".*", leaf), tool.known) is not None for leaf in leaves.values)
    marks = sum(leaves.has(mark) for mark in tool.marks)
    return (0 if not marks else 1 + round(20 * known / max(1, len(leaves.values)))), marks


def _account_for_rest(leaves: Leaves, tool: Tool) -> None:
    """Account for the leaves that the tool's importer did not read: known ones by their list, else as unknown."""
    for leaf in leaves.left():
        value, plain = leaves.values[leaf], re.sub(r"#\d+$", "", leaf)
        harmless, unsupported = _look_up(plain, tool.harmless), _look_up(plain, tool.unsupported)
        if harmless is not None:
            leaves.harmless(leaf, harmless)
        elif unsupported is not None:
            leaves.unsupported(leaf, unsupported)
        elif VARIABLE.fullmatch(leaf):
            leaves.account(leaf, "not supported", "nothing sets it: write its options out, or set it in the input")
        elif matches(plain, tool.known) or matches(_above(plain), tool.known) or _is_part_of_known(plain, tool.known):
            if is_off(value):
                leaves.harmless(leaf, "is off, or the default")
            else:
                leaves.account(leaf, "not supported", NO_COUNTERPART)
        else:
            last = plain.rpartition(".")[2]
            known = sorted(tool.known, key=lambda key: (len(key), key))
            near = find_nearest(plain, known) or find_nearest(last, (key.rpartition(".")[2] for key in known))
            hint = f"did you mean `{near}`? " if near else ""
            leaves.account(leaf, "unknown", f"{hint}{tool.title} has no such key; the recipe is written without it")


def _count_devices(leaves: Leaves, tool: Tool) -> int:
    """Return the devices that the options of a launcher name, which a batch is the product of; 1 without."""
    if tool in GLOBAL_BATCHES:
        return 1
    for key, times in (("num_processes", ()), ("nproc_per_node", ("nnodes",)), ("num_gpus", ("num_nodes",))):
        counts = [leaves.get(name, 1) for name in (key, *times)]
        if leaves.has(key) and all(type(count) is int and count > 0 for count in counts):
            devices = math.prod(counts)
            for name in (key, *times):
                leaves.mapped(name, "rows per optimiser step, resources", f"{devices} devices")
            return devices
    return 1


def _read_negations(tree: Mapping[str, object], tool: Tool) -> tuple[dict[str, object], dict[str, str]]:
    """Return the options of a command with `--no_KEY` as `KEY: false`, and how each of them was written.

    So the commands of transformers' argument parser (TRL, LLaMA-Factory, open-instruct) switch off what is on.
    """
    negated: dict[str, str] = {}
    for key, value in tree.items():
        positive = key.removeprefix("no_")
        is_switch = positive != key and value is True and key not in tool.known
        if is_switch and positive in tool.known and positive not in tree:
            negated[positive] = key
    known = {key: value for key, value in tree.items() if key not in negated.values()}
    return known | dict.fromkeys(negated, False), negated


def _restore_negation(entry: Entry, negated: Mapping[str, str]) -> Entry:
    """Return the entry of an option as it was written."""
    written = negated.get(entry.key)
    return entry if written is None else replace(entry, key=written, value=True)


def _name_unset(leaves: Leaves) -> None:
    """Say of mapped values which variable of the script nothing sets."""
    for leaf, entry in leaves.entries.items():
        listed = entry.value if isinstance(entry.value, list) else [entry.value]
        unset = next((name for value in listed if (name := find_unset(value))), None)
        if unset is not None and entry.status == "mapped":
            note = f"nothing sets {unset}: correct the recipe, or set it in the input; {entry.note}"
            leaves.entries[leaf] = replace(entry, status="not supported", note=note)


def _is_part_of_known(key: str, known: frozenset[str]) -> bool:
    """Return whether a key is below one that the tool knows, and of whose parts nothing is known."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(matches(one, known) and not any(k.startswith(f"{one}.") for k in known) for one in above)


def _above(key: str) -> str:
    """Return the key whose value is a list that this one is an item of."""
    head, _, last = key.rpartition(".")
    return head if last.isdigit() else key


def _look_up(key: str, table: Mapping[str, str]) -> str | None:
    """Return the entry of a table for a key: as it is, by a pattern, or by a word with `*` at its end."""
    if key in table:
        return table[key]
    if (pattern := matches(key, table)) is not None:
        return table[pattern]
    return next((why for word, why in table.items() if word.endswith("*") and key.startswith(word.rstrip("*"))), None)


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _read_infos(tree: Mapping[str, object], places: Places) -> dict[str, object]:
    """Return dataset_info.json from the folder that the configuration names, or from beside it."""
    folder = tree.get("dataset_dir")
    for candidate in (f"{folder}/{INFO}" if isinstance(folder, str) else INFO, INFO, f"data/{INFO}"):
        path = places.find(candidate)
        if path is not None and path.is_file():
            return read_config(path).tree
    return {}


def _make_name(recipe: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", recipe.stem).strip("-._")
    return name[:100] or "imported"
