"""Chat settings of a stage: what the model's chat template receives besides the messages."""

from datetime import date
from typing import Self

from pydantic import Field, model_validator

from schemas.base import JsonObject, Schema

OWN_ARGUMENTS = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "strftime_now", "documents"}
)
"""Arguments of templates that do not come from `chat_template_kwargs`."""


class Chat(Schema):
    """How conversations are written for the model. What is null is as the model carries it from earlier stages.

    A stage that writes a model writes these settings with it, for all stages after it and for `posttrain serve`.
    """

    chat_template: str | None = Field(default=None, min_length=1)
    """Template in place of the model's own: Jinja text, `path:` and a file beside the recipe (`path:chat.jinja`), or
    `alpaca`, the prompts of Stanford Alpaca."""
    chat_template_kwargs: JsonObject | None = None
    """Arguments of the template, such as `{enable_thinking: false}`; `{}`: none."""
    system_prompt: str | None = None
    """System message of every conversation that has none; empty: none."""
    tools: list[JsonObject] | None = None
    """Tools shown to the model by its template, each as `{type: function, function: {name, description, parameters}}`,
    unless a row has `tools` of its own; `[]`: none."""
    chat_date: str | None = Field(default=None, pattern=r"^\d{4}-\d\d-\d\d$")
    """Date that templates receive as today's, as `2025-01-31`, so that equal data give equal tokens on any day; if no
    stage sets it, 2024-07-26."""

    @model_validator(mode="after")
    def check_template_inputs(self) -> Self:
        """Check the date, the names of arguments and the shape of tools."""
        if self.chat_date is not None:
            try:
                date.fromisoformat(self.chat_date)
            except ValueError as error:
                raise ValueError(f"`chat_date`: {error}; write a day as 2025-01-31") from error
        if reserved := sorted(OWN_ARGUMENTS & (self.chat_template_kwargs or {}).keys()):
            raise ValueError(f"`chat_template_kwargs`: `{reserved[0]}` is set by posttrain; remove it")
        for index, tool in enumerate(self.tools or []):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or "name" not in function:
                raise ValueError(
                    f"`tools.{index}`: a tool is a map {{type: function, function: {{name, description, parameters}}}}"
                )
        return self
