"""Python functions as tools with OpenAI's schemas, read from their annotations and docstrings."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from schemas.base import JsonObject
from schemas.errors import StepError


class FunctionTool:
    """A function, the schema that describes it, and calls of it with arguments as JSON."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read a function's parameters. Raise StepError for one without annotation, and for `*args`."""
        self.function, self.name = function, function.__name__
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise StepError(f"tool {self.name}: its parameter {parameter.name} has no name in a call")
            if parameter.name not in hints:
                raise StepError(
                    f"tool {self.name}: annotate its parameter {parameter.name}, such as `{parameter.name}: str`"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        self.arguments = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = self.arguments.model_json_schema()
        parameters.pop("title", None)
        for field in parameters.get("properties", {}).values():
            field.pop("title", None)
        description = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        self.schema: JsonObject = {
            "type": "function",
            "function": {"name": self.name, "description": description, "parameters": parameters},
        }

    def call(self, arguments: JsonObject) -> str:
        """Return the result as text. Raise ValueError for arguments that do not fit, naming the first."""
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'arguments'}: {first['msg']}") from error
        return str(self.function(**{name: getattr(checked, name) for name in type(checked).model_fields}))
