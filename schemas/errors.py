"""The errors that posttrain raises.

PosttrainError
├── RecipeError      the recipe is not valid; carries every Problem, each with file:line:column (exit 3)
├── PlanError        the recipe is valid, but cannot run here: resources, contract, foreign checkpoint (exit 3)
├── StepError        a step failed; finished artifacts stay (exit 1)
└── GateError        a gate failed; finished artifacts stay (exit 2)
"""

import errno
from dataclasses import dataclass

LONGEST = 2_000
"""Most characters of a message, an advice or a path in an error."""
FULL = (errno.ENOSPC, errno.EDQUOT)
PROTECTED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


class PosttrainError(Exception):
    """Base of all errors; `exit_code` is that of the command line."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One problem of a recipe: its position (1-based line and column), key, message and advice."""

    file: str
    line: int
    column: int
    path: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}"
        path = f"{self.path}: " if self.path else ""
        return f"{where}: {path}{self.message}" + (f"\n    {self.advice}" if self.advice else "")


class RecipeError(PosttrainError):
    """The recipe is not valid."""

    exit_code = 3

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))


class PlanError(PosttrainError):
    """The recipe is valid but cannot run here."""

    exit_code = 3


class StepError(PosttrainError):
    """A step failed."""

    exit_code = 1


class GateError(PosttrainError):
    """A gate failed."""

    exit_code = 2


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error that is not one of posttrain's, with what to do about it if it is known.

    Errors of sqlite and of Arrow about a full disk are no OSError, or have no number.
    """
    text = f"{type(error).__name__}: {error}"
    return f"{text}; {advice}" if (advice := advise_on_file_error(error)) else text


def advise_on_file_error(error: BaseException) -> str:
    """Return what to do about an error of the file system; empty if its own text says it."""
    number, text = getattr(error, "errno", None), str(error)
    if number in FULL or "disk is full" in text or "No space left on device" in text:
        return (
            "free space on that disk (`posttrain gc` lists what can be removed), or set POSTTRAIN_ROOT to a folder on "
            "another disk"
        )
    if number == errno.EMFILE:
        return "raise the limit of open files, for example with `ulimit -n 4096`"
    if ".posttrain" not in str(getattr(error, "filename", "")):
        return ""
    if number == errno.EEXIST:
        return "a file has the name of the state folder: move it away"
    return "set POSTTRAIN_ROOT to a folder that can be written" if number in PROTECTED else ""


def printable(text: str, longest: int = LONGEST) -> str:
    """Return a text for the terminal, with control characters escaped and cut after `longest` characters."""
    if len(text) > longest:
        text = f"{text[:longest]}... ({len(text)} characters)"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
