"""Checkpoints that are no causal language models are refused by name, and at the first forward pass."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from learning.models.architectures import (
    BIDIRECTIONAL,
    NEVER_CAUSAL,
    find_architecture_problem,
    find_new_model_problem,
    list_model_types,
)
from learning.models.packed import choose_forward
from schemas.errors import StepError
from tests.models.families import COMMON, FAMILIES

OWN_KEYS = {
    "xmod": {"languages": ["en"], "default_language": "en"},
    "prophetnet": {"num_hidden_layers": None, "num_decoder_layers": 2, "decoder_ffn_dim": 48},
}
LEFT_OUT = {
    "blt": "bytes in patches, whose parts have configurations of their own",
    "cohere_compass_text": "rotary embeddings with three sections for images",
    "gpt-sw3": "another name of gpt2",
}
"""Causal model types that no test compares; as for all, the check on the weights decides."""
UNBUILT = {"reformer", "xlnet"}
"""Bidirectional types whose tiny models need other configurations."""


def test_model_types_are_those_of_transformers():
    assert list_model_types("causal") == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert list_model_types("any") == set(MODEL_MAPPING_NAMES)


def test_every_supported_family_is_a_causal_language_model():
    assert not [kind for kind, more in FAMILIES.items() if find_architecture_problem({"model_type": kind, **more})]


def test_every_causal_type_of_transformers_is_compared_or_refused():
    other = sorted(list_model_types("causal") - FAMILIES.keys() - LEFT_OUT.keys())
    assert not [kind for kind in other if find_new_model_problem({"model_type": kind}) is None]
    assert not [kind for kind in LEFT_OUT if find_new_model_problem({"model_type": kind}) is not None]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llava", "vision_config": {}}, "no text model for the multimodal type llava"),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "no text model for the multimodal type qwen2_vl"),
        ({"model_type": "qwen2_audio", "audio_config": {}}, "no text model for the multimodal type qwen2_audio"),
        ({"model_type": "t5"}, "a model of type t5 is no causal language model"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "a bart model with an encoder"),
        ({"model_type": "bert"}, "a bert model attends to later tokens"),
        ({"model_type": "bert", "is_decoder": False}, "a bert model attends to later tokens"),
        ({"model_type": "xlnet", "is_decoder": True}, "a xlnet model attends to later tokens"),
        ({"model_type": "gemma4_assistant"}, "drafts tokens from the hidden states of another model"),
        ({"model_type": "lama"}, "no model type 'lama'; did you mean `llama`"),
        ({"model_type": "chatglm-of-mine"}, "code in a model's folder is not executed"),
    ],
)
def test_other_models_are_refused_by_name(config, message):
    assert message in str(find_architecture_problem(config))


def test_decoders_of_bidirectional_types_are_causal():
    for kind in BIDIRECTIONAL:
        assert find_architecture_problem({"model_type": kind, "is_decoder": True}) is None


@pytest.mark.parametrize("kind", sorted((BIDIRECTIONAL | NEVER_CAUSAL) - UNBUILT))
@pytest.mark.filterwarnings("ignore")  # transformers advises `is_decoder`
def test_models_that_attend_to_later_tokens_are_refused_on_their_weights(kind):
    torch.manual_seed(0)
    more = {"embedding_size": 32, "emb_dim": 32, "n_layers": 2, "n_heads": 4, **OWN_KEYS.get(kind, {})}
    keys = {key: value for key, value in {**COMMON, **more}.items() if value is not None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **keys)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim >= 2 else 1)
    with pytest.raises(StepError, match=f"{kind}: its tokens attend to later tokens"):
        choose_forward(model)
