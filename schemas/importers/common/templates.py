"""Chat templates of other tools."""

from dataclasses import dataclass

from schemas.importers.common.draft import StageDraft

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template that tools call `chatml`."""
OWN = ("tokenizer_default", "jinja", "default", "empty")
FALLBACK = "tokenizer_default_fallback_"


def map_template(stage: StageDraft, key: str) -> None:
    """Take over a chat template: its text, `chatml`, or the model's own, which other names stand for."""
    word = str(stage.leaves.get(key))
    if "{%" in word or "{{" in word:
        stage.put("chat_template", word, key)
        stage.leaves.mapped(key, f"{stage.name}.chat_template")
    elif word in OWN or word.startswith(FALLBACK):
        stage.leaves.account(key, "mapped", "the model's own template")
    elif word == "chatml":
        stage.put("chat_template", CHATML, key)
        stage.leaves.mapped(key, f"{stage.name}.chat_template")
    else:
        advice = "the model's own template; give another one as `chat_template: path:template.jinja`"
        stage.leaves.differs(key, advice)


@dataclass(frozen=True)
class Turns:
    """What a tool writes around messages; `{text}` is the content, `{eos}` and `{bos}` are the model's tokens."""

    user: str
    opening: str
    """What opens a turn of the assistant, after the user's."""
    ending: str
    """What follows a turn of the assistant."""
    system: str = "{text}"
    default_system: str = ""
    prefix: str = ""


def write_template(turns: Turns) -> str:
    """Return a chat template; what is in its `generation` tags has a loss, which is a turn with all that follows it."""
    content = "message['content']"
    system, user = _write(turns.system, content), _write(turns.user, content)
    opening, ending = _write(turns.opening), _write(turns.ending)
    default = _write(turns.system, f"'{turns.default_system}'")
    refusal = "{% if tools %}{{ raise_exception('this template has no place for tools') }}{% endif %}"
    odd = "{{ raise_exception('this template has no place for the role ' + message['role']) }}"
    without = f"{{% if messages[0]['role'] != 'system' %}}{default}{{% endif %}}" if turns.default_system else ""
    return (
        f"{refusal}{_write(turns.prefix)}{without}{{% for message in messages %}}"
        f"{{% if message['role'] == 'system' %}}{system}"
        f"{{% elif message['role'] == 'assistant' %}}{opening}"
        f"{{% generation %}}{{{{ message['content'] }}}}{ending}{{% endgeneration %}}"
        f"{{% elif message['role'] == 'user' %}}{user}{{% else %}}{odd}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{opening}{{% endif %}}"
    )


def _write(text: str, content: str = "''") -> str:
    """Return a text of a template with expressions in place of its names."""
    for name, expression in (("{text}", content), ("{eos}", "eos_token"), ("{bos}", "bos_token")):
        text = text.replace(name, f"{{{{ {expression} }}}}")
    return text
