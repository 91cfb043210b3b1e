"""RL watermark: lists of a designer, terms that are held against an anchor, and a model that does not change.

The world, its weights and what words mean are those of the recipe; the backbone is a small random model. Not shown:
real paraphrases and spoofing attacks.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from learning.control.policies.policy import load_control_policy
from learning.control.reports.watermark_report import compute_auc
from learning.control.worlds.text_attacks import remove_words, swap_words, turn_round
from learning.control.worlds.watermarks import compute_z, favour_green, hashed_lists
from learning.data.rows import write_rows
from learning.data.trained_tokenizers import words
from learning.lookup import bind
from learning.models.policy import Policy, save_policy, set_determinism
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "rl-watermark.yaml")
STAGES = RECIPE.stages
TRAINED, MAXIMISED, UNREGULARISED = (STAGES[name] for name in ("trained", "maximised", "unregularised"))
MEANINGS = TRAINED.env.options["meanings"]
GAMMA, LENGTH = 0.5, 24


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """A folder with a small random backbone over the words of the recipe, and prompts."""
    set_determinism(0, 1)
    folder = tmp_path_factory.mktemp("watermark")
    rows = bind(STAGES["texts"].problems[0].model_copy(update={"size": 60}))()
    for name, chosen in (("texts", rows), ("prompts", rows[:6])):
        (folder / name).mkdir()
        write_rows(folder / name, "prompts", chosen)
    shown = [row | {"prompt": [*row["prompt"], {"role": "assistant", "content": row["answer"]}]} for row in rows]
    (folder / "shown").mkdir()
    write_rows(folder / "shown", "prompts", shown)
    tokenizer = words(data=folder / "shown")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_policy(Policy(Qwen3ForCausalLM(config).eval(), tokenizer, 64), folder / "backbone")
    return {"env.backbone": folder / "backbone", "env.prompts": folder / "prompts"}


def make_world(stage, ports):
    return bind(stage.env, "env", ports)()


def play(world, design, place=0):
    """Rewards and terms of an episode on a prompt, with the lists that a function makes of what is shown."""
    world.begin(place)
    earned, terms = [], {}
    for _ in range(4):
        _, reward, done, cut, info = world.step(design(world.count(world.shown)))
        earned.append(reward)
        terms |= {name: value for name, value in info["terms"].items() if name != "balance"}
        terms.setdefault("balance", []).append(info["terms"]["balance"])
    assert (done, cut) == (True, False)
    return earned, terms


def by_key(key):
    return lambda shown: hashed_lists(shown[None], key=key)[0]


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.mark.parametrize(
    ("green", "tokens", "gamma", "z"), [(40, 50, 0.5, 4.243), (25, 50, 0.5, 0.0), (5, 20, 0.25, 0.0)]
)
def test_z_is_the_number_of_deviations(green, tokens, gamma, z):
    assert compute_z(green, tokens, gamma) == pytest.approx(z, abs=5e-4)
    assert compute_z(green, tokens, gamma) == pytest.approx(
        (green - gamma * tokens) / math.sqrt(tokens * gamma * (1 - gamma))
    )
    assert compute_z(0, 0, gamma) == 0.0


def test_green_tokens_get_delta():
    logits_V, green_V = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
    assert favour_green(logits_V, green_V, 2.0).tolist() == [2.5, -1.0, 4.0]


def test_a_list_that_is_favoured_is_found_in_the_text(ports):
    """With a large delta all tokens are green; without one about half of them are."""
    world = make_world(TRAINED, ports)
    green_V = by_key(5)(np.zeros(world.size)) > 0
    assert green_V.sum() == round(GAMMA * world.size)
    text, quality = world.write(0, green_V, 50.0)
    ids = world.encode(text)
    assert len(ids) == LENGTH
    assert world.detect(ids, green_V) == pytest.approx(math.sqrt(LENGTH))
    plain, better = world.write(0, green_V, 0.0)
    assert abs(world.detect(world.encode(plain), green_V)) < 3
    assert math.isfinite(quality)
    assert math.isfinite(better)
    assert not set(ids) & set(world.backbone.tokenizer.all_special_ids)


def test_quality_is_the_log_probability_of_the_unchanged_model(ports):
    world = make_world(TRAINED, ports)
    green_V = by_key(5)(np.zeros(world.size)) > 0
    text, quality = world.write(1, green_V, 2.0)
    asked = world.backbone.tokenizer(f"<user>{world.rows[1]['prompt'][0]['content']}<eos><assistant>")["input_ids"]
    ids = [*asked, *world.encode(text)]
    with torch.no_grad():
        logits = world.backbone.model(torch.tensor([ids])).logits[0] + world.barred_V
    lp = logits.log_softmax(-1)[range(len(asked) - 1, len(ids) - 1), ids[len(asked) :]]
    assert quality == pytest.approx(float(lp.mean()), abs=1e-5)


def test_with_the_lists_of_the_anchor_every_anchored_term_is_0(ports):
    world = make_world(TRAINED, ports)
    for place in range(3):
        earned, terms = play(world, by_key(TRAINED.env.options["anchor"]["key"]), place)
        assert {terms[name] for name in ("detection", "quality", "removal", "spoofing")} == {0.0}
        assert np.allclose(earned, terms["balance"])
    raw, values = play(make_world(MAXIMISED, ports), by_key(1))
    assert all(values[name] != 0 for name in ("detection", "quality", "removal", "spoofing"))
    assert sum(raw) == pytest.approx(
        sum(values[name] for name in ("detection", "quality", "removal", "spoofing")) + sum(values["balance"])
    )


def test_terms_are_held_within_the_cap_of_the_anchor(ports):
    world, free = make_world(TRAINED, ports), make_world(MAXIMISED, ports)
    all_green = lambda shown: np.ones(len(shown))  # noqa: E731
    _, terms = play(world, all_green)
    _, values = play(free, all_green)
    cap = world.scheme.cap
    anchor = world.measure_anchor(0)
    for name in ("detection", "quality", "removal", "spoofing"):
        assert terms[name] == pytest.approx(np.clip(values[name] - anchor[name], -cap, cap))
    # Everything is green: z is as large as it can be, on spoofed texts too, which costs.
    assert values["detection"] == pytest.approx(math.sqrt(LENGTH))
    assert values["spoofing"] == pytest.approx(-math.sqrt(LENGTH))
    assert terms["detection"] == cap or values["detection"] - anchor["detection"] < cap
    assert terms["spoofing"] < 0


def test_a_degenerate_list_raises_the_regulariser(ports):
    world, free = make_world(TRAINED, ports), make_world(UNREGULARISED, ports)
    weight = world.scheme.balance
    assert weight > 0
    for level, share in ((1.0, 1.0), (-1.0, 0.0)):
        _, terms = play(world, lambda shown, level=level: np.full(len(shown), level))
        assert terms["balance"] == pytest.approx([-weight * (share - GAMMA) ** 2] * 4)
    _, held = play(world, by_key(3))
    assert max(map(abs, held["balance"])) <= weight * (0.5 / world.size) ** 2 + 1e-12
    _, none = play(free, lambda shown: np.ones(len(shown)))
    assert none["balance"] == [0.0] * 4


def test_removal_needs_a_high_z_and_spoofing_a_low_one(ports):
    """One list for all texts keeps z on both; one that turns with the meaning loses it on the texts turned round."""
    world = make_world(MAXIMISED, ports)
    green_V = np.where(by_key(5)(np.zeros(world.size)) > 0, 1.0, -1.0)
    _, same = play(world, lambda shown: green_V)
    lists = iter([green_V, green_V, green_V, -green_V])
    _, turned = play(world, lambda shown: next(lists))
    assert turned["removal"] == same["removal"]
    assert turned["spoofing"] == pytest.approx(-same["spoofing"])
    lists = iter([green_V, green_V, -green_V, green_V])
    _, lost = play(world, lambda shown: next(lists))
    assert lost["removal"] == pytest.approx(-same["removal"])
    assert same["removal"] > 0 > lost["removal"]
    assert turned["spoofing"] > 0 > same["spoofing"]


def test_what_the_designer_is_shown(ports):
    """The prompt, the text, the text in other words, the text turned round: shares of their tokens."""
    world = make_world(TRAINED, ports)
    texts = [world.rows[2]["prompt"][0]["content"]]
    world.begin(2)
    assert world.backbone.tokenizer.decode(world.shown, skip_special_tokens=True).strip() == texts[0]
    for phase in range(3):
        shown, *_ = world.step(by_key(5)(np.zeros(world.size)))
        assert shown.sum() == pytest.approx(1.0)
        expected = (
            world.text,
            world.attacks.remove(world.text, np.random.default_rng([0, 2, 1])),
            turn_round(world.text, MEANINGS),
        )
        assert world.shown == world.encode(expected[phase])
    assert len(set(expected)) == 3


def test_attacks_keep_or_turn_the_meaning():
    groups = [group for pair in MEANINGS for group in pair]
    text = " ".join(["the room was clean and the food was bad"] * 20)
    swapped = swap_words(text, MEANINGS, 1.0, np.random.default_rng(0)).split()
    for before, after in zip(text.split(), swapped, strict=True):
        same = [group for group in groups if before in group]
        assert (after in same[0] and after != before) if same else after == before
    assert turn_round("the room was clean and bad", MEANINGS) == "the room was dirty and good"
    assert turn_round(turn_round(text, MEANINGS), MEANINGS) == text
    kept = remove_words(text, 0.1, np.random.default_rng(0)).split()
    assert 0.8 < len(kept) / len(text.split()) < 0.98
    assert remove_words(text, 0.0, np.random.default_rng(0)) == text


def test_training_changes_the_designer_and_not_the_backbone(ports, tmp_path):
    before = digest(ports["env.backbone"])
    context = Context(dict(ports), tmp_path / "run", tmp_path / "run/checkpoints", seed=1)
    context.folder.mkdir()
    stage = TRAINED.model_copy(
        update={"environment_steps": 8, "rollout_steps": 8, "num_iterations": 1, "batch_size": 8}
    )
    control.run(stage, context)
    assert digest(ports["env.backbone"]) == before
    first = tmp_path / "first"
    designer = load_control_policy(context.output("model"))
    context = Context(dict(ports), first, first / "checkpoints", seed=1)
    context.folder.mkdir()
    control.run(stage.model_copy(update={"learning_rate": 1e-12}), context)
    untrained = load_control_policy(context.output("model"))
    pairs = zip(designer.actor.parameters(), untrained.actor.parameters(), strict=True)
    assert any(not torch.allclose(a, b, atol=1e-7) for a, b in pairs)


def test_areas_under_the_curve_of_the_report(ports, tmp_path):
    assert compute_auc([2.0, 3.0], [1.0, 2.0]) == pytest.approx(3.5 / 4)
    (tmp_path / "out").mkdir()
    given = {port.replace("env", "inputs"): path for port, path in ports.items()}
    context = Context(given, tmp_path / "out", tmp_path / "out/checkpoints", seed=1)
    metrics = bind(STAGES["measured_anchor"].function, "function")(context)
    assert set(metrics) == {
        *(f"z.{kind}" for kind in ("marked", "removed", "spoofed", "plain")),
        *(f"auc.{kind}" for kind in ("marked", "removed", "spoofed")),
        "quality",
    }
    assert metrics["auc.marked"] > 0.8
    world = make_world(TRAINED, ports)
    none_V, key_V = np.zeros(world.size, bool), by_key(1)(np.zeros(world.size))
    marked = [world.measure_anchor(place)["detection"] for place in range(len(world.rows))]
    assert metrics["z.marked"] == pytest.approx(np.mean(marked))
    plain = [world.detect(world.encode(world.write(n, none_V, 0.0)[0]), key_V > 0) for n in range(len(world.rows))]
    assert metrics["z.plain"] == pytest.approx(np.mean(plain))
    assert STAGES["measured_anchor"].function.options["by"] == TRAINED.env.options["anchor"]


def test_what_is_compared():
    trained = TRAINED.model_dump()
    for other, option in ((MAXIMISED, "anchor"), (UNREGULARISED, "balance")):
        dumped = other.model_dump()
        assert {key for key in dumped if dumped[key] != trained[key]} == {"env"}
        differing = {
            key for key in {*trained["env"], *dumped["env"]} if trained["env"].get(key) != dumped["env"].get(key)
        }
        assert differing == {option}
    report = STAGES["report"]
    assert {key for key in report.env.options if report.env.options[key] != TRAINED.env.options.get(key)} == {"prompts"}
    assert [use.use for use in report.policies.values()] == ["hashed_lists"]
    rows = [{row["id"] for row in bind(STAGES[name].problems[0])()} for name in ("prompts", "held_out")]
    assert not rows[0] & rows[1]


def test_the_worlds_of_a_process_share_one_backbone(ports):
    assert make_world(TRAINED, ports).backbone is make_world(TRAINED, ports).backbone
