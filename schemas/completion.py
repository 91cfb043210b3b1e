"""Decontamination is graph-wide: every evaluation of the recipe is compared with by every curation."""

from typing import Any

from schemas.errors import Problem
from schemas.graph import Port, StepInfo, with_parts
from schemas.references import PromptsRef
from schemas.slots import Slot
from schemas.stages.curate import Curate, Decontaminate
from schemas.stages.evaluate import Evaluate
from schemas.tree import join, problem


def complete_decontamination(infos: dict[str, StepInfo], problems: list[Problem]) -> dict[str, StepInfo]:
    """Add the problems of all evaluations to every curation that has not switched decontamination off.

    Evaluation problems that are made from the curated rows themselves cannot be compared with: that is a problem.
    """
    evaluations = [i for i in infos.values() if isinstance(i.stage, Evaluate)]
    done = dict(infos)
    for name, info in infos.items():
        if isinstance(info.stage, Curate) and info.stage.decontaminate is not None:
            done[name] = _completed(info, info.stage.decontaminate, evaluations, infos, problems)
    return done


def _completed(
    info: StepInfo,
    given: Decontaminate,
    evaluations: list[StepInfo],
    infos: dict[str, StepInfo],
    problems: list[Problem],
) -> StepInfo:
    tasks, slots, seen = list(given.against), list(info.slots), [_identity(s) for s in info.slots]
    prompts, ports = list(given.against_prompts), list(info.ports)
    for other in evaluations:
        for slot in (s for s in other.slots if s.path.startswith("tasks.") and s.path.count(".") == 1):
            if _identity(slot) not in seen:
                seen.append(_identity(slot))
                slots.append(Slot(f"decontaminate.against.{len(tasks)}", slot.use, slot.signature, slot.options))
                tasks.append(slot.use)
        for port in (p for p in other.ports if p.path == "prompts" and not _same(p, ports)):
            if info.name in _above(port.steps, infos):
                problems.append(_circle(info, other, port))
                continue
            where = f"decontaminate.against_prompts.{len(prompts)}"
            ports.append(Port(**{**port.__dict__, "path": where}))
            prompts.append(PromptsRef(port.text))
    whole = given.model_copy(update={"against": tasks, "against_prompts": prompts})
    stage = info.stage.model_copy(update={"decontaminate": whole})
    return with_parts(info, stage=stage, slots=tuple(slots), ports=tuple(ports))


def _identity(slot: Slot) -> tuple[str, str, dict[str, Any]]:
    return slot.signature.module, slot.signature.name, slot.values


def _same(port: Port, ports: list[Port]) -> bool:
    key = (port.steps, port.output, port.source)
    return any(p.path.startswith("decontaminate.") and (p.steps, p.output, p.source) == key for p in ports)


def _above(steps: tuple[str, ...], infos: dict[str, StepInfo]) -> set[str]:
    """The steps and everything they need."""
    found: set[str] = set()
    todo = list(steps)
    while todo:
        name = todo.pop()
        if name not in found and name in infos:
            found.add(name)
            todo += infos[name].needs
    return found


def _circle(info: StepInfo, other: StepInfo, port: Port) -> Problem:
    said = f"these problems are made from `{info.origin}`, which must be decontaminated against them"
    advice = f"set `decontaminate: null` on `{info.origin}`, or make the evaluation's problems from something else"
    return problem(port.mark, join(other.path, "prompts"), said, advice)
