"""The shortest solution of a text game, by breadth-first search over the actions that can help."""

from collections import deque
from collections.abc import Iterator

from learning.text_game.world import CRAFTS, State, World, act, is_solved, list_actions, locate


def solve(world: World, state: State, most: int | None = None) -> list[str] | None:
    """Return the actions of a shortest solution; None if there is none, or none of at most `most` actions."""
    before: dict[State, tuple[State, str] | None] = {state: None}
    waiting = deque([(state, 0)])
    while waiting:
        here, depth = waiting.popleft()
        if is_solved(world, here):
            return _trace(before, here)
        if depth == most:
            continue
        for action in _list_helpful(world, here):
            after = act(world, here, action)
            if after is not None and after not in before:
                before[after] = (here, action)
                waiting.append((after, depth + 1))
    return None


def _trace(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """Return the actions that lead to a state."""
    actions: list[str] = []
    while (step := before[state]) is not None:
        state, action = step
        actions.append(action)
    return actions[::-1]


def _list_helpful(world: World, state: State) -> Iterator[str]:
    """Yield the actions that a shortest solution may need: any number of items can be carried, and none gets lost."""
    goal = world.goal
    keys = {holder.key for holder in world.holders.values()} | set(world.doors.values())
    wanted = {goal.item} | {key for key in keys if key is not None}
    inside = {locate(world, state, item) for item in wanted} | {goal.holder}
    crafts = {f"{verb} {goal.item}" for verb, (_, quality) in CRAFTS.items() if quality == goal.quality}
    useful = {*crafts, f"put {goal.item} in {goal.holder}", *(f"take {item}" for item in wanted)}
    for action in list_actions(world, state):
        verb, _, thing = action.partition(" ")
        if action in useful or verb == "go" or (verb == "open" and (thing not in world.holders or thing in inside)):
            yield action
