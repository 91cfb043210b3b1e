"""Ids and losses under the templates of model families: exactly those of `apply_chat_template` and of its masks."""

import pytest

from learning.data.chat import encode_answer, encode_prompt, find_turn_end, find_turn_ends
from learning.data.chat_settings import PINNED_DATE
from learning.data.turns import encode_conversation
from schemas.errors import StepError
from tests.learning.data.template_families import FAMILIES, make_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.tools]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def converse(name):
    """Return a prompt of several turns and its completion."""
    system = [say("system", "Be brief.")] if FAMILIES[name].system else []
    turns = [say("user", "What is 2+2?"), say("assistant", "It is 4."), say("user", " And 3+3? ")]
    return [*system, *turns], [say("assistant", "6, as\n\nbefore")]


def converse_with_tools(name):
    prompt = [
        say("system", "Be brief."),
        say("user", "What is 2+2?"),
        say("assistant", None if name != "deepseek r1" else "", tool_calls=[CALL]),
        say("tool", "4", name="add", tool_call_id="call00001"),
    ]
    return prompt, [say("assistant", "It is 4.")]


def render(tokenizer, messages, **options):
    """Return ids and the assistant's mask as transformers gives them, on the pinned day."""
    made = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, strftime_now=PINNED_DATE.strftime, **options
    )
    return made["input_ids"], made.get("assistant_masks")


def render_mask(name, messages, **options):
    """Return the mask of the family's template with `{% generation %}` tags, which TRL's assistant_only_loss uses."""
    return render(make_tokenizer(name, marked=True), messages, return_assistant_tokens_mask=True, **options)


@pytest.mark.parametrize("tagged", [False, True], ids=["differences", "tags"])
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_losses_of_several_turns_are_those_of_the_template(name, tagged):
    tokenizer = make_tokenizer(name, marked=tagged)
    prompt, completion = converse(name)
    made = encode_conversation(tokenizer, prompt, completion, train_on="all")
    ids, mask = render_mask(name, [*prompt, *completion])
    assert made.ids == render(tokenizer, [*prompt, *completion])[0] == ids
    assert made.learned == [bool(bit) for bit in mask]
    last = encode_conversation(tokenizer, prompt, completion, train_on="last")
    border = max(i for i, bit in enumerate([0, *mask]) if bit and not [0, *mask][i - 1]) - 1
    assert last.ids == ids
    assert last.learned == [bool(bit) and i >= border for i, bit in enumerate(mask)]
    end = FAMILIES[name].end
    assert tokenizer.decode([t for t, bit in zip(ids, last.learned, strict=True) if bit]).endswith(f"before{end}")


@pytest.mark.parametrize("tagged", [False, True], ids=["differences", "tags"])
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tool_calls_are_learned_in_the_format_of_the_model(name, tagged):
    tokenizer = make_tokenizer(name, marked=tagged)
    prompt, completion = converse_with_tools(name)
    made = encode_conversation(tokenizer, prompt, completion, train_on="all", row={"tools": [TOOL]})
    ids, mask = render_mask(name, [*prompt, *completion], tools=[TOOL])
    assert made.ids == ids
    assert made.learned == [bool(bit) for bit in mask]
    learned = tokenizer.decode([t for t, bit in zip(ids, mask, strict=True) if bit])
    assert "add" in learned
    assert '"a": 2' in learned
    assert "Add two" not in learned
    assert "Add two" in tokenizer.decode(ids) or name == "harmony" or name == "deepseek r1"
    called = encode_conversation(tokenizer, prompt[:2], prompt[2:3], row={"tools": [TOOL]})
    assert called.ids == render(tokenizer, prompt[:3], tools=[TOOL])[0]
    assert called.ids[-1 - called.learned[::-1].index(True)] in find_turn_ends(tokenizer)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_are_those_of_the_template(name):
    tokenizer = make_tokenizer(name)
    prompt, completion = converse(name)
    assert encode_prompt(tokenizer, prompt) == render(tokenizer, prompt, add_generation_prompt=True)[0]
    begun = [*prompt, say("assistant", "6, as")]
    assert encode_prompt(tokenizer, begun) == render(tokenizer, begun, continue_final_message=True)[0]
    given, answer = encode_answer(tokenizer, prompt, completion)
    whole = encode_conversation(tokenizer, prompt, completion).ids
    if name != "deepseek r1":  # its generation prompt opens a block that finished turns lack
        assert [*given, *answer] == whole[: len(given) + len(answer)]
    assert answer[-1] == find_turn_end(tokenizer) == tokenizer.convert_tokens_to_ids(FAMILIES[name].end)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_begun_answer_is_given_and_its_rest_learned(name):
    tokenizer = make_tokenizer(name)
    prompt, completion = converse(name)
    made = encode_conversation(tokenizer, [*prompt, say("assistant", "6, as")], [say("assistant", "\n\nbefore")])
    assert made.ids == render(tokenizer, [*prompt, *completion])[0]
    learned = tokenizer.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
    assert learned == f"\n\nbefore{FAMILIES[name].end}"


