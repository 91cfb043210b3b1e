"""The command line: `posttrain VERB`.

Exit codes: 0 ok, 1 a step failed, 2 a gate failed, 3 usage or validation. Heavy modules are imported by the verbs
that need them, so that `--help` and `validate` answer at once.
"""

import gc
import io
import os
import re
import sys
from typing import Annotated

import typer

from flows.commands import (
    auditing,
    author,
    champions,
    evidence,
    importing,
    keeping,
    operating,
    reproduction,
    running,
    serving,
)
from schemas.errors import PosttrainError, advise_on_file_error

app = typer.Typer(
    name="posttrain",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
PANELS = {
    "Write": [
        author.init,
        importing.import_,
        author.ls,
        author.validate,
        author.show,
        author.plan,
        author.why,
        author.check_reward,
        author.schema,
    ],
    "Run": [
        running.run,
        running.resume,
        running.approve,
        running.runs,
        running.costs,
        running.status,
        running.logs,
        running.path,
        running.report,
        evidence.evidence,
    ],
    "Audit": [
        auditing.lineage,
        reproduction.diff,
        reproduction.compare,
        reproduction.lock,
        auditing.export,
        auditing.query,
    ],
    "Champions": [champions.champions, champions.promote, champions.rollback, serving.serve],
    "Operate": [operating.up, operating.deploy, operating.mcp, operating.doctor],
    "Keep": [keeping.gc, keeping.pin, keeping.push, keeping.pull, keeping.fetch],
}
"""Verbs in the order of `--help`."""
NAMES = {author.check_reward: "test-reward", importing.import_: "import"}
"""Names of verbs that are not those of their functions."""

VERBS = {
    **dict.fromkeys(("train", "start", "execute", "sft", "grpo", "dpo"), "run RECIPE.yaml"),
    **dict.fromkeys(("check", "lint"), "validate RECIPE.yaml"),
    **dict.fromkeys(("list", "history"), "runs"),
    **dict.fromkeys(("new", "create"), "init FOLDER"),
    **dict.fromkeys(("eval", "evaluate"), "run RECIPE.yaml --to STAGE"),
}
"""What to type in place of words that are no verbs."""


def print_version(wanted: bool) -> None:
    """Print the installed version and exit."""
    if wanted:
        import importlib.metadata  # no other verb needs it, and `validate` is to answer at once

        print(f"posttrain {importlib.metadata.version('posttrain')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=print_version, help="Print the version.")] = False,
) -> None:
    """Declared multi-stage post-training: YAML recipes, run on Prefect and Ray, remembered in MLflow and DVC."""


for panel, verbs in PANELS.items():
    for verb in verbs:
        app.command(NAMES.get(verb), rich_help_panel=panel)(verb)


def advise_on_verb(message: str) -> str:
    """Return the nearest verb for the message of an unknown one; empty for other messages."""
    unknown = re.search(r"No such command '([^']*)'", message)
    if unknown is None or "Did you mean" in message:
        return ""
    verb = VERBS.get(unknown[1])
    return f"did you mean `posttrain {verb}`?" if verb else "all verbs: posttrain -h"


def main() -> None:
    """Run the command line; an error of posttrain becomes a message and an exit code, never a traceback."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    gc.set_threshold(700, 10, 100)  # full collections amid imports take a tenth of start-up, and find nothing
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold what no encoding has
    try:
        code = app(standalone_mode=False, prog_name="posttrain") or 0  # typer.Exit arrives as its code
        sys.stdout.flush()
    except PosttrainError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except (BrokenPipeError, SystemExit):  # `posttrain query ... | head`: the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # those of steps are StepErrors: this is the state folder, or a file that was named
        line = f"{error.filename or 'posttrain'}: {error.strerror or error}"
        advice = advise_on_file_error(error)
        print(f"{line}; {advice}" if advice else line, file=sys.stderr)
        code = 3
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        if isinstance(message := getattr(error, "message", None), str):
            error.__dict__["message"] = message.replace("Value error, ", "")  # of pydantic, by which typer checks words
        show()  # a usage error says what it is
        if advice := advise_on_verb(str(getattr(error, "message", ""))):
            print(advice, file=sys.stderr)
        code = 3
    sys.exit(code)


if __name__ == "__main__":
    main()
