"""Advice for keys at the top of a recipe, or of a profile, that belong to a stage or to another tool."""

from collections.abc import Collection
from dataclasses import replace

from schemas.errors import Problem
from schemas.source.advice import SYNONYMS, find_our_key
from schemas.source.tree import REPLACE, Node, join_path, make_problem
from schemas.stages.union import KINDS
from schemas.suggestions import suggest

OF_STAGES = sorted({key for kind in KINDS.values() for key in kind.model_fields} - {"name", "description", "seed"})
"""Keys that only stages have."""
OURS = sorted(set(SYNONYMS.values()))


def check_profile_keys(profiles: Node | None, keys: Collection[str]) -> list[Problem]:
    """Return a problem per key of a profile that no recipe has, also of profiles that are not chosen."""
    problems = []
    for name, over in profiles.value.items() if profiles is not None and profiles.is_map else ():
        for key, child in over.value.items() if over.is_map else ():
            if key not in keys and key != REPLACE and not key.startswith("x-"):
                path, advice = join_path("profiles", name, key), suggest(key, keys, "keys here")
                problems.append(make_problem(child.where, path, f"unknown key `{key}`", advice))
    return problems


def advise_on_head(problems: list[Problem], root: Node) -> list[Problem]:
    """Return the problems of the top of a recipe, with advice where it is a stage or of another tool."""
    return [replace(problem, advice=_advise(problem, root) or problem.advice) for problem in problems]


def _advise(problem: Problem, root: Node) -> str:
    """Return better advice for a problem; empty if there is none."""
    if problem.message == "`stages` is missing":
        if sum(find_our_key(key, OURS) is not None for key in root.value) > 1:
            return f"a configuration of another tool becomes a recipe by: posttrain import {root.mark.file}"
        is_stage = "kind" in root.value
        return "a stage stands below `stages:` under its name: `stages: {tuned: {kind: sft, ...}}`" if is_stage else ""
    if not problem.message.startswith("unknown key") or problem.advice.startswith("did you mean"):
        return ""
    key, stages = problem.path.rpartition(".")[2], root.get("stages")
    if problem.path.startswith("profiles.") and stages is not None and stages.get(key) is not None:
        return f"stages stand below `stages:` in a profile, too: `stages: {{{key}: {{...}}}}`"
    entry = root.get(key) if problem.path == key else None
    if entry is not None and entry.get("kind") is not None:
        return f"a stage stands below `stages:`: indent `{key}:` there"
    ours = key if key in OF_STAGES else find_our_key(key, OF_STAGES)
    example = next(iter(stages.value), "NAME") if stages is not None and stages.is_map else "NAME"
    return f"a key of a stage stands in the stage: stages.{example}.{ours}" if ours else ""
