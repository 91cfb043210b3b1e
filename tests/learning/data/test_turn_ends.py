"""Turns end with the token that the chat template writes, in training and in sampling."""

import pytest
import torch

from learning.data.chat import encode_completion, encode_prompt, encode_reply, find_turn_end
from learning.data.examples import encode_row
from learning.data.tokenizers import characters
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from tests.conftest import small_policy

ROLES = "{% for m in messages %}"
CHATML = ROLES + (
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = ROLES + (
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA_3 = ROLES + (
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
PHI_4 = ROLES + (
    "<|im_start|>{{ m['role'] }}<|im_sep|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
MISTRAL = ROLES + (
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }}[/INST]{% else %} {{ m['content'] }}</s>{% endif %}"
    "{% endfor %}"
)
HARMONY = ROLES + (
    "{% if m['role'] == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m['content'] }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}"
    "{% else %}<|start|>{{ m['role'] }}<|message|>{{ m['content'] }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|channel|>final<|message|>{% endif %}"
)
COMMAND_R = ROLES + (
    "<|START_OF_TURN_TOKEN|>{{ m['role'] }}|{{ m['content'] }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|>assistant|{% endif %}"
)
DEEPSEEK = ROLES + (
    "{% if m['role'] == 'user' %}<User>{{ m['content'] }}{% else %}<Assistant>{{ m['content'] }}<end_of_sentence>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<Assistant>{% endif %}"
)
PLAIN = ROLES + "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
TEMPLATES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "llama 3": (LLAMA_3, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "phi 4": (PHI_4, ["<|im_start|>", "<|im_sep|>", "<|im_end|>"], "<|im_end|>"),
    "harmony": (HARMONY, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"], "<|return|>"),
    "command r": (COMMAND_R, ["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"], "<|END_OF_TURN_TOKEN|>"),
    "deepseek": (DEEPSEEK, ["<User>", "<Assistant>", "<end_of_sentence>"], "<end_of_sentence>"),
    "no special token": (PLAIN, [], "<eos>"),
}
PROMPT = [{"role": "user", "content": "What is 2+2?"}]
ANSWER = [{"role": "assistant", "content": "It is 4."}]


def tokenizer_of(name):
    template, special, end = TEMPLATES[name]
    tokenizer = characters(chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.model_max_length = 128
    return tokenizer, tokenizer.convert_tokens_to_ids(end)


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_the_rendered_conversation(name):
    tokenizer, end = tokenizer_of(name)
    example = encode_row(tokenizer, {"prompt": PROMPT, "completion": ANSWER})
    whole = tokenizer.apply_chat_template(PROMPT + ANSWER, tokenize=True, return_dict=False)
    assert find_turn_end(tokenizer) == end
    assert example.ids == (whole if end in whole else [*whole[:-1], end])
    learned = [token for token, counts in zip(example.ids, example.learned, strict=True) if counts]
    assert learned == [*tokenizer.encode("It is 4.", add_special_tokens=False), end]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("harmony", "no special token")])
def test_a_second_turn_continues_the_rendered_conversation(name):
    """Harmony closes earlier turns with another token than the last, so its episodes are not one rendering."""
    tokenizer, _ = tokenizer_of(name)
    first = encode_prompt(tokenizer, PROMPT) + encode_completion(tokenizer, ANSWER)
    more = [{"role": "user", "content": "And 3+3?"}]
    whole = tokenizer.apply_chat_template(
        PROMPT + ANSWER + more, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert first + encode_reply(tokenizer, "And 3+3?") == whole


def test_mistral_ends_with_its_end_of_sequence():
    tokenizer = characters(chat_template=MISTRAL)
    tokenizer.add_special_tokens({"eos_token": "</s>", "additional_special_tokens": ["[INST]", "[/INST]"]})
    assert find_turn_end(tokenizer) == tokenizer.convert_tokens_to_ids("</s>")


@pytest.mark.parametrize("named", [[7, 9], 9])
def test_sampling_stops_at_every_token_that_ends_a_turn(named):
    plain = small_policy(128, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8)
    tokenizer, end = tokenizer_of("gemma")
    plain.model.resize_token_embeddings(len(tokenizer))
    policy = Policy(plain.model, tokenizer, 128)
    policy.model.generation_config.eos_token_id = named
    listed = named if isinstance(named, list) else [named]
    assert policy.stop_ids == (end, tokenizer.eos_token_id, *listed)
    requests = [Request([11, 12, 13], 40, seed=1)]
    with torch.no_grad():
        generations = Engine(policy).generate(requests, Sampling(1.0, max_new_tokens=60))[0]
    stopped = [one.token_ids for one in generations if one.finish == "stop"]
    assert {ids[-1] for ids in stopped} <= set(policy.stop_ids)
    assert len({ids[-1] for ids in stopped}) > 1
    assert not any(set(ids[:-1]) & set(policy.stop_ids) for ids in stopped)
    assert all(not set(one.token_ids) & set(policy.stop_ids) for one in generations if one.finish == "length")


def test_a_template_that_writes_the_date_gives_the_same_tokens_on_any_day():
    tokenizer = characters(chat_template="{{ strftime_now('%d %B %Y') }}" + CHATML)
    ids = encode_prompt(tokenizer, PROMPT)
    assert tokenizer.decode(ids).startswith("26 July 2024")


@pytest.mark.parametrize("content", [None, 7, ["a"]])
def test_a_message_without_text_is_refused_by_name(content):
    tokenizer, _ = tokenizer_of("chatml")
    with pytest.raises(StepError, match="must be text, not"):
        encode_completion(tokenizer, [{"role": "assistant", "content": content}])
    with pytest.raises(StepError, match=r"message 1 \(user\)(:| has no) content"):
        encode_prompt(characters(), [{"role": "user", "content": content}])
