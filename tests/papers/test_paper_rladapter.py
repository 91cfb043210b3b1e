"""RLAdapter: an adapter asks a frozen model, whose guidance conditions a policy, and learns from what is followed.

Not shown: Crafter, large models, embeddings of sentences.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.policies.policy import load_control_policy
from learning.control.rounds.guidance_rounds import list_changes, make_prompt, measure_following
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.transitions import Transitions, write_transitions
from learning.control.worlds.guidance import embed_texts, guided, read_guidance, tell_numbers
from learning.curation.row_scores import noted_score
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.toy_tasks.craft_grid import HOW, THINGS, CraftGrid, craft_grid, tell_things
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect, control, curate, sft, synthesize
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/rladapter.yaml")
STAGES = RECIPE.stages
SIZE = 32


@pytest.fixture
def step(tmp_path):
    def step(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir(exist_ok=True)
        return made

    return step


def call(name, context):
    """Run the function of a stage of the recipe."""
    return bind(STAGES[name].function, "function", context.inputs)(context)


TABLE = {
    "nothing": [
        {"guidance": HOW[thing], "advice": f"need {thing}", "asked": "has nothing. followed 0.0"}
        for thing in ("wood", "stone")
    ],
    "wood": [{"guidance": HOW["table"], "advice": "need table", "asked": "has wood. followed 0.0"}],
}


@pytest.fixture
def guidance(tmp_path):
    """Guidance that some round wrote."""
    folder = tmp_path / "written"
    folder.mkdir()
    (folder / "guidance.json").write_text(json.dumps(TABLE))
    return folder


def make_world(name, folder=None):
    """The world of a stage of the recipe, with guidance in a folder."""
    return bind(STAGES[name].env, "env", {} if folder is None else {"env.guidance": folder})()


def see(has, embedded=None):
    """An observation of a player with some things, with guidance."""
    flags = [0.1] * 6 + [float(name in has) for name in THINGS]
    return np.array([*flags, *(np.zeros(SIZE) if embedded is None else embedded)], np.float32)


def record(folder, episodes):
    """Write transitions: episodes of what the player has one step after the other, with the text that guides each."""
    rows = []
    for number, steps in enumerate(episodes):
        for at in range(len(steps) - 1):
            (has, text), (after, _) = steps[at], steps[at + 1]
            rows.append((number, at, see(has, embed_texts([text], SIZE)[0]), see(after), at == len(steps) - 2))
    numbers, ats, before, after, ended = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows))
    spaces = read_spaces(guided_world())
    made = Transitions(spaces, numbers, ats, before, zeros.astype(int), zeros, after, ended, zeros.astype(bool))
    folder.mkdir()
    write_transitions(folder, made)
    return folder


def guided_world():
    return make_world("novice")


@pytest.fixture
def played(tmp_path):
    """Twice wood from nothing, once guided to it and once to stone; then a table as guided; the last one stays idle."""
    wood, stone, table = HOW["wood"], HOW["stone"], HOW["table"]
    return record(
        tmp_path / "played",
        [
            [([], wood), (["wood"], table), (["table"], ""), (["table"], "")],
            [([], stone), (["wood"], table), (["table"], "")],
            [([], stone), ([], stone)],
        ],
    )


def test_each_situation_is_asked_for_with_how_it_was_followed(step, played):
    made = step("none")
    call("unscored", made)
    nothing = made.output("lessons")
    first = step("first", played=played, followed=nothing)
    assert call("rounds-1-situations", first) == {"situations": 3}
    rows = read_rows(first.output("prompts"), "prompts")
    asked = {json.loads(row["metadata"])["situation"]: row["prompt"][0]["content"] for row in rows}
    assert asked == {name: f"has {name}. followed 0.0" for name in ("nothing", "wood", "table")}
    scores = step("scores")
    lessons = [make_prompt("x", situation="wood", score=score) for score in (0.5, 0.9)]
    answer = {"completion": [{"role": "assistant", "content": "y"}]}
    write_rows(scores.output("lessons"), "chat", [row | answer for row in lessons])
    second = step("second", played=played, followed=scores.output("lessons"))
    call("rounds-2-situations", second)
    asked = [row["prompt"][0]["content"] for row in read_rows(second.output("prompts"), "prompts")]
    assert "has wood. followed 0.7" in asked
    assert RECIPE.ports("rounds-2-situations")[1].steps == ("rounds-1-followed",)


def test_the_frozen_model_is_asked_with_the_adapters_words_and_its_answers_are_the_guidance(step):
    made = step("advice")
    said = [
        ("need wood\nnow", "nothing"),
        ("need wood now", "nothing"),
        ("need stone", "nothing"),
        ("need table", "wood"),
    ]
    rows = [
        make_prompt(f"has {words}. followed 0.{n}", situation=words)
        | {"completion": [{"role": "assistant", "content": text}]}
        for n, (text, words) in enumerate(said)
    ]
    write_rows(made.output("chat"), "chat", rows)
    asked = step("asked", advice=made.output("chat"))
    call("rounds-1-questions", asked)
    prompts = read_rows(asked.output("prompts"), "prompts")
    assert [row["prompt"][0]["content"] for row in prompts] == [
        *(
            "has nothing. need wood now",
            "has nothing. need wood now",
            "has nothing. need stone",
            "has wood. need table",
        ),
    ]
    answered = step("answered")
    texts = ("collect wood", "collect wood", "collect stone", "place a table")
    rows = [
        row | {"completion": [{"role": "assistant", "content": text}]} for row, text in zip(prompts, texts, strict=True)
    ]
    write_rows(answered.output("chat"), "chat", rows)
    kept = step("kept", answers=answered.output("chat"))
    call("rounds-1-guidance", kept)
    table = read_guidance(kept.output("result"))
    assert [one["guidance"] for one in table["nothing"]] == ["collect wood", "collect wood", "collect stone"]
    assert table["wood"] == [
        {"guidance": "place a table", "advice": "need table", "asked": "has wood. followed 0.3"},
    ]


def test_what_follows_its_guidance_scores_above_the_same_under_swapped_guidance():
    """Words of the guidance: collect wood from a tree (5); what happened: wood. The cosine is 1 / √5."""
    happened = list_changes("nothing", ["nothing", "wood", "wood"])
    assert happened == "wood"
    own, swapped = measure_following([HOW["wood"], HOW["stone"]], [happened] * 2, 512)
    assert own == pytest.approx(5**-0.5)
    assert swapped == pytest.approx(0.0)
    assert list_changes("wood", ["wood", "table", "table wood pickaxe"]) == "table pickaxe"
    assert measure_following(["collect wood"], [""], 512).tolist() == [0.0]
    assert measure_following([], [], 512).tolist() == []


def test_rows_of_the_adapter_carry_the_mean_score_of_their_own_guidance(step, played, guidance):
    made = step("followed", played=played, guidance=guidance)
    metrics = call("rounds-1-followed", made)
    rows = {row["completion"][0]["content"]: row for row in read_rows(made.output("lessons"), "chat")}
    score = {advice: json.loads(row["metadata"])["score"] for advice, row in rows.items()}
    both = measure_following([HOW["wood"], HOW["stone"]], ["wood table"] * 2, SIZE)
    assert list(rows) == ["need wood", "need stone", "need table"]
    assert score["need wood"] == pytest.approx(both[0], abs=1e-6)
    # Of two steps under this guidance the second one led to nothing.
    assert score["need stone"] == pytest.approx(both[1] / 2, abs=1e-6)
    assert score["need table"] == pytest.approx(measure_following([HOW["table"]], ["table"], SIZE)[0], abs=1e-6)
    assert score["need wood"] > score["need stone"]
    assert rows["need wood"]["prompt"][0]["content"] == "has nothing. followed 0.0"
    values = [both[0], both[1], 0.0, *[score["need table"]] * 2]
    assert metrics == {"lessons": 3, "followed": pytest.approx(np.mean(values), abs=1e-6)}
    stage = STAGES["rounds-1-followed"].function
    near = step("near", played=played, guidance=guidance)
    bind(stage.model_copy(update={"horizon": 1}), "function", near.inputs)(near)
    rows = {row["completion"][0]["content"]: row for row in read_rows(near.output("lessons"), "chat")}
    alone = measure_following([HOW["wood"]], ["wood"], SIZE)[0]
    assert json.loads(rows["need wood"]["metadata"])["score"] == pytest.approx(alone, abs=1e-6)


def test_curation_drops_the_half_that_was_followed_least(step):
    made = step("scored")
    rows = [
        make_prompt(f"p{n}", score=score) | {"completion": [{"role": "assistant", "content": f"c{n}"}]}
        for n, score in enumerate((0.1, 0.9, 0.3, 0.7))
    ]
    write_rows(made.output("lessons"), "chat", rows)
    kept = step("kept", data=made.output("lessons"))
    curate.run(STAGES["rounds-1-kept"], kept)
    left = read_rows(kept.output("data"), "chat")
    assert {row["completion"][0]["content"] for row in left} == {"c1", "c3"}
    bare = [{"metadata": "{}"}, {"metadata": '{"score": "high"}'}, {"metadata": '{"score": 2}'}]
    assert noted_score(bare) == [None, None, 2.0]


def test_the_embedding_stands_at_the_end_and_follows_the_situation(guidance):
    world = make_world("rounds-1-policy", guidance)
    shown = set()
    for seed in range(20):
        seen, _ = world.reset(seed=seed)
        assert (seen[:-SIZE] == world.world.observe()).all()
        shown.add(tuple(seen[-SIZE:].tolist()))
        world.world.wood = 1
        assert np.array_equal(world.show(world.world.observe())[-SIZE:], embed_texts([HOW["table"]], SIZE)[0])
        world.world.pickaxe = True  # a situation without guidance
        assert not world.show(world.world.observe())[-SIZE:].any()
    assert shown == {tuple(row.tolist()) for row in embed_texts([HOW["wood"], HOW["stone"]], SIZE)}
    unguided, _ = guided_world().reset(seed=0)
    assert not unguided[-SIZE:].any()
    assert len(unguided) == len(seen)


def test_zeroed_guidance_changes_the_logits_but_not_those_of_the_actor_that_is_alone(guidance):
    world = make_world("rounds-1-policy", guidance)
    seen = torch.from_numpy(world.reset(seed=0)[0])[None]
    blind = seen.clone()
    blind[:, -SIZE:] = 0
    torch.manual_seed(0)
    for name, changes in (("rounds-1-policy", True), ("alone", False)):
        actor = Networks(read_spaces(world), STAGES[name].networks).make_stochastic_actor()
        with torch.no_grad():
            logits = [actor.module[0].module(shown) for shown in (seen, blind)]
        assert torch.allclose(*logits) != changes


def digest(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.safetensors"))}


def test_each_training_changes_its_own_weights_alone(step, tiny_policy_folder, guidance):
    """Sampling leaves the frozen model as it is; PPO writes another policy; sft another adapter."""
    before = digest(tiny_policy_folder)
    prompts = step("prompts")
    write_rows(prompts.output("prompts"), "prompts", [make_prompt("ab", situation="a", advice="b", asked="c")])
    for name in ("rounds-1-advice", "rounds-1-answers"):
        sampled = step(name, prompts=prompts.output("prompts"), model=tiny_policy_folder)
        short = STAGES[name].model_copy(update={"max_completion_length": 16, "num_generations": 16})
        synthesize.run(short, sampled)
        rows = read_rows(sampled.output("chat"), "chat")
        assert json.loads(rows[0]["metadata"])["situation"] == "a"
        assert digest(tiny_policy_folder) == before
    novice = step("novice")
    small = {"environment_steps": 32, "rollout_steps": 4, "num_envs": 2, "batch_size": 8, "num_iterations": 1}
    control.run(STAGES["novice"].model_copy(update=small), novice)
    learned = step("learned", model=novice.output("model"), **{"env.guidance": guidance})
    first = digest(novice.output("model"))
    control.run(STAGES["rounds-1-policy"].model_copy(update=small), learned)
    second = digest(learned.output("model"))
    assert digest(novice.output("model")) == first
    assert all(first[name] != second[name] for name in first)
    assert digest(tiny_policy_folder) == before
    lessons = step("lessons")
    answer = {"completion": [{"role": "assistant", "content": "ab"}]}
    write_rows(lessons.output("data"), "chat", [make_prompt("ab") | answer])
    tuned = step("tuned", model=tiny_policy_folder, data=lessons.output("data"))
    few = {"max_steps": 2, "max_length": 64}
    sft.run(STAGES["rounds-1-tuned"].model_copy(update=few), tuned)
    after = digest(tuned.output("model"))
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)
    assert digest(tiny_policy_folder) == before
    assert digest(learned.output("model")) == second
    gathered = step("gathered", model=learned.output("model"), **{"env.guidance": guidance})
    collect.run(STAGES["rounds-1-played"].model_copy(update={"environment_steps": 16, "num_envs": 2}), gathered)
    assert load_control_policy(learned.output("model")).spaces.observations == 10 + SIZE


def find_steps(name):
    """The steps that each port of a step reads."""
    return {port.path: port.steps for port in RECIPE.ports(name)}


def test_models_go_round_as_the_paper_says():
    """The frozen model answers in every round; policy, adapter and scores are those of the round before."""
    assert find_steps("rounds-1-advice")["model"] == ("adapter",)
    assert find_steps("rounds-2-advice")["model"] == ("rounds-1-tuned",)
    assert {find_steps(f"rounds-{n}-answers")["model"] for n in (1, 2)} == {("frozen",)}
    assert find_steps("rounds-1-policy") == {"model": ("novice",), "env.guidance": ("rounds-1-guidance",)}
    assert find_steps("rounds-2-policy") == {"model": ("rounds-1-policy",), "env.guidance": ("rounds-2-guidance",)}
    assert find_steps("rounds-2-tuned") == {"model": ("rounds-1-tuned",), "data": ("rounds-2-kept",)}
    assert find_steps("rounds-2-played")["env.guidance"] == ("rounds-2-guidance",)
    assert find_steps("rounds-2-followed")["inputs.guidance"] == ("rounds-2-guidance",)
    assert find_steps("report")["models.guided"][0] == "rounds-2-policy"
    assert find_steps("report")["env.guidance"] == find_steps("alone")["env.guidance"]
    assert find_steps("alone")["env.guidance"][0] == "rounds-2-guidance"
    steps = sum(STAGES[name].environment_steps for name in ("novice", "rounds-1-policy", "rounds-2-policy"))
    assert STAGES["alone"].environment_steps == steps
    settings = [
        STAGES[n].model_dump(exclude={"environment_steps", "env", "model"}) for n in ("alone", "rounds-1-policy")
    ]
    assert settings[0].pop("networks")["privileged"] == SIZE
    assert settings[1].pop("networks")["privileged"] == 0
    assert settings[0] == settings[1]


def test_the_grid_pays_for_firsts_and_says_what_the_player_has():
    world = CraftGrid(6, 4, 3, 40)
    world.reset(seed=0)
    world.cells[:] = "."
    world.cells[2, 3], world.cells[2, 1], world.at = "T", "S", np.array([2, 2])
    right, left, table, pickaxe = 3, 2, 4, 5
    words, earned = [], []
    for action in (left, table, right, right, table, pickaxe, left, left):
        seen, reward, *_ = world.step(action)
        words.append(tell_things(seen[None])[0])
        earned.append(reward)
    assert earned == [0, 0, 1, 0, 1, 1, 1, 0]
    assert words[:7] == ["nothing", "nothing", "wood", "wood", "wood table", "table pickaxe", "table pickaxe stone"]
    assert world.observe()[:2].tolist() == pytest.approx([0, 2 / 6])
    world = craft_grid(limit=3)
    world.reset(seed=1)
    assert [world.step(table)[3] for _ in range(3)] == [False, False, True]


def test_lessons_of_the_adapter_are_wrong_half_of_the_time_and_those_of_the_model_right(step):
    made = step("guesses")
    call("guesses", made)
    rows = read_rows(made.output("lessons"), "chat")
    texts = [(row["prompt"][0]["content"], row["completion"][0]["content"]) for row in rows]
    right = [said == "need wood" for asked, said in texts if asked.startswith("has nothing.")]
    assert 0.4 < np.mean(right) < 0.85
    made = step("knowledge")
    call("knowledge", made)
    for row in read_rows(made.output("lessons"), "chat"):
        named = row["prompt"][0]["content"].rpartition(" ")[2]
        assert row["completion"][0]["content"] == HOW[named]


def test_any_world_says_its_numbers_and_other_folders_are_refused(step, tmp_path):
    assert tell_numbers(np.array([[0.26, -0.01], [1.0, 2.0]]), digits=1) == ["0.3 0.0", "1.0 2.0"]
    world = guided(world=craft_grid, tell=lambda observation_NO: tell_numbers(observation_NO), size=4)
    assert world.reset(seed=0)[0].shape == (14,)
    with pytest.raises(StepError, match="keep_guidance"):
        read_guidance(tmp_path)
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    spaces = read_spaces(craft_grid())
    zeros = np.zeros(1)
    one = np.zeros((1, 10), np.float32)
    write_transitions(narrow, Transitions(spaces, zeros, zeros, one, zeros, zeros, one, zeros > 0, zeros > 0))
    made = step("none")
    call("unscored", made)
    with pytest.raises(StepError, match="collect in a world `guided`"):
        call("rounds-1-situations", step("asked", played=narrow, followed=made.output("lessons")))
