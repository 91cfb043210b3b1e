"""What the model is shown beside a problem: the agent's system text, and its latest experiences under it."""

from collections.abc import Sequence
from typing import Any, overload

from schemas.agent import Agent

Row = dict[str, Any]


def build_system_text(agent: Agent) -> str:
    """The system message, empty where there is nothing to say: text, heading and a line for each experience."""
    most = agent.context.experiences
    known = [" ".join(one.split()) for one in agent.experiences[-most:]] if most else []
    heading = [agent.context.heading] if known and agent.context.heading else []
    return "\n".join([*([agent.context.system] if agent.context.system else []), *heading, *known])


def add_system_message(row: Row, agent: Agent) -> Row:
    """A prompts row as the agent's model sees it; a system message of its own comes after the agent's."""
    text = build_system_text(agent)
    if not text:
        return row
    first, *rest = row["prompt"]
    if first["role"] == "system":
        return row | {"prompt": [{**first, "content": f"{text}\n{first['content']}"}, *rest]}
    return row | {"prompt": [{"role": "system", "content": text}, first, *rest]}


class ShownRows(Sequence[Row]):
    """Rows as the agent's model sees them, made when they are asked for."""

    def __init__(self, rows: Sequence[Row], agent: Agent):
        self.rows, self.agent = rows, agent

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [add_system_message(row, self.agent) for row in self.rows[index]]
        return add_system_message(self.rows[index], self.agent)
