"""Which model types are causal language models, read from the installed transformers without importing it."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from schemas.base import JsonObject
from schemas.suggestions import find_nearest, suggest

BIDIRECTIONAL = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        *("reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta"),
        *("xlm-roberta-xl", "xmod"),
    }
)
"""Model types whose tokens attend to those after them, unless the config has `is_decoder: true`."""
NEVER_CAUSAL = frozenset({"cpmant", "prophetnet", "xlm", "xlnet"})
"""Model types whose class for language models attends to later tokens as well."""
DRAFTS = frozenset({"gemma4_assistant", "gemma4_unified_assistant"})
"""Model types that continue the hidden states of another model."""
TOWERS = ("vision_config", "audio_config")
"""Parts of a multimodal configuration besides its `text_config`."""
OTHER_TOWERS = ("audio_encoder", "audio_encoder_config", "vq_config")
"""Such parts of types that transformers has no text checkpoints of."""
TABLES = {"causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "any": "MODEL_MAPPING_NAMES"}


def find_architecture_problem(config: JsonObject) -> str | None:
    """Return why a model with this config.json is no causal language model and what to do; None if it is one."""
    kind = str(config.get("model_type"))
    causal = list_model_types("causal")
    if kind not in causal:
        if any(isinstance(config.get(part), dict) for part in TOWERS):
            return (
                f"transformers has no text model for the multimodal type {kind}: its language part cannot be trained "
                "without its towers; save that part as a model of its own type, or use another model"
            )
        if kind not in list_model_types("any"):
            near = find_nearest(kind, sorted(causal))
            hint = f"did you mean `{near}`?" if near else "code in a model's folder is not executed"
            return f"the installed transformers has no model type {kind!r}; {hint}"
        return f"a model of type {kind} is no causal language model; use one that predicts the next token"
    if kind in DRAFTS:
        return (
            f"a {kind} model drafts tokens from the hidden states of another model; name the model that it drafts for"
        )
    if config.get("is_encoder_decoder") is True:
        return f"a {kind} model with an encoder; only decoders are supported: use a causal language model"
    if kind in NEVER_CAUSAL:
        return f"a {kind} model attends to later tokens; use a causal language model"
    if kind in BIDIRECTIONAL and config.get("is_decoder") is not True:
        return f"a {kind} model attends to later tokens (it has no `is_decoder: true`); use a causal language model"
    return None


def find_new_model_problem(config: JsonObject) -> str | None:
    """Return why no new language model can be made of this configuration and what to do; None if its type can be."""
    kind = config.get("model_type")
    if kind is None:
        return "`model_type` is missing; name an architecture, for example `model_type: qwen3`"
    types = list_model_types("causal")
    if kind not in types:
        return f"{kind!r} is not a causal language model; {suggest(str(kind), sorted(types), 'one')}"
    if (text := find_text_type(str(kind))) is not None:
        return f"{kind} is multimodal; name its text model{f', `{text}`' if text else ''}"
    return find_architecture_problem({**config, "is_encoder_decoder": False})


@cache
def find_text_type(kind: str) -> str | None:
    """Return the text model's type of a multimodal type of the installed transformers; None for other types.

    Empty if it has none, or one of any type.
    """
    name = kind.replace("-", "_")
    file = _find_transformers() / "models" / name / f"configuration_{name}.py"
    if not file.is_file():
        return None  # a part of another type's module has no towers of its own
    classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    types = {
        one.name: value.value
        for one in classes
        if isinstance(value := _read_attribute(one, "model_type"), ast.Constant)
    }
    for one in classes:
        parts = _read_attribute(one, "sub_configs")
        if types.get(one.name) != kind or not isinstance(parts, ast.Dict):
            continue
        named = {
            key.value: part for key, part in zip(parts.keys, parts.values, strict=True) if isinstance(key, ast.Constant)
        }
        if any(tower in named for tower in (*TOWERS, *OTHER_TOWERS)):
            return str(types.get(getattr(named.get("text_config"), "id", ""), ""))
    return None


def _read_attribute(one: ast.ClassDef, name: str) -> ast.expr | None:
    """Return the expression that a class assigns to an attribute."""
    for node in one.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and getattr(target, "id", "") == name:
            return node.value
    return None


def _find_transformers() -> Path:
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@cache
def list_model_types(table: str) -> frozenset[str]:
    """Return the model types of a table of the installed transformers: `causal` language models, or `any` model.

    The table is read from the source: an import of transformers takes seconds.
    """
    file = _find_transformers() / "models" / "auto" / "modeling_auto.py"
    text = file.read_text(encoding="utf-8")
    # The statement alone: the whole file takes 16 ms to parse.
    if (start := text.find(f"\n{TABLES[table]} = ")) >= 0 and (end := text.find("\n)\n", start)) >= 0:
        node = ast.parse(text[start : end + 3]).body[0]
        assert isinstance(node, ast.Assign)
        assert isinstance(node.value, ast.Call)
        pairs: list[tuple[str, object]] = ast.literal_eval(node.value.args[0])
        return frozenset(name for name, _ in pairs)
    raise LookupError(f"{file.name} of transformers has no {TABLES[table]}")
