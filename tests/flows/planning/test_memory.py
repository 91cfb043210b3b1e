"""posttrain plan --memory: exact parameter counts, and predictions beside what real steps take in their own processes.

On a CPU the most that tensors held is counted op by op; predictions must not be below 90 % or above 120 % of it.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from flows.planning.memory import (
    describe_forwards,
    describe_prompts,
    describe_traced,
    estimate_memory,
    find_estimate,
    list_warnings,
    memory_as_json,
)
from flows.planning.memory_demand import StepDemand
from flows.planning.memory_kinds.preference import FORWARD_TOKENS
from flows.planning.memory_lengths import PlanRows
from flows.planning.memory_models import KnownModel
from flows.planning.memory_sampling import MAX_OPEN
from flows.planning.recipe_plan import plan_recipe
from learning.generation.engines import running, slots
from learning.generation.services import row_streams as streams
from learning.memory_model import estimate as memory_estimate
from learning.memory_model import forward as memory_estimate_forward
from learning.memory_model import shape as memory_shape
from learning.memory_model.estimate import Phase, Place, Slots, Trained, estimate_training
from learning.memory_model.forward import Forward, Pass, Precision
from learning.memory_model.shape import ARCHITECTURES, Shape, read_shape
from learning.models import adapter_targets, cpu_attention, packed, segments
from lineage.layout import Layout
from schemas.errors import PlanError, StepError
from schemas.resources import Resources
from schemas.stages.union import KINDS
from tasks import reward_model
from tests.flows.checkout import REPOSITORY
from tests.small_steps import write_checkpoint_files

SCRIPT = REPOSITORY / "benchmarks" / "memory_predicted.py"
LOWEST, HIGHEST = 0.9, 1.2


def config_of(kind, **more):
    own = {"qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24}, "mixtral": {"num_local_experts": 4}}
    if kind == "gpt2":
        sizes = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    else:
        sizes = {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
        sizes |= {} if kind == "phi3" else {"head_dim": 16}
    sizes |= {key: more.pop(key) for key in sizes.keys() & more.keys()}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return CONFIG_MAPPING[kind](vocab_size=120, **sizes, **ids, **own.get(kind, {}), **more)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_exactly(kind, tied):
    config = config_of(kind)
    config.tie_word_embeddings = tied
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert read_shape(config.to_dict()).parameters == model.num_parameters()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lora_target_modules": ["q_proj", "v_proj"], "use_dora": True},
        {"lora_target_modules": r"model\.layers\.1\.mlp\..*_proj"},
        {"modules_to_save": ["embed_tokens", "model.norm"], "use_rslora": True},
        {"modules_to_save": ["down_proj", "lm_head"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("tied", [False, True])
def test_adapters_are_counted_exactly(more, tied):
    from flows.planning.memory_demand import read_adapters
    from learning.models.adapters import attach_adapters
    from schemas.stages.sft import Sft

    config = config_of("qwen3")
    config.tie_word_embeddings = tied
    stage = Sft.model_validate({"kind": "sft", "model": "m", "data": "d", "use_peft": True, "lora_r": 3, **more})
    adapted = attach_adapters(AutoModelForCausalLM.from_config(config), stage)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert read_shape(config.to_dict()).adapter_parameters(read_adapters(stage.model_dump())) == trained


@pytest.mark.parametrize(("kind", "nested"), [("qwen3", False), ("qwen3", True), ("mixtral", False)])
def test_weights_in_4_bits_are_counted(kind, nested):
    pytest.importorskip("bitsandbytes")
    from learning.models.quantised import quantise
    from schemas.training import LoRA

    config = config_of(kind, hidden_size=128)
    model = AutoModelForCausalLM.from_config(config)
    shape, total = read_shape(config.to_dict()), model.num_parameters()
    matrices = tuple(shape.quantised_matrices(("o_proj",)))
    assert read_shape(config_of("gpt2").to_dict()).quantised_matrices(()) == []
    chosen = LoRA(use_peft=True, load_in_4bit=True, use_bnb_nested_quant=nested, modules_to_save=["o_proj"])
    layers = [m for m in quantise(model, chosen, "cpu").modules() if hasattr(m, "quant_storage")]
    assert sorted(matrices) == sorted(m.in_features * m.out_features for m in layers)
    scales = [m.weight.quant_state for m in layers]
    held = sum(p.nbytes for p in model.parameters())
    held += sum(s.absmax.nbytes + (s.state2.absmax.nbytes if nested else 0) for s in scales)
    counted = Trained(shape, total, 0, quantised=matrices, nested=nested)
    assert counted.weights - max(matrices) * 4 == pytest.approx(held, rel=1e-3)
    assert replace(counted, loads_here=True).loading == total * 4


def test_constants_are_those_of_the_code():
    assert adapter_targets.BLOCK == memory_shape.BLOCK
    assert packed.LOGITS_PER_CHUNK == memory_estimate_forward.LOGITS_PER_CHUNK
    assert packed.FEWEST_ROWS == memory_estimate_forward.FEWEST_ROWS
    assert (cpu_attention.SHORTEST, cpu_attention.LONGEST) == memory_estimate_forward.ROW
    assert cpu_attention.SPAN == memory_estimate_forward.SPAN
    assert segments.LONG_SCORES == memory_estimate_forward.LONG_SCORES
    assert running.PREFILL_TOKENS == memory_estimate.PREFILL_TOKENS
    assert slots.STEP == memory_estimate.COLUMNS
    assert reward_model.TOKENS == FORWARD_TOKENS
    assert streams.UNDER_WAY == MAX_OPEN


def test_estimates_are_those_of_kinds():
    modules = {file.stem for file in (REPOSITORY / "flows/planning/memory_kinds").glob("*.py")} - {"__init__"}
    assert modules <= set(KINDS)
    assert all(find_estimate(kind) for kind in modules)
    assert find_estimate("no_such_kind") is None


def test_the_arithmetic_needs_no_torch():
    code = (
        "import sys, learning.memory_model.estimate; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SMALL = Shape(layers=2, width=8, inner=16, heads=2, kv_heads=1, head=4, vocabulary=100, tied=False)


def test_sixteen_bytes_a_parameter_in_float32_and_eight_in_bfloat16():
    for size, total in ((4, 16), (2, 8)):
        model = Trained(SMALL, 1000, 1000, size)
        assert model.weights + model.gradients + model.optimizer == total * 1000
    adapters = Trained(SMALL, 1000, 10, 2)
    assert adapters.weights == 1000 * 2 + 10 * 4
    assert (adapters.gradients, adapters.optimizer) == (40, 80)


def test_shards_divide_what_stays_and_not_what_is_gathered():
    whole, shards = Trained(SMALL, 1000, 1000), Trained(SMALL, 1000, 1000, shards=4)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(shards, part) * 4 == getattr(whole, part)
    assert whole.gathered == 0
    assert shards.gathered > 0
    assert Trained(SMALL, 1000, 1000, copies=True).gathered == 4000


def test_checkpointing_keeps_the_inputs_of_layers():
    tokens = Pass(((4, 32),), needed=128)
    plain, less = Forward(SMALL, tokens), Forward(SMALL, tokens, checkpointing=True)
    ends = SMALL.width * (128 * 12 + 128 * 4)
    # The last layer's backward pass comes first: it is kept.
    assert less.saved == ends + 128 * 8 * 4 + plain.layer()
    assert plain.saved == ends + 2 * plain.layer()


def test_feed_forward_blocks_keep_nothing_where_attention_costs_far_more():
    for inner, enough in ((16, 239), (64, 959)):  # tokens of a row with 2·8·(L + 1)/2 ≥ 5·3·8·inner
        shape = replace(SMALL, inner=inner)
        short, long = (
            (forward.layer() - forward.attention) / length
            for length in (enough - 1, enough)
            for forward in [Forward(shape, Pass(((1, length),)), Precision(on_cpu=True))]
        )
        assert short - long == 4 * 4 * inner  # gate, its activation, up, and their product
    experts = replace(SMALL, experts=4, active=2)
    assert Forward(experts, Pass(((1, 4000),))).layer() > Forward(SMALL, Pass(((1, 4000),))).layer()


def test_attention_on_gpus_keeps_no_scores_of_many_long_completions():
    def kept(length):
        return Forward(SMALL, Pass(((1, 4096),), ((1, 8, length, 4096),))).attention / (4096 + 8 * length)

    assert kept(2048) < kept(16)  # 8·2,048·6,144·2 scores are more than 2²⁶
    q, k = SMALL.queries, SMALL.keys
    assert kept(2048) == 4 * (2 * q + 2 * k + SMALL.heads) + 4 * q


def test_a_cache_is_two_numbers_a_layer_head_and_token():
    call = Slots(slots=6, columns=50, completion=20, samples=6, prompts=3)
    held = memory_estimate.estimate_sampling(SMALL, 2, call)
    cache = 6 * 64 * (2 * 2 * 4 * 2 + 4)  # the next multiple of 64 columns
    tables = 6 * 20 * (8 + 4) + 6 * 20 * 8
    assert held["cache"] in (cache + tables, cache + tables + 3 * 30 * 2 * 2 * 4 * 2)
    assert memory_estimate.estimate_paged(SMALL, 2, 17) == 32 * 2 * 2 * 4 * 2


def test_turns_of_episodes_keep_as_many_keys_and_values_again():
    call = Slots(slots=6, columns=500, completion=400, samples=6, prompts=3)
    cache, kept = (
        memory_estimate.estimate_sampling(SMALL, 2, replace(call, keeps_turns=keeps))["cache"]
        for keeps in (False, True)
    )
    in_slots = 6 * 500 * 2 * 2 * 4 * 2  # slots, columns, layers, keys and values, width of a head, bytes
    prompts = 3 * 100 * 2 * 2 * 4 * 2
    assert kept - cache in (in_slots, in_slots - prompts)


def test_attention_of_rows_grows_with_the_square_of_their_length():
    def kept(length, number):
        shape = replace(SMALL, inner=64)  # so wide that feed-forward blocks are kept
        return Forward(shape, Pass(((number, length),)), Precision(on_cpu=True)).layer()

    # The same tokens: what differs is heads · 4 bytes · spans of the lower triangle.
    assert kept(512, 1) - kept(64, 8) == 2 * 4 * (512 * 512 * 9 // 16 - 8 * 64 * 64)


def test_windows_shorter_than_a_path_keep_no_scores():
    def kept(window, windowed, **how):
        shape = replace(SMALL, inner=64, window=window, windowed=windowed)
        return Forward(shape, Pass(((2, 256),)), Precision(on_cpu=True), **how).saved

    scores = 2 * 2 * 4 * 256 * 256 * 5 // 8  # rows, heads, bytes, and the lower triangle in 4 spans
    repeated = 2 * 256 * 4 * 2 * (8 - 4)  # one key-value head becomes two
    fewer = scores + repeated - 2 * 256 * 2 * 4  # log-sum-exps
    assert kept(0, 0) == kept(256, 2)
    assert [kept(0, 0) - kept(64, n) for n in (1, 2)] == [fewer, 2 * fewer]
    assert kept(0, 0, checkpointing=True) - kept(64, 1, checkpointing=True) == 0


def test_windows_are_read_from_complete_configurations():
    sizes = {"num_hidden_layers": 6, "sliding_window": 32}
    kinds = ["sliding_attention"] * 4 + ["full_attention"] * 2
    given = {"mistral": {}, "qwen3": {"use_sliding_window": True, "layer_types": kinds}, "qwen2": {}}
    configs = {kind: CONFIG_MAPPING[kind](**sizes, **own).to_dict() for kind, own in given.items()}
    shapes = {kind: read_shape(config) for kind, config in configs.items()}
    assert {kind: (shape.window, shape.windowed) for kind, shape in shapes.items()} == {
        "mistral": (32, 6),
        "qwen3": (32, 4),
        "qwen2": (0, 0),
    }


def test_one_pass_has_no_gradient_yet_when_its_backward_begins():
    forward = Forward(SMALL, Pass(((2, 16),), needed=10))
    once, often = (estimate_training(Trained(SMALL, 1000, 1000), forward, passes)[0] for passes in (1, 2))
    assert often.total - once.total == 4000


def test_an_unknown_architecture_is_reported():
    with pytest.raises(StepError, match="memory of a mamba model is not known; known are gemma, gpt2"):
        read_shape({"model_type": "mamba"})


def run_case(name):
    path = os.pathsep.join((str(REPOSITORY), str(SCRIPT.parent)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, SCRIPT, "--case", name], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["sft_accumulated", "rl_paths"])
def test_predictions_hold_in_a_process_of_their_own(name):
    case = run_case(name)
    assert LOWEST < case["ratio"] < HIGHEST, case


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "sft_rows",
        "sft_long",
        "sft_logits",
        "sft_lora",
        "sft_bfloat16",
        "sft_mixed",
        "sft_checkpointing",
        "sft_windows",
        "sft_vocabulary",
        "rl_vocabulary",
        "rl_groups",
        "rl_sampling",
        "reward_model",
        "reward_model_long",
        "evaluate",
        "evaluate_prompts",
    ],
)
def test_predictions_hold_at_other_shapes(name):
    case = run_case(name)
    assert LOWEST < case["ratio"] < HIGHEST, case


RECIPE = """
name: sizes
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
         num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}, max_length: 96}
  lessons:
    {kind: synthesize, problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8}], teacher: answer}
  asked:
    {kind: synthesize, problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8}], emit: prompts}
  first: {kind: sft, model: base, data: lessons, max_steps: 1, resources: {memory: 16MiB}}
  better:
    kind: rl
    model: first
    prompts: asked
    rewards: [answers.exact]
    algorithm: grpo
    loss_terms: [{use: kl, coef: 0.1}]
    max_steps: 1
    max_completion_length: 32
    RESOURCES
  theirs: {kind: sft, model: "path:elsewhere", data: lessons, max_steps: 1}
