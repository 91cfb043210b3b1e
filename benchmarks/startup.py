"""Start-up time of the command line compared with DVC's: `posttrain --help`, `validate`, `plan`, `dvc --version`.

python benchmarks/startup.py [--rounds 7] [--recipe recipes/quickstart.yaml]
"""

import argparse
import os
import sys
import tempfile

from timing import alternate, report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    options = parser.parse_args()
    ours = [sys.executable, "-m", "flows.cli"]
    commands = {
        "help": [*ours, "--help"],
        "validate": [*ours, "validate", options.recipe],
        "plan": [*ours, "plan", options.recipe],
        "dvc_version": [sys.executable, "-m", "dvc", "--version"],
    }
    # An installed package has compiled modules; a shell that forbids writing them would measure the compiler.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        report("startup", alternate(commands, options.rounds), recipe=options.recipe)


if __name__ == "__main__":
    main()
