"""AGENTS.md and llms.txt are true: their commands, options and files exist."""

import re
from pathlib import Path

import pytest
import typer

from flows.cli import app

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt", "docs/importing.md"])
def test_the_commands_that_it_names_exist(name):
    text = (ROOT / name).read_text()
    lines = [line for line in re.findall(r"posttrain [^`\n]+", text) if re.match(r"posttrain [a-z-]+", line)]
    called = [line.split() for line in lines if line.split()[1] in COMMANDS]
    assert called
    for command in re.findall(r"`posttrain ([a-z-]+)", text):
        assert command in COMMANDS, command
    for _, command, *words in called:
        options = {option for parameter in COMMANDS[command].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (command, words)


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt"])
def test_the_files_that_it_names_exist(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
