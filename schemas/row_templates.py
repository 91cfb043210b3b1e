"""Templates that build a field of a row from columns: `{question} {context}`. They are parsed, never evaluated.

`{name}` is replaced by the text of a column, `{name.key}` by a value inside of it; `{{` and `}}` are braces.
"""

from string import Formatter

Part = tuple[str, tuple[str, ...]]
"""Text, and the path of the column that follows it; empty at the end."""


def is_template(text: str) -> bool:
    """Return whether a value of `columns` is a template and not the name of a column."""
    return "{" in text or "}" in text


def parse_template(text: str) -> list[Part]:
    """Return the parts of a template. Raise ValueError for anything but text and names in braces."""
    parts: list[Part] = []
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"template {text!r}: {error}; write {{{{ and }}}} for braces") from error
    for before, name, spec, conversion in pieces:
        if name is None:
            parts.append((before, ()))
            continue
        path = tuple(name.split("."))
        if spec or conversion or not all(path) or "[" in name:
            raise ValueError(f"template {text!r}: `{{{name}}}` must be the name of a column, or `column.key`")
        parts.append((before, path))
    return parts
