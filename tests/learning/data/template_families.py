"""Small chat templates of the shapes that model families have, and a byte-level tokenizer for each.

`«` and `»` stand around what the assistant generates: without them a template is as published, with `{% generation %}`
in their place transformers itself says which tokens are the assistant's.
"""

from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HEAD = "{% for m in messages %}"
CALLS = "{% for c in m.tool_calls %}{% set f = c.function if c.function is defined else c %}"
TOOLS = "{% for t in tools %}\n{{ t | tojson }}{% endfor %}"

CHATML = (
    HEAD + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}«{{ m.content }}<|im_end|>»"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_3 = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n<tools>" + TOOLS + "\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% set ns = namespace(query=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD
    + "{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% elif m.role == 'assistant' %}{% set content = m.content or '' %}{% set thought = '' %}"
    "{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}"
    "{% elif '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n«{% if loop.index0 > ns.query and (loop.last or thought) %}"
    "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ content.lstrip('\n') }}{% else %}{{ content }}{% endif %}"
    "{% if m.tool_calls %}" + CALLS + "{% if content or not loop.first %}\n{% endif %}"
    '<tool_call>\n{"name": "{{ f.name }}", "arguments": '
    "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}}\n</tool_call>"
    "{% endfor %}{% endif %}<|im_end|>»\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ strftime_now('%d %b %Y') }}\n\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}"
    "{% if tools %}"
    + TOOLS
    + "{% endif %}<|eot_id|>"
    + HEAD
    + "{% if m.role == 'assistant' %}<|start_header_id|>assistant<|end_header_id|>\n\n«"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('this template takes one tool call at once') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>»"
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% elif m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + HEAD
    + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'assistant' %}<start_of_turn>model\n«{{ m.content | trim }}<end_of_turn>»\n"
    "{% else %}<start_of_turn>user\n{{ m.content | trim }}<end_of_turn>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% set ns = namespace(query=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD
    + "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.query %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {\"content\": {{ m.content | tojson }}, "
    '"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.tool_calls %}«[TOOL_CALLS] ["
    + CALLS
    + '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, '
    '"id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}»'
    "{% else %}« {{ m.content }}{{ eos_token }}»{% endif %}{% endfor %}"
)
PHI_4 = (
    HEAD + "<|im_start|>{{ m.role }}<|im_sep|>{% if m.role == 'assistant' %}«{{ m.content }}<|im_end|>»"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}\n"
    "Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% if tools or messages[0].role == 'system' %}<|start|>developer<|message|>"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}{% for t in tools %}\ntype {{ t.function.name }} = (_: {{ t.function.parameters | tojson }})"
    "{% endfor %}{% endif %}<|end|>{% endif %}"
    "{% set ns = namespace(name='') %}"
    + HEAD
    + "{% if m.role == 'assistant' %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{% set ns.name = f.name %}"
    "<|start|>assistant«{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant"
    "{% endif %} to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>»"
    "{% elif loop.last and not add_generation_prompt %}<|start|>assistant«"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|channel|>final<|message|>{{ m.content }}<|return|>»"
    "{% else %}<|start|>assistant«<|channel|>final<|message|>{{ m.content }}<|end|>»{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ ns.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
DEEPSEEK_R1 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% set ns = namespace(tool=false) %}"
    + HEAD
    + "{% if m.role == 'user' %}{% set ns.tool = false %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}<｜Assistant｜>«{{ m.content or '' }}<｜tool▁calls▁begin｜>"
    + CALLS
    + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n"
    "{{ f.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>»"
    "{% elif m.role == 'assistant' %}{% if not ns.tool %}<｜Assistant｜>{% endif %}"
    "«{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>»{% set ns.tool = false %}"
    "{% elif m.role == 'tool' %}{% set ns.tool = true %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.tool %}<｜Assistant｜><think>\n{% endif %}"
)
COMMAND_R = (
    "{{ bos_token }}"
    + HEAD
    + "{% if m.role == 'system' %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content.strip() }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'assistant' %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«{{ m.content.strip() }}"
    "<|END_OF_TURN_TOKEN|>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
SMOLLM = (
    HEAD + "{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You are a helpful AI assistant<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}«{{ m.content }}<|im_end|>»{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A template, the special tokens that it writes, and what is different about it."""

    template: str
    special: tuple[str, ...]
    end: str
    """What ends the last turn."""
    system: bool = True
    tools: bool = False
    eos: str | None = None
    """End-of-sequence token, where it is not `end`."""


IM = ("<|im_start|>", "<|im_end|>")
HEADER = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
SIGNS = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep", "output▁begin", "output▁end")
)
TURN = ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>")
INST = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
FAMILIES = {
    "chatml": Family(CHATML, IM, "<|im_end|>", eos="<|endoftext|>"),
    "qwen 3": Family(QWEN_3, IM, "<|im_end|>", tools=True),
    "llama 3": Family(LLAMA_3, HEADER, "<|eot_id|>", tools=True, eos="<|end_of_text|>"),
    "gemma": Family(GEMMA, ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", system=False, eos="<eos>"),
    "mistral": Family(MISTRAL, (*INST, "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), "</s>", tools=True),
    "phi 4": Family(PHI_4, (*IM, "<|im_sep|>"), "<|im_end|>", eos="<|endoftext|>"),
    "harmony": Family(HARMONY, CHANNELS, "<|return|>", tools=True),
    "deepseek r1": Family(DEEPSEEK_R1, (*SIGNS, *DEEPSEEK_TOOLS), "<｜end▁of▁sentence｜>", tools=True),
    "command r": Family(COMMAND_R, TURN, "<|END_OF_TURN_TOKEN|>", eos="<|END|>"),
    "smollm": Family(SMOLLM, IM, "<|im_end|>"),
}


@lru_cache
def _train_tokenizer() -> str:
    """Return a byte-level tokenizer that splits words as those of Llama 3 and Qwen do, as JSON text."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = pre_tokenizers.Split(words, behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])  # pyright: ignore[reportCallIssue]  # no stub
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    texts = ["user\n\nassistant\nsystem\n\n", "What is the sum? It is 4.\n", "<think>\n\n</think>\n\n"]
    tokenizer.train_from_iterator(texts * 20, trainer)
    return tokenizer.to_str()


def make_tokenizer(name: str, *, marked: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the template of a family, with `{% generation %}` tags if `marked`."""
    family = FAMILIES[name]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_train_tokenizer()),
        bos_token="<bos>",
        eos_token=family.eos or family.end,
        pad_token="<pad>",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.special)})
    tags = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
    # Jinja drops a newline after a tag.
    kept = family.template.replace("%}\n", "%}{{ '\\n' }}").replace("»\n", "»{{ '\\n' }}")
    tokenizer.chat_template = kept.replace("«", tags[0]).replace("»", tags[1])
    tokenizer.model_max_length = 1024
    return tokenizer
