"""Chat templates of other tools."""

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
