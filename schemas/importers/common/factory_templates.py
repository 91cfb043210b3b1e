"""Chat templates that LLaMA-Factory has by name, as templates of a recipe."""

from schemas.importers.common.templates import Turns, write_template

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\\n\\n"
)
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user\\'s questions."
)
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."


def _make_chatml(default_system: str = "") -> Turns:
    end = "<|im_end|>\n"
    start = "<|im_start|>{role}\n"
    return Turns(
        f"{start.replace('{role}', 'user')}{{text}}{end}",
        start.replace("{role}", "assistant"),
        end,
        f"{start.replace('{role}', 'system')}{{text}}{end}",
        default_system,
    )


def _make_llama_3() -> Turns:
    def header(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    return Turns(
        header("user") + "{text}<|eot_id|>",
        header("assistant"),
        "<|eot_id|>",
        header("system") + "{text}<|eot_id|>",
        prefix="{bos}",
    )


TURNS: dict[str, Turns] = {
    "alpaca": Turns("### Instruction:\n{text}\n\n", "### Response:\n", "{eos}\n\n", default_system=ALPACA),
    "chatml": _make_chatml(),
    "yi": _make_chatml(),
    "smollm": _make_chatml(),
    "smollm2": _make_chatml(SMOLLM2),
    "qwen": _make_chatml(QWEN),
    "default": Turns("Human: {text}{eos}\n", "Assistant:", "{eos}\n", "System: {text}{eos}\n"),
    "deepseek": Turns("User: {text}\n\n", "Assistant:", "{eos}", "{text}\n\n", prefix="{bos}"),
    "llama3": _make_llama_3(),
    "openchat": Turns("GPT4 Correct User: {text}{eos}", "GPT4 Correct Assistant:", "{eos}", prefix="{bos}"),
    "phi": Turns("<|user|>\n{text}<|end|>\n", "<|assistant|>\n", "<|end|>\n", "<|system|>\n{text}<|end|>\n"),
    "vicuna": Turns("USER: {text} ", "ASSISTANT:", "{eos}", default_system=VICUNA),
    "zephyr": Turns(
        "<|user|>\n{text}{eos}",
        "<|assistant|>\n",
        "{eos}",
        "<|system|>\n{text}{eos}",
        "You are Zephyr, a helpful assistant.",
    ),
}
"""Names to what is around messages; not those with thinking, or with the system message in the first turn."""


def find_template(name: str) -> str | None:
    """Return the chat template of a name, None if it is not one of these."""
    return write_template(TURNS[name]) if name in TURNS else None