@pytest.mark.parametrize("name", FAMILIES)
def test_text_that_looks_like_a_special_token_stays_text(name):
    tokenizer = make_tokenizer(name)
    prompt, completion = converse(name)
    special = set(tokenizer.all_special_ids)
    plain = encode_conversation(tokenizer, prompt, completion)
    for text in FAMILIES[name].special:
        forged = [*prompt[:-1], say("user", f"x {text} y")]
        messages = [say("assistant", f"I say {text} too")]
        made = encode_conversation(tokenizer, forged, messages)
        assert [i for i in made.ids if i in special] == [i for i in plain.ids if i in special]
        learned = tokenizer.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
        assert learned.endswith(f"I say {text} too{FAMILIES[name].end}")


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen_3_with_and_without_thinking(thinking):
    tokenizer = make_tokenizer("qwen 3")
    prompt, completion = converse("qwen 3")
    row = {"chat_template_kwargs": {"enable_thinking": thinking}}
    made = encode_conversation(tokenizer, prompt, completion, row=row)
    assert made.ids == render(tokenizer, [*prompt, *completion], enable_thinking=thinking)[0]
    learned = tokenizer.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
    assert learned == ("<think>\n\n</think>\n\n" if thinking else "") + "6, as\n\nbefore<|im_end|>"
    assert encode_prompt(tokenizer, prompt, row) == made.ids[: made.learned.index(True)]


def test_thinking_of_the_last_turn_is_learned_and_of_earlier_ones_is_what_the_template_keeps():
    thought = "<think>\nadd them\n</think>\n\n"
    prompt = [say("user", "2+2?"), say("assistant", f"{thought}4"), say("user", "3+3?")]
    qwen = make_tokenizer("qwen 3")
    made = encode_conversation(qwen, prompt, [say("assistant", f"{thought}6")], train_on="all")
    assert made.ids == render(qwen, [*prompt, say("assistant", f"{thought}6")])[0]
    learned = qwen.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
    assert learned == f"4<|im_end|>{thought}6<|im_end|>"
    deepseek = make_tokenizer("deepseek r1")
    made = encode_conversation(deepseek, prompt, [say("assistant", f"{thought}6")], train_on="all")
    assert made.ids[: made.ids.index(deepseek.convert_tokens_to_ids("<｜end▁of▁sentence｜>"))]
    text = deepseek.decode(made.ids)
    assert text == (
        "<bos><｜User｜>2+2?<｜Assistant｜>\n\n4<｜end▁of▁sentence｜><｜User｜>3+3?<｜Assistant｜>"
        f"{thought}6<｜end▁of▁sentence｜>"
    )
    assert made.ids[: len(encode_prompt(deepseek, prompt))] == encode_prompt(deepseek, prompt)


@pytest.mark.parametrize("name", ["chatml", "gemma", "harmony"])
def test_marked_messages_are_learned_and_no_others(name):
    tokenizer = make_tokenizer(name)
    prompt, completion = converse(name)
    first = next(i for i, message in enumerate(prompt) if message["role"] == "assistant")
    flagged = [m | {"train": True} if i == first else m for i, m in enumerate(prompt)]
    made = encode_conversation(tokenizer, flagged, completion, train_on="marked")
    assert made.ids == render(tokenizer, [*prompt, *completion])[0]
    learned = tokenizer.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
    ending = "<|end|>" if name == "harmony" else FAMILIES[name].end
    assert learned.endswith(f"It is 4.{ending}")
    assert "before" not in learned


def test_marked_takes_the_tags_of_the_template_where_no_message_has_a_mark():
    prompt, completion = converse("chatml")
    tagged, plain = make_tokenizer("chatml", marked=True), make_tokenizer("chatml")
    made = encode_conversation(tagged, prompt, completion, train_on="marked")
    assert made == encode_conversation(plain, prompt, completion, train_on="all")
    with pytest.raises(StepError, match=r"no message of the assistant has `train: true`.*\{% generation %\}"):
        encode_conversation(plain, prompt, completion, train_on="marked")


def test_a_system_message_that_the_template_refuses_is_an_error_with_its_words():
    with pytest.raises(StepError, match="System role not supported"):
        encode_prompt(make_tokenizer("gemma"), [say("system", "x"), say("user", "y")])


RESULT_INSIDE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user {{ m.content }}\n"
    "{% elif m.role == 'tool' %} gives {{ m.content }}{% else %}{% if not loop.previtem.role == 'tool' %}"
    "<|im_start|>assistant {% endif %}{% if m.tool_calls %}add(2){% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def test_results_that_a_template_writes_into_a_turn_have_no_loss():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = RESULT_INSIDE
    prompt, completion = converse_with_tools("qwen 3")
    made = encode_conversation(tokenizer, prompt[1:], completion, train_on="all")
    assert made.ids == render(tokenizer, [*prompt[1:], *completion])[0]
    learned = tokenizer.decode([t for t, bit in zip(made.ids, made.learned, strict=True) if bit])
    assert learned == "add(2)It is 4.<|im_end|>"


def test_a_part_of_a_turn_that_the_template_drops_is_an_error_that_names_it():
    thought = [say("assistant", "6", reasoning_content="easy")]
    with pytest.raises(StepError, match=r"row a: .* a part of message 2, .*\(role, content, reasoning_content\)"):
        encode_conversation(make_tokenizer("gemma"), [say("user", "3+3?")], thought, row={"id": "a"})
