"""Rule for searches in the states of an environment: episodes have both `save` and `restore`, or neither.

Without them, turns are carried out again. Environments are read as text, so that validation runs no code: the
annotation of `begin` names the class of episodes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import Problem
from schemas.modules import Function, Module, ModuleError, load
from schemas.source.tree import join_path
from schemas.steps.step_info import StepInfo
from schemas.use import EnvUse

DIVIDING = "learning.solvers.planned_search"
"""Module with functions that search for parts of a problem, into which the environment divides it."""
SEARCHES = frozenset(
    {"learning.evaluation.state_searches", "learning.evaluation.revisions", "learning.solvers.state_search", DIVIDING}
)
"""Modules with functions that search in the states of the environment `env`."""
METHODS = frozenset({"save", "restore"})
MAX_HOPS = 8


def check_saved_states(info: StepInfo, folders: tuple[Path, ...]) -> Iterator[Problem]:
    """Yield the environments of searches whose episodes have one of the two methods, or that replace contexts."""
    searches = {join_path(slot.path, "env"): slot.signature.module for slot in info.slots}
    searched = {path: module for path, module in searches.items() if module in SEARCHES}
    for slot in info.slots:
        if slot.path not in searched or not isinstance(slot.use, EnvUse):
            continue
        if slot.use.context is not None:
            message = "a search shows the model all turns of an episode"
            yield info.problem(join_path(slot.path, "context"), message, "remove it")
        if searched[slot.path] == DIVIDING and "divide" not in _list_methods(
            slot.signature.module, slot.signature.name, folders, 0
        ):
            advice = "use `state_best_first`, which searches for whole problems, or add `def divide(self, row, plan)`"
            yield info.problem(
                slot.path, f"`{slot.use.use}` has no `divide`, so that its problems have no parts", advice
            )
        name = _find_episode_class(slot.signature.module, slot.signature.name, folders)
        known = frozenset() if name is None else METHODS & _list_methods(*name, folders, 0)
        if len(known) == 1:
            (has,), (lacks,) = known, METHODS - known
            message = f"episodes of `{slot.use.use}` have `{has}` and no `{lacks}`, with which a search goes back"
            advice = f"add `{lacks}`, or remove `{has}`: then turns are carried out again"
            yield info.problem(slot.path, message, advice)


def _find_episode_class(module: str, name: str, folders: tuple[Path, ...]) -> tuple[str, str] | None:
    """Return module and name of the class that `begin` of an environment says it returns; None if it says nothing."""
    for hop in range(MAX_HOPS):
        try:
            home = load(module, folders)
        except ModuleError:
            return None
        if name not in home.classes:
            if name not in home.imports:
                return None
            module, name = home.imports[name]
            continue
        kind = home.classes[name]
        begin = next((part for part in kind.body if isinstance(part, Function) and part.name == "begin"), None)
        if begin is not None:
            word = _read_name(begin.returns)
            return None if word is None else (module, word)
        bases = [word for base in kind.bases if (word := _read_name(base)) is not None]
        if not bases or hop + 1 == MAX_HOPS:
            return None
        name = bases[0]
    return None


def _list_methods(module: str, name: str, folders: tuple[Path, ...], hops: int) -> frozenset[str]:
    """Return the methods of a class, with those of its bases as far as they can be read."""
    try:
        home: Module = load(module, folders)
    except ModuleError:
        return frozenset()
    if hops == MAX_HOPS:
        return frozenset()
    if name not in home.classes:
        return _list_methods(*home.imports[name], folders, hops + 1) if name in home.imports else frozenset()
    kind = home.classes[name]
    own = frozenset(part.name for part in kind.body if isinstance(part, Function))
    bases = [word for base in kind.bases if (word := _read_name(base)) is not None]
    return own.union(*(_list_methods(module, base, folders, hops + 1) for base in bases))


def _read_name(node: ast.expr | None) -> str | None:
    """Return the name that an annotation or a base consists of, quoted or not."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2] if node.value.replace(".", "").isidentifier() else None
    return node.id if isinstance(node, ast.Name) else None
