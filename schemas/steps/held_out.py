"""Problems of all evaluations, added to every search: it refuses to choose by them."""

from collections.abc import Mapping
from dataclasses import replace

from schemas.evaluation_slots import EvaluationTaskUse
from schemas.references import PromptsRef
from schemas.stages.evaluate import Evaluate
from schemas.stages.merge_search import MergeSearch
from schemas.steps.slots import Slot, identify_slot, is_task
from schemas.steps.step_info import Port, StepInfo, replace_parts


def add_held_out_problems(infos: dict[str, StepInfo]) -> dict[str, StepInfo]:
    """Return the steps with the problems of all evaluations added to every search of merges."""
    searches = [name for name, info in infos.items() if isinstance(info.stage, MergeSearch)]
    return infos | {name: _add(infos[name], infos) for name in searches}


def _add(info: StepInfo, infos: Mapping[str, StepInfo]) -> StepInfo:
    assert isinstance(info.stage, MergeSearch)
    tasks: list[EvaluationTaskUse] = list(info.stage.held_out)
    prompts: list[PromptsRef] = list(info.stage.held_out_prompts)
    slots, ports = list(info.slots), list(info.ports)
    seen: set[object] = {identify_slot(slot) for slot in slots if slot.path.startswith("held_out.")}
    seen |= {port.content for port in ports if port.path.startswith("held_out_prompts.")}
    for other in infos.values():
        if not isinstance(other.stage, Evaluate) or info.name in _list_makers(other, infos):
            continue
        for slot in filter(is_task, other.slots):
            if identify_slot(slot) not in seen:
                seen.add(identify_slot(slot))
                more_slots, more_ports = copy_task(other, slot, f"held_out.{len(tasks)}")
                slots, ports = slots + more_slots, ports + more_ports
                tasks.append(other.stage.tasks[int(slot.path.partition(".")[2])])
        for port in other.ports:
            if port.path == "prompts" and port.content not in seen:
                seen.add(port.content)
                ports.append(_move(port, f"held_out_prompts.{len(prompts)}"))
                prompts.append(PromptsRef(port.text))
    stage = info.stage.model_copy(update={"held_out": tasks, "held_out_prompts": prompts})
    return replace_parts(info, stage=stage, slots=tuple(slots), ports=tuple(ports))


def copy_task(info: StepInfo, task: Slot, path: str) -> tuple[list[Slot], list[Port]]:
    """Return the slot of a task under another path, with the functions and references among its options."""
    own = f"{task.path}."
    slots = [slot for slot in info.slots if slot.path == task.path or slot.path.startswith(own)]
    ports = [port for port in info.ports if port.path.startswith(own)]
    return (
        [Slot(path + slot.path[len(task.path) :], slot.use, slot.signature, slot.options) for slot in slots],
        [_move(port, path + port.path[len(task.path) :]) for port in ports],
    )


def _move(port: Port, path: str) -> Port:
    return replace(port, path=path)


def _list_makers(evaluation: StepInfo, infos: Mapping[str, StepInfo]) -> set[str]:
    """Return the steps that the problems of an evaluation are made by, directly or not."""
    ports = [port for port in evaluation.ports if port.path == "prompts" or port.path.startswith("tasks.")]
    frontier = [step for port in ports for step in port.steps]
    makers: set[str] = set()
    while frontier:
        step = frontier.pop()
        if step in infos and step not in makers:
            makers.add(step)
            frontier += infos[step].needs
    return makers
