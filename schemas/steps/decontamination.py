"""Decontamination across the recipe: every curation is compared with every evaluation."""

from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_

from schemas.errors import Problem
from schemas.references import PromptsRef
from schemas.source.tree import join_path, make_problem
from schemas.stages.curate import Curate
from schemas.stages.evaluate import Evaluate
from schemas.stages.merge_search import MergeSearch
from schemas.steps.held_out import copy_task
from schemas.steps.slots import Slot, identify_slot, is_task
from schemas.steps.step_info import Port, StepInfo, replace_parts
from schemas.use import Use

MAX_COMPARISONS = 5_000
"""Largest product of the numbers of curations and of problem sets."""


def complete_decontamination(infos: dict[str, StepInfo], problems: list[Problem]) -> dict[str, StepInfo]:
    """Return the steps with the problems of all evaluations and searches added to every curation that decontaminates.

    Evaluation problems that are made from the curated rows are added to `problems`, because they cannot be compared.
    """
    evaluations = [i for i in infos.values() if isinstance(i.stage, Evaluate | MergeSearch)]
    curations = {n: i for n, i in infos.items() if isinstance(i.stage, Curate) and i.stage.decontaminate is not None}
    tasks: dict[str, tuple[StepInfo, Slot]] = {}
    prompts: dict[tuple[object, ...], tuple[StepInfo, Port]] = {}
    for other in evaluations:
        for slot in filter(is_task, other.slots):
            tasks.setdefault(identify_slot(slot), (other, slot))
        for port in (p for p in other.ports if p.path == "prompts"):
            prompts.setdefault(port.content, (other, port))
    if (count := len(curations) * (len(tasks) + len(prompts))) > MAX_COMPARISONS:
        info = next(iter(curations.values()))
        message = f"{len(curations)} curations would each be compared with all evaluations: {count} comparisons"
        advice = f"at most {MAX_COMPARISONS}; set `decontaminate: null` where rows are no training data"
        problems.append(make_problem(info.node.where, info.path, message, advice))
        return infos
    made_from = _make_ancestor_search(list(curations), infos)
    prompt_sets = [(other, port, made_from(port.steps)) for other, port in prompts.values()]
    return infos | {name: _complete_curation(info, tasks, prompt_sets, problems) for name, info in curations.items()}


def _complete_curation(
    info: StepInfo,
    evaluated: dict[str, tuple[StepInfo, Slot]],
    prompt_sets: list[tuple[StepInfo, Port, set[str]]],
    problems: list[Problem],
) -> StepInfo:
    """Return a curation with the tasks and prompts of all evaluations, each once, after those that it names itself."""
    settings = info.stage.decontaminate if isinstance(info.stage, Curate) else None
    if settings is None:
        return info
    tasks: list[Use] = list(settings.against)
    slots, identities = list(info.slots), {identify_slot(slot) for slot in info.slots}
    prompts, ports = list(settings.against_prompts), list(info.ports)
    own = {port.content for port in ports if port.path.startswith("decontaminate.")}
    for identity, (other, slot) in evaluated.items():
        if identity not in identities:
            more_slots, more_ports = copy_task(other, slot, f"decontaminate.against.{len(tasks)}")
            slots, ports = slots + more_slots, ports + more_ports
            tasks.append(slot.use)
    for other, port, made_from in prompt_sets:
        if port.content in own:
            continue
        if info.name in made_from:
            problems.append(_make_cycle_problem(info, other, port))
            continue
        ports.append(Port(**{**port.__dict__, "path": f"decontaminate.against_prompts.{len(prompts)}"}))
        prompts.append(PromptsRef(port.text))
    completed = settings.model_copy(update={"against": tasks, "against_prompts": prompts})
    stage = info.stage.model_copy(update={"decontaminate": completed})
    return replace_parts(info, stage=stage, slots=tuple(slots), ports=tuple(ports))


def _make_ancestor_search(curations: list[str], infos: dict[str, StepInfo]) -> Callable[[tuple[str, ...]], set[str]]:
    """Return a function that maps steps to the curations among them and their ancestors; none in a cycle."""
    above: dict[str, int] = {}  # a bit for each curation, so that a union of thousands costs nothing
    bits = {name: 1 << place for place, name in enumerate(curations)}
    needs = {name: [step for step in info.needs if step in infos] for name, info in infos.items()}
    with suppress(CycleError):  # reported by the check of the graph
        for name in TopologicalSorter(needs).static_order():
            above[name] = reduce(or_, (above[step] for step in needs[name]), bits.get(name, 0))

    def find(steps: tuple[str, ...]) -> set[str]:
        union = reduce(or_, (above.get(step, 0) for step in steps), 0)
        return {name for name, bit in bits.items() if union & bit}

    return find


def _make_cycle_problem(info: StepInfo, other: StepInfo, port: Port) -> Problem:
    message = f"these problems are made from `{info.origin}`, which must be decontaminated against them"
    advice = f"set `decontaminate: null` on `{info.origin}`, or make the evaluation's problems from something else"
    return make_problem(port.mark, join_path(other.path, "prompts"), message, advice)
