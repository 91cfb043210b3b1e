"""The system message that an agent adds to a problem: its system text, followed by its latest experiences."""

from collections.abc import Sequence
from typing import overload

from learning.data.rows import Row
from schemas.agent import Agent


def build_system_text(agent: Agent) -> str:
    """Return the system message: text, heading and a line for each experience; empty if there are none of these."""
    most = agent.context.experiences
    latest = [" ".join(one.split()) for one in agent.experiences[-most:]] if most else []
    heading = [agent.context.heading] if latest and agent.context.heading else []
    return "\n".join([*([agent.context.system] if agent.context.system else []), *heading, *latest])


def add_system_message(row: Row, agent: Agent) -> Row:
    """Return a row with the agent's system message; the row's own system message is appended to it."""
    text = build_system_text(agent)
    if not text:
        return row
    first, *rest = row["prompt"]
    if first["role"] == "system":
        return row | {"prompt": [{**first, "content": f"{text}\n{first['content']}"}, *rest]}
    return row | {"prompt": [{"role": "system", "content": text}, first, *rest]}


class ShownRows(Sequence[Row]):
    """Rows with the agent's system message, which is added on access."""

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
