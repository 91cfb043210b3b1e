"""Fields that are texts, and the prompts and completions that formats have in common."""

from learning.data.sources.columns import Values
from learning.data.sources.conversations import Message, read_messages
from learning.data.sources.records import BadRow


def add_system(messages: list[Message], fields: Values) -> list[Message]:
    """Return messages with the system message of the row's column before them. Raise BadRow if they have one."""
    system = fields.get("system")
    if system is None or system == "":
        return messages
    if not isinstance(system, str):
        raise BadRow(f"`system` is no text but {type(system).__name__}")
    if messages[0]["role"] in ("system", "developer"):
        raise BadRow("a column `system` and a system message")
    return [{"role": "system", "content": system}, *messages]


def read_prompt(fields: Values) -> list[Message]:
    """Return the prompt of a row, which is a text or messages."""
    prompt = fields["prompt"]
    if isinstance(prompt, str):
        return add_system([{"role": "user", "content": read_text(fields, "prompt")}], fields)
    if not isinstance(prompt, list):
        raise BadRow(f"`prompt` is neither text nor a list of messages but {type(prompt).__name__}")
    return add_system(read_messages(prompt, "prompt"), fields)


def read_side(fields: Values, name: str) -> list[Message]:
    """Return what the assistant writes after a prompt: a text, or messages that begin and end with its own."""
    if isinstance(fields[name], str):
        return [{"role": "assistant", "content": read_text(fields, name)}]
    if not isinstance(fields[name], list) or not fields[name]:
        raise BadRow(f"`{name}` is neither text nor a list of messages")
    # The order of roles is checked as that of a conversation, which begins with the user.
    messages = read_messages([{"role": "user", "content": "?"}, *fields[name]], name)[1:]
    if messages[0]["role"] != "assistant" or messages[-1]["role"] != "assistant":
        raise BadRow(f"`{name}` does not begin and end with a message of the assistant")
    return messages


def read_text(fields: Values, name: str, *, optional: bool = False) -> str:
    """Return a field that is text, and not empty unless it is optional. Raise BadRow."""
    value = fields.get(name)
    if optional and value is None:
        return ""
    if not isinstance(value, str):
        raise BadRow(f"`{name}` is no text but {type(value).__name__}")
    if not optional and not value.strip():
        raise BadRow(f"`{name}` is empty")
    return value
