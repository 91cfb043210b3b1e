"""Templates of text tools, each with its tests and with a typical mistake of a careless author."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """A template of a tool."""

    name: str
    words: str
    """Pattern of the tasks that need the tool."""
    description: str
    body: str
    """The expression that the function returns."""
    slip: tuple[str, str]
    """A part of the body, and its incorrect replacement by a careless author."""
    tests: tuple[tuple[str, str], ...]

    def code(self, careless: bool) -> str:
        """Return the tool's source."""
        body = self.body.replace(*self.slip) if careless else self.body
        return f"def {self.name}(query):\n    return {body}\n"


TEMPLATES = (
    Template(
        "reverse",
        r"revers|backward|turn(ed|s)? around",
        "The text backward.",
        "query.strip()[::-1]",
        ("[::-1]", "[1::-1]"),
        (("sun", "nus"), (" 12-7 ", "7-21"), ("a", "a"), ("", "")),
    ),
    Template(
        "upper",
        r"upper ?case|capital",
        "The text in capitals.",
        "query.strip().upper()",
        ("upper", "title"),
        (("sun", "SUN"), ("a-b c", "A-B C")),
    ),
    Template(
        "lower",
        r"lower ?case|small letters",
        "The text in small letters.",
        "query.strip().lower()",
        ("lower", "swapcase"),
        (("Sun", "sun"), ("ab C", "ab c")),
    ),
    Template(
        "count",
        r"how many|count|number of (letters|characters)",
        "How many characters the text has.",
        "str(len(query.strip()))",
        ("len(query.strip())", "len(query.split())"),
        (("sun", "3"), (" a b ", "3")),
    ),
    Template(
        "arrange",
        r"sort|alphabetical|in order",
        "The characters of the text in order.",
        "''.join(sorted(query.strip()))",
        ("sorted(query", "reversed(query"),
        (("sun", "nsu"), ("cab", "abc")),
    ),
    Template(
        "vowels",
        r"vowel",
        "How many vowels the text has.",
        "str(sum(c in 'aeiou' for c in query.lower()))",
        ("aeiou", "aeio"),
        (("sun", "1"), ("Aerie", "4")),
    ),
    Template(
        "initials",
        r"initial|acronym",
        "The first letter of every word.",
        "''.join(word[0] for word in query.split())",
        ("word[0]", "word[-1]"),
        (("red hot sun", "rhs"), ("", "")),
    ),
)


def find_needed(task: str) -> list[Template]:
    """Return the templates whose pattern occurs in a task."""
    return [template for template in TEMPLATES if re.search(template.words, task, re.IGNORECASE)]
