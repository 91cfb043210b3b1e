"""Environment `openai_tools`: tools with OpenAI's schemas, from Python functions or an MCP server."""

import json
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from learning.data.rows import Row
from learning.environments.function_schemas import FunctionTool
from learning.environments.mcp_connection import McpConnection
from learning.environments.protocol import Outcome
from learning.environments.time_limit import StepTimeout, call_within
from learning.environments.tool_calls import BEGIN, END, parse_tool_calls
from learning.lookup import find
from learning.tools.mcp_servers import choose_server
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.references import AnyRef
from schemas.use import ForeignUse

FORM = f'{BEGIN}{{"name": ..., "arguments": {{...}}}}{END}'
RESPONSE = "<tool_response>\n{result}\n</tool_response>"
"""A result as templates of Qwen and Hermes write it inside of a user's turn."""


class Environment:
    """Run the tool calls of a turn, written `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    A turn without a call is the answer and ends the episode. An error is the reply to the model, which may try again.
    `{use: offered}` gives problems the tools' schemas, which chat templates show.
    """

    def __init__(
        self,
        *,
        functions: list[ForeignUse] = [],  # noqa: B006 (never changed; a recipe needs the default to be readable)
        command: list[str] = [],  # noqa: B006
        folder: AnyRef | None = None,
        url: str | None = None,
        hosts: list[str] = [],  # noqa: B006
        server_per: Literal["episode", "step"] = "episode",
        seconds: Annotated[float, Field(gt=0)] = 10.0,
        longest: Annotated[int, Field(ge=1)] = 1000,
        response: str = RESPONSE,
    ) -> None:
        """Set the tools: Python `functions` with annotated parameters, and all tools of an MCP server.

        `command` starts the server in `folder` for each episode, or with `server_per: step` once for all episodes of a
        step, which must not see each other's state then; `url` is a running one on this machine or on one of `hosts`. A
        call ends after `seconds`. `response` shows the `{result}` of a call, cut after `longest` characters.
        """
        if "{result}" not in response:
            raise StepError("env openai_tools: `response` must contain {result}")
        own = [FunctionTool(find(use)) for use in functions]
        self.functions = {tool.name: tool for tool in own}
        has_server = bool(command or url)
        if not has_server and not functions:
            raise StepError("env openai_tools: give `functions`, or a server: `command` or `url`")
        self.server = choose_server("env openai_tools", command, folder, url, hosts) if has_server else None
        self.seconds, self.longest, self.response = seconds, longest, response
        self.shared = self.connect()
        self.is_shared = server_per == "step"
        try:
            listed = self.shared.list_tools() if self.shared is not None else []
        except ValueError as error:
            raise StepError(f"env openai_tools: the server does not list its tools: {error}") from error
        self.tools: list[JsonObject] = [*(tool.schema for tool in own), *listed]
        """The schemas of all tools."""
        self.names = [str(tool["function"]["name"]) for tool in self.tools]
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise StepError(f"env openai_tools: two tools are called {twice[0]}; rename one")

    def connect(self) -> McpConnection | None:
        """Return a new connection to the server; None without a server."""
        return None if self.server is None else McpConnection(self.server, self.seconds)

    def begin(self, row: Row, seed: int) -> "Conversation":
        """Return an episode of a problem. Raise StepError if the problem offers tools that are not there."""
        offered = row.get("tools") or []
        offered = json.loads(offered) if isinstance(offered, str) else offered
        names = [str(tool.get("function", {}).get("name")) for tool in offered]
        if missing := sorted(set(names) - set(self.names)):
            raise StepError(
                f"env openai_tools: row {row['id']} offers the tool {missing[0]}; there are {', '.join(self.names)}"
            )
        return Conversation(self, self.shared if self.is_shared else self.connect())


class Conversation:
    """An episode with tools."""

    def __init__(self, environment: Environment, connection: McpConnection | None) -> None:
        self.environment, self.connection = environment, connection

    def step(self, action: str) -> Outcome:
        """Run the calls of a turn one after the other; a turn without one is the answer."""
        if BEGIN not in action:
            return Outcome(done=True)
        _, calls = parse_tool_calls(action)
        if not calls:
            return Outcome(self._show(f"error: write a call as {FORM}"), ok=False)
        results = [self._call(call.name, call.arguments) for call in calls]
        return Outcome("\n".join(self._show(text) for text, _ in results), ok=all(ok for _, ok in results))

    def _call(self, name: str, arguments: JsonObject) -> tuple[str, bool]:
        if name not in self.environment.names:
            return f"error: no tool {name[:80]}; there are {', '.join(self.environment.names)}", False
        tool = self.environment.functions.get(name)
        try:
            if tool is not None:
                return call_within(self.environment.seconds, _bind(tool, arguments)), True
            assert self.connection is not None
            return self.connection.call(name, arguments), True
        except StepError:
            raise
        except (ValueError, ValidationError, StepTimeout) as error:
            return f"error: {error}", False
        except Exception as error:  # a user's function may raise anything; the episode continues
            return f"error: {str(error) or type(error).__name__}", False

    def _show(self, text: str) -> str:
        longest = self.environment.longest
        text = text.strip()
        return self.environment.response.replace("{result}", text if len(text) <= longest else f"{text[:longest]}...")


def _bind(tool: FunctionTool, arguments: JsonObject) -> Callable[[], str]:
    return lambda: tool.call(arguments)
