"""Check of an author's draft: the parts that pass the schema and the sandbox, and the reasons for the rejected ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from pydantic import ValidationError

from learning.agents.made import list_failures
from learning.data.rows import Row
from learning.lookup import Bound, find
from schemas.agent import Agent, Draft, MadeTool
from schemas.errors import StepError


class Rejection(TypedDict):
    """A rejected part of a draft."""

    name: str
    """Name of a tool, or `draft` for a whole draft."""
    reasons: list[str]


@dataclass
class Drafting:
    """An agent under construction, and a line of the report for every checked part."""

    agent: Agent
    lines: list[Row] = field(default_factory=list)

    def written(self, author: Bound, task: str, attempts: int, supplies: Mapping[str, Any]) -> Agent:
        """Ask the author for drafts until nothing is rejected, at most `attempts` times; return the agent.

        Raise StepError if no draft fits the schema, or if tools were written and none passed.
        """
        original, refused, first = self.agent, [], None
        for attempt in range(attempts):
            toolkit = dict(zip(original.tool_names, (describe_tool(use) for use in original.toolkit), strict=False))
            now = {
                **supplies,
                "task": task,
                "toolkit": toolkit,
                "refused": refused,
                "attempt": attempt,
                "step": attempt,
            }
            draft, refused = self._read(author, now, attempt)
            if draft is not None:
                first = first or draft
                refused += self._tools(draft, attempt)
            if not refused:
                break
        tools = [line for line in self.lines if line["what"] == "tool"]
        if first is None or (tools and not any(line["accepted"] for line in tools)):
            why = "; ".join(reason for entry in refused for reason in entry["reasons"])
            raise StepError(f"author {author.name}: nothing it wrote in {attempts} attempts was fit to use: {why}")
        return self._whole(original, first)

    def proven(self, tools: list[MadeTool]) -> None:
        """Record tools given in the recipe; raise StepError if one fails its tests."""
        for tool in tools:
            if wrong := list_failures(tool):
                raise StepError(f"made tool {tool.name} fails its tests: {'; '.join(wrong)}")
            self._note("tool", tool.name, -1, [])

    def _read(self, author: Bound, supplies: Mapping[str, Any], attempt: int) -> tuple[Draft | None, list[Rejection]]:
        try:
            draft = Draft.model_validate(author.ask(attempt, supplies))
            names = self.agent.tool_names
            if strange := [name for name in draft.toolkit or [] if name not in names]:
                raise ValueError(f"toolkit: no tool {strange[0]} is given; there are {', '.join(names) or 'none'}")
        except ValidationError as error:
            return None, [self._note("draft", "draft", attempt, list_errors(error))]
        except ValueError as error:
            return None, [self._note("draft", "draft", attempt, [str(error)])]
        self._note("draft", "draft", attempt, [])
        return draft, []

    def _tools(self, draft: Draft, attempt: int) -> list[Rejection]:
        """Add the tools of a draft that pass to the agent; return the rejected ones."""
        refused = []
        for written in draft.tools:
            name = str(written.get("name", "?"))
            try:
                tool = MadeTool.model_validate(written)
                exists = tool.name in self.agent.tool_names
                reasons = [f"there is a tool called {tool.name} already"] if exists else list_failures(tool)
            except ValidationError as error:
                tool, reasons = None, list_errors(error)
            note = self._note("tool", name, attempt, reasons)
            if reasons or tool is None:
                refused.append(note)
            else:
                self.agent = self.agent.model_copy(update={"made": [*self.agent.made, tool]})
        return refused

    def _whole(self, original: Agent, draft: Draft) -> Agent:
        """Return the agent with all accepted parts, validated as a whole."""
        tools = [
            use
            for use, name in zip(original.toolkit, original.tool_names, strict=False)
            if draft.toolkit is None or name in draft.toolkit
        ]
        context = {**original.context.model_dump(), **draft.context.model_dump(exclude_unset=True)}
        described_as = draft.description or original.description
        values = self.agent.model_dump() | {"context": context, "description": described_as}
        return Agent.model_validate(values | {"toolkit": [use.model_dump() for use in tools]})

    def _note(self, what: str, name: str, attempt: int, reasons: list[str]) -> Rejection:
        self.lines.append({"what": what, "name": name, "attempt": attempt, "accepted": not reasons, "reasons": reasons})
        return {"name": name, "reasons": reasons}


def describe_tool(use: Any) -> str:
    """Return the first line of a built-in tool's docstring."""
    return (find(use).__doc__ or "").strip().partition("\n")[0]


def list_errors(error: ValidationError) -> list[str]:
    """Return the validation errors, one line per key."""
    places = [(".".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors(include_url=False)]
    return [f"{where}: {what}" if where else what for where, what in places]
