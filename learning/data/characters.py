"""Texts of whole characters: what came as JSON may hold halves of surrogate pairs, which no encoding can write."""


def of_characters(text: str) -> str:
    """The text with U+FFFD in the place of what is no character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
