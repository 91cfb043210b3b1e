"""Chat templates of shapes that no published family has: ids and losses are exactly the template's, or refused."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from learning.data.chat import encode_prompt
from learning.data.turns import encode_conversation
from schemas.errors import StepError
from tests.learning.data.template_families import _train_tokenizer
from tests.learning.data.test_template_families import CALL, TOOL, render, say

SPECIAL = ("<|a|>", "<|b|>", "<|end|>", "<|sep|>", "<|call|>")
PLAIN = [
    say("system", "Be brief."),
    say("user", "  What is 2+2?\n"),
    say("assistant", " It is 4. "),
    say("user", "And 3+3?"),
    say("assistant", "<think>\nadd\n</think>\n\n6, as\n\nbefore "),
]
CALLED = [
    say("system", "Be brief."),
    say("user", "What is 2+2?"),
    say("assistant", "", tool_calls=[CALL, CALL]),
    say("tool", "4", name="add", tool_call_id="call00001"),
    say("assistant", "It is 4."),
]
# `«` and `»` stand around what the assistant generates, `¶` for a newline, which Jinja drops after a tag.
TEMPLATES = {
    "white space around and inside of turns": (
        "  {% for m in messages %}\t{{ m.role | upper }} :  {% if m.role == 'assistant' %}"
        "«{{ m.content | trim }}  <|end|>»"
        "{% else %}{{ m.content }}{% endif %}  ¶¶{% endfor %}{% if add_generation_prompt %}\tASSISTANT :  {% endif %}"
    ),
    "the system message inside of the first question": (
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = m.content ~ '\\n\\n' %}"
        "{% elif m.role == 'user' %}<|a|>{{ ns.system }}{{ m.content | trim }}{% set ns.system = '' %}<|b|>"
        "{% else %}«{{ m.content }}<|end|>»{% endif %}{% endfor %}"
    ),
    "macros": (
        "{% macro open(role) %}<|a|>{{ role }}¶{% endmacro %}{% macro close() %}<|end|>¶{% endmacro %}"
        "{% for m in messages %}{{ open(m.role) }}{% if m.role == 'assistant' %}«{{ m.content }}<|end|>»¶"
        "{% else %}{{ m.content }}{{ close() }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ open('assistant') }}{% endif %}"
    ),
    "BOS before every turn": (
        "{% for m in messages %}{{ bos_token }}{{ m.role }}: {% if m.role == 'assistant' %}«{{ m.content }}"
        "{{ eos_token }}»"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}"
        "assistant: {% endif %}"
    ),
    "thinking only in the last turn": (
        "{% for m in messages %}"
        "{% set text = m.content.split('</think>')[-1].lstrip('\\n') if not loop.last else m.content %}"
        "<|a|>{{ m.role }}¶{% if m.role == 'assistant' %}«{{ text }}<|end|>»{% else %}{{ text }}"
        "<|end|>{% endif %}¶{% endfor %}"
        "{% if add_generation_prompt %}<|a|>assistant¶{% endif %}"
    ),
    "a date": (
        "<|a|>{{ strftime_now('%d %b %Y') }}¶{% for m in messages %}{% if m.role == 'assistant' %}"
        "<|b|>«{{ m.content }}<|end|>»"
        "{% else %}<|a|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|b|>{% endif %}"
    ),
    "words instead of special tokens": (
        "{% for m in messages %}{% if m.role == 'assistant' %}¶¶Assistant:«{{ m.content }}»"
        "{% else %}¶¶{{ m.role | capitalize }}: {{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}¶¶Assistant:{% endif %}"
    ),
    "the end of a turn written by the next one": (
        "{% for m in messages %}{% if not loop.first %}<|sep|>{% endif %}{{ m.role }}"
        " {% if m.role == 'assistant' %}«{{ m.content }}»"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|sep|>assistant {% endif %}"
    ),
    "EOS after the last turn only": (
        "{% for m in messages %}<|a|>{{ m.role }} {% if m.role == 'assistant' %}«{{ m.content }}"
        "{% if loop.last %}{{ eos_token }}{% endif %}»"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|a|>assistant {% endif %}"
    ),
    "one token that opens and ends turns": (
        "{% for m in messages %}<|sep|>{{ m.role }}¶{% if m.role == 'assistant' %}«{{ m.content }}<|sep|>»"
        "{% else %}{{ m.content }}<|sep|>{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "<|sep|>assistant¶{% endif %}"
    ),
    "a last turn of another form": (
        "{% for m in messages %}<|a|>{{ m.role }}{% if loop.last and m.role == 'assistant' %}<|b|>final{% endif %}¶"
        "{% if m.role == 'assistant' %}«{{ m.content }}<|end|>»{% else %}{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|a|>assistant{% endif %}"
    ),
    "nested loops over calls": (
        "{% for m in messages %}<|a|>{{ m.role }}¶{% if m.role == 'assistant' %}«{{ m.content }}"
        "{% for c in m.tool_calls %}<|call|>"
        "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}"
        "{% if not loop.last %}, {% endif %}{% endfor %})"
        "{% endfor %}<|end|>»{% else %}{{ m.content }}<|end|>{% endif %}¶{% endfor %}"
        "{% if add_generation_prompt %}<|a|>assistant¶{% endif %}"
    ),
}
WITHOUT_END = {"words instead of special tokens", "the end of a turn written by the next one"}
"""Templates that write no special token after the last turn."""
REFUSED = {
    "turns in reverse order": (
        "{% for m in messages | reverse %}<|a|>{{ m.role }}¶{% if m.role == 'assistant' %}«{{ m.content }}<|end|>»"
        "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "<|a|>assistant¶{% endif %}"
    ),
    "words in capitals": (
        "{% for m in messages %}<|a|>{{ m.role }}¶«{{ m.content | upper }}<|end|>»{% endfor %}"
        "{% if add_generation_prompt %}<|a|>assistant¶{% endif %}"
    ),
    "roles in turn": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}"
        "{% endif %}<|a|>{{ m.content }}<|end|>{% endfor %}"
    ),
}


def make(template, *, tagged=False):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_train_tokenizer()), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tags = ("{% generation %}", "{% endgeneration %}") if tagged else ("", "")
    tokenizer.chat_template = template.replace("¶", "{{ '\\n' }}").replace("«", tags[0]).replace("»", tags[1])
    tokenizer.model_max_length = 1024
    return tokenizer


def cut_last(mask):
    starts = [i for i, bit in enumerate(mask) if bit and (i == 0 or not mask[i - 1])]
    return [bool(bit) and i >= starts[-1] for i, bit in enumerate(mask)]


@pytest.mark.parametrize("train_on", ["all", "last"])
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "a last turn of another form"])
def test_ids_and_losses_are_those_of_the_template(name, train_on):
    plain, tagged = make(TEMPLATES[name]), make(TEMPLATES[name], tagged=True)
    for messages, options in ((PLAIN, {}), *([(CALLED, {"tools": [TOOL]})] if "calls" in name else [])):
        made = encode_conversation(plain, messages[:-1], messages[-1:], train_on=train_on, row=options or None)
        ids, mask = render(tagged, messages, return_assistant_tokens_mask=True, **options)
        assert ids == render(plain, messages, **options)[0]
        closed = name not in WITHOUT_END
        assert made.ids == ids + ([] if closed else [plain.eos_token_id])
        expected = [bool(bit) for bit in mask] if train_on == "all" else cut_last(mask)
        assert made.learned == expected + [True] * (not closed)
    assert encode_prompt(plain, PLAIN[:-1]) == render(plain, PLAIN[:-1], add_generation_prompt=True)[0]


def test_what_a_turn_has_beyond_the_generation_prompt_is_learned():
    tokenizer = make(TEMPLATES["a last turn of another form"])
    made = encode_conversation(tokenizer, PLAIN[:-1], PLAIN[-1:], train_on="all")
    assert made.ids == render(tokenizer, PLAIN)[0]
    learned = tokenizer.decode([token for token, bit in zip(made.ids, made.learned, strict=True) if bit])
    assert learned == f"\n It is 4. <|end|><|b|>final\n{PLAIN[-1]['content']}<|end|>"


@pytest.mark.parametrize("train_on", ["all", "last"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("turns in reverse order", r"writes message \d after message \d; .* keeps the order"),
        ("words in capitals", r"leaves out a part of message \d, which is to be learned"),
        ("roles in turn", "roles must alternate"),
    ],
)
def test_a_template_that_hides_or_moves_what_is_learned_is_refused(name, message, train_on):
    with pytest.raises(StepError, match=message):
        encode_conversation(make(REFUSED[name]), PLAIN[:-1], PLAIN[-1:], train_on=train_on)
