"""Reads `chat_template: path:FILE` or `alpaca` of a stage and checks that a template is one."""

import re
from pathlib import Path

from schemas.chat import Chat
from schemas.chat_settings import BEGINS
from schemas.errors import Problem
from schemas.source.tree import Node, join_path, make_problem
from schemas.source.validation import follow_path
from schemas.stages.base import BaseStage

PREFIX = "path:"
LONGEST = 1 << 20
"""Bytes of a template's file."""
GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
"""Tags of transformers that jinja2 alone does not know."""
FUNCTIONS = frozenset({"raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner", "lipsum"})
"""What a template may call: transformers supplies the first two, Jinja the others."""
ALPACA = (
    BEGINS + "{% set turn = namespace(system=none, number=0) %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set turn.system = message['content'] %}"
    "{% elif message['role'] == 'user' %}"
    "{% if turn.number == 0 %}{% if turn.system %}{{ turn.system }}"
    "{% elif message['input'] %}{{ 'Below is an instruction that describes a task, paired with an input that provides "
    "further context. Write a response that appropriately completes the request.' }}"
    "{% else %}{{ 'Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.' }}{% endif %}{% endif %}{% set turn.number = turn.number + 1 %}"
    "{{ '\n\n### Instruction:\n' + (message['instruction'] or message['content']) }}"
    "{% if message['input'] %}{{ '\n\n### Input:\n' + message['input'] }}{% endif %}"
    "{{ '\n\n### Response:\n' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
"""The prompts of Stanford Alpaca, with and without input, as axolotl's `type: alpaca` writes them; a system message
stands in the place of the first sentences."""
NAMED = {"alpaca": ALPACA}
"""Templates that a recipe may name."""


def read_chat_template(
    stage: BaseStage, node: Node, path: str, folders: tuple[Path, ...], problems: list[Problem]
) -> BaseStage:
    """Return the stage with the text of its template's file; add a problem for what is no template."""
    if not isinstance(stage, Chat) or stage.chat_template is None:
        return stage
    mark, where = follow_path(node, "chat_template").mark, join_path(path, "chat_template")
    text = stage.chat_template
    if text.startswith(PREFIX):
        name = text.removeprefix(PREFIX)
        file = next((file for folder in folders if (file := folder / name).is_file()), None)
        if file is None or file.stat().st_size > LONGEST:
            what = f"no file `{name}`" if file is None else f"`{name}` has more than {LONGEST} bytes"
            problems.append(make_problem(mark, where, what, "a path is relative to the recipe's folder"))
            return stage
        text = file.read_text(encoding="utf-8", errors="replace")
    elif "{" not in text and text not in NAMED:
        advice = f"give its text, or path:FILE; named templates: {', '.join(NAMED)}"
        problems.append(make_problem(mark, where, f"`{text}` is no template and has nothing of a conversation", advice))
        return stage
    text = NAMED.get(text, text)
    if (wrong := find_syntax_error(text)) is not None:
        problems.append(make_problem(mark, where, f"no Jinja template: {wrong}", "give its text, or path:FILE"))
    return stage.model_copy(update={"chat_template": text})


def find_syntax_error(text: str) -> str | None:
    """Return what is wrong with the text of a template and in which line of it, or None.

    It is parsed and not rendered: a template of others may take for ever.
    """
    from jinja2 import TemplateSyntaxError, meta, nodes  # only recipes with a template need it
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(GENERATION.sub("", text))
        given = meta.find_undeclared_variables(tree)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in given - FUNCTIONS:
            return f"line {call.lineno}: `{call.node.name}` is no function of chat templates"
    return None if "messages" in given else "it never reads `messages`, so that it writes nothing of a conversation"