"""


SMALL_MAMBA = {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 100}


@pytest.fixture
def planned(tmp_path):
    def plan(resources=""):
        write_checkpoint_files(tmp_path / "elsewhere", "mamba")
        config = {"model_type": "mamba", **SMALL_MAMBA}
        (tmp_path / "elsewhere" / "config.json").write_text(json.dumps(config))
        file = tmp_path / "recipe.yaml"
        file.write_text(RECIPE.replace("RESOURCES", resources))
        layout = Layout(tmp_path)
        return plan_recipe(file, layout), layout

    return plan


def test_a_plan_knows_models_that_are_still_to_be_made(planned):
    plan, layout = planned()
    needs = {need.step: need for need in estimate_memory(plan, layout)}
    (place,) = needs["first"].places
    parameters = needs["base"].places[0].peak.parts["weights"]
    assert place.peak.parts["weights"] == parameters
    assert place.peak.parts["optimizer"] == 2 * parameters
    assert needs["lessons"].places == ()
    assert needs["theirs"].forward == "padded (layers of state spaces)"
    assert [needs[name].forward for name in ("base", "first", "better")] == ["", "forest", "forest"]
    assert [needs[name].traced for name in ("base", "first", "better", "theirs")] == [False, False, False, True]
    (line,) = describe_traced(list(needs.values()))
    assert line.startswith("theirs: architectures without a formula")
    parts = needs["theirs"].places[0].peak.parts
    config = CONFIG_MAPPING["mamba"](**SMALL_MAMBA)
    assert parts["weights"] == 4 * AutoModelForCausalLM.from_config(config).num_parameters()
    assert list(describe_forwards(list(needs.values()))) == [
        "Expected forward of first, better: forest; a check on the weights decides.",
        "Expected forward of theirs: padded (layers of state spaces); a check on the weights decides.",
    ]
    assert [step.get("forward") for step in memory_as_json(plan, [needs["first"]])["steps"]] == ["forest"]
    # The reference of the KL term is a model of its own.
    assert needs["better"].places[0].peak.parts["other models"] == parameters
    (warning,) = [w for w in list_warnings(plan, list(needs.values())) if w.startswith("first")]
    assert "its `memory` has 16.0 MiB" in warning
    assert "per_device_train_batch_size" in warning


def test_roles_have_places_of_their_own(planned):
    roles = "{train: {workers: 2, strategy: fsdp2}, rollout: {workers: 3, num_gpus: 1}, reference: {workers: 1}}"
    plan, layout = planned(f"resources: {roles}")
    need = next(n for n in estimate_memory(plan, layout) if n.step == "better")
    places = {place.role: place for place in need.places}
    assert {name: place.workers for name, place in places.items()} == {"train": 2, "rollout": 3, "reference": 1}
    weights = places["reference"].peak.parts["weights"]
    assert places["train"].peak.parts["weights"] == weights / 2
    assert "cache" in places["rollout"].peak.parts
    assert "cache" not in {part for phase in places["train"].phases for part in phase.parts}
    assert [w for w in list_warnings(plan, [need], gpu=10**6) if "better: rollout needs" in w]
    assert memory_as_json(plan, [need])["steps"][0]["places"][1]["role"] == "rollout"


SHARDED = "{train: {workers: 2, strategy: fsdp2}, rollout: {workers: 1}}"


def find_trainer(planned, more):
    plan, layout = planned(more)
    need = next(n for n in estimate_memory(plan, layout) if n.step == "better")
    return {phase.name: phase.parts for phase in need.places[0].phases}


def test_shards_of_a_fixed_reference_are_counted_and_a_moving_one_is_whole(planned):
    """Besides the policy's shards: shards of the reference, and the whole copy whose weights are sent to `rollout`."""
    whole = find_trainer(planned, "")["log-probabilities"]["weights"]
    parts = find_trainer(planned, f"resources: {SHARDED}")
    assert {phase["other models"] for phase in parts.values()} == {whole // 2 + whole}
    assert parts["log-probabilities"]["weights"] == whole // 2
    assert "loading" not in parts
    moving = "references: {ref: {sync_steps: 2}}"
    for roles in (SHARDED, SHARDED.replace("rollout", "reference: {workers: 1}, rollout")):
        parts = find_trainer(planned, f"{moving}\n    resources: {roles}")
        assert {phase["other models"] for phase in parts.values()} == {2 * whole}
        assert parts["loading"]["weights"] == whole


def test_a_preference_step_counts_the_shards_of_its_reference():
    model = KnownModel(read_shape(config_of("llama").to_dict()), 64)
    settings = KINDS["preference"].model_validate(
        {"kind": "preference", "model": "a", "reference": "b", "data": "c", "max_steps": 1, "loss": ["dpo"]}
    )
    both = {"model": model, "reference": model}
    for workers in (1, 4):
        group = {"train": {"workers": workers, "strategy": "fsdp2"}} if workers > 1 else {}
        demand = StepDemand(settings.model_dump(), Resources.model_validate(group), both)
        parts = {phase.name: phase.parts for phase in find_estimate("preference")(demand)[0].phases}["references"]
        assert parts["other models"] == parts["weights"] == -(-4 * model.parameters // workers)


def test_shorter_prompts_need_less(planned):
    plan, layout = planned()
    long, short = (
        next(n for n in estimate_memory(plan, layout, prompt=prompt) if n.step == "better").places[0]
        for prompt in (None, 8)
    )
    assert short.peak.total < long.peak.total


def test_the_assumed_prompt_length_of_the_cache_is_reported(planned, monkeypatch):
    plan, layout = planned()
    assert list(describe_prompts(estimate_memory(plan, layout))) == []  # the prompts are known: a generator makes them
    monkeypatch.setattr(PlanRows, "measure", lambda *_: None)
    (line,) = describe_prompts(estimate_memory(plan, layout))
    assert line.startswith("Prompts of better are assumed to have 64 tokens")
    assert list(describe_prompts(estimate_memory(plan, layout, prompt=8))) == []


def test_a_size_that_is_none_is_refused(planned):
    from flows.planning.memory import show_memory

    plan, layout = planned()
    with pytest.raises(PlanError, match="--gpu-memory: '80' is not a size"):
        show_memory(plan, layout, SimpleNamespace(), gpu="80", prompt=None, as_json=False)


def test_the_worst_moment_counts():
    place = Place("step", (Phase("one", {"a": 1, "b": 2}), Phase("two", {"a": 4})))
    assert (place.peak.name, place.peak.total) == ("two", 4)
