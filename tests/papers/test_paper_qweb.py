"""QWeb: pages that begin partly solved, rewards for progress, and instructions made of pages.

Not shown: World of Bits, recurrent networks over texts and pages.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import make_batch
from learning.control.networks.build import Networks
from learning.control.networks.form_network import FormValues, find_sizes
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.worlds.forms import (
    EMPTY,
    Form,
    describe_page,
    form,
    measure_progress,
    read_tasks,
    shape_by_progress,
)
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/qweb.yaml")
STAGES = RECIPE.stages
FIELDS, WORDS = 5, 4
STAGE_NAMES = ("first", "second", "third", "fourth", "curriculum")
SPACES = read_spaces(form())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The recipe's instructions."""
    folder = tmp_path_factory.mktemp("qweb") / "tasks"
    folder.mkdir()
    context = Context({}, folder, folder / "checkpoints", seed=1)
    metrics = bind(STAGES["tasks"].function)(context)
    return context.output("result"), metrics


def make_world(name, folder):
    """The world of a stage of the recipe, with instructions in a folder."""
    return bind(STAGES[name].env, "env", {"env.tasks": folder})()


@pytest.mark.parametrize(("name", "open_fields"), [*zip(STAGE_NAMES, range(1, 6), strict=True)])
def test_at_stage_k_a_page_begins_with_all_but_k_fields_filled_in_correctly(name, open_fields, written):
    world = make_world(name, written[0])
    opened = np.zeros(FIELDS)
    for seed in range(60):
        world.reset(seed=seed)
        assert (world.page == world.wanted).sum() == FIELDS - open_fields
        assert (world.page == EMPTY).sum() == open_fields
        opened += world.page == EMPTY
    assert (opened > 0).all()
    for n in ("shaped", "plain"):
        other = make_world(n, written[0])
        other.reset(seed=0)
        assert (other.page == EMPTY).all()


def shape(before, reward, after):
    """The recipe's relabelling of one step."""
    bound = bind(STAGES["curriculum"].relabel, "relabel")
    supplies = {"observation_NO": before[None], "reward_N": np.array([reward]), "next_observation_NO": after[None]}
    return float(bound.ask(0, {**supplies, "spaces": SPACES})["reward"][0])


def play(world, choices):
    """What each choice earns, and with shaping."""
    shown, earned, shaped = world.observe(), [], []
    for field, word in choices:
        after, reward, *_ = world.step(field * WORDS + word)
        earned.append(reward)
        shaped.append(shape(shown, reward, after))
        shown = after
    return earned, shaped


def test_shaping_adds_up_to_one_on_a_success_and_to_nothing_on_a_loop():
    """γ = 1, and Φ the share of right fields: from an empty page to a full one 5 · .2; back where it began 0."""
    world = form()
    world.reset(seed=3)
    wanted = world.wanted.tolist()
    earned, shaped = play(world, list(enumerate(wanted)))
    assert earned == [0, 0, 0, 0, 1]
    assert sum(shaped) - sum(earned) == pytest.approx(1.0)
    assert np.subtract(shaped, earned).tolist() == pytest.approx([0.2] * 5)
    world.reset(seed=3)
    world.page[:2] = [wanted[0], (wanted[1] + 1) % WORDS]
    before = world.page.copy()
    wrong = (wanted[0] + 1) % WORDS
    earned, shaped = play(world, [(0, wrong), (1, wanted[1]), (1, before[1]), (0, wanted[0])])
    assert (world.page == before).all()
    assert earned == [0, 0, 0, 0]
    assert sum(shaped) == pytest.approx(0.0, abs=1e-6)
    assert shaped[0] == pytest.approx(-0.2)
    shown = world.observe()[None]
    half = shape_by_progress(shown, np.array([1.0]), shown, SPACES, gamma=0.5)["reward"][0]
    assert half == pytest.approx(1 - 0.5 * measure_progress(shown, FIELDS, WORDS)[0])


def test_every_instruction_is_satisfied_by_its_page_and_by_no_page_with_one_field_changed(written):
    folder, metrics = written
    tasks = read_tasks(folder, FIELDS, WORDS)
    assert metrics["tasks"] == len(tasks) == 100
    assert metrics["different"] == len({tuple(task) for task in tasks}) > 90
    world = form()
    world.reset(seed=0)
    for task in tasks[:20]:
        world.wanted, world.page = np.array(task), np.array(task)
        assert describe_page(world.observe(), FIELDS, WORDS) == task
        assert measure_progress(world.observe()[None], FIELDS, WORDS)[0] == 1
        for field in range(FIELDS):
            for word in set(range(WORDS)) - {task[field]}:
                changed = np.array(task)
                changed[field] = word
                world.page = changed
                assert measure_progress(world.observe()[None], FIELDS, WORDS)[0] == pytest.approx(0.8)
                assert describe_page(world.observe(), FIELDS, WORDS) != task
        world.page = np.array([*task[:-1], EMPTY])
        assert describe_page(world.observe(), FIELDS, WORDS) is None


def test_written_instructions_are_those_of_the_training_worlds(written):
    folder, _ = written
    tasks = {tuple(task) for task in read_tasks(folder, FIELDS, WORDS)}
    world = make_world("curriculum", folder)
    for seed in range(20):
        world.reset(seed=seed)
        assert tuple(world.wanted) in tasks
    assert "tasks" not in STAGES["report"].env.options
    (folder.parent / "none").mkdir()
    with pytest.raises(StepError, match="write_instructions"):
        read_tasks(folder.parent / "none", FIELDS, WORDS)
    with pytest.raises(StepError, match="for 3 fields"):
        read_tasks(folder, 3, WORDS)
    with pytest.raises(StepError, match="6 open fields"):
        form(open=6)


def test_instructions_come_in_any_order_and_progress_does_not_depend_on_it():
    world = Form(FIELDS, WORDS, FIELDS, 8, [])
    orders = set()
    for seed in range(10):
        world.reset(seed=seed)
        orders.add(tuple(world.order))
        world.page[:2] = world.wanted[:2]
        assert measure_progress(world.observe()[None], FIELDS, WORDS)[0] == pytest.approx(0.4)
    assert len(orders) > 5


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["curriculum"].loss, "loss")(Networks(SPACES, NetworkSettings(hidden_sizes=[16])))


def find_network(algorithm):
    return next(module for module in algorithm.actor.modules() if isinstance(module, FormValues))


def show(*, order=None):
    """An observation of a form with some words; pairs of the instruction in another order."""
    world = Form(FIELDS, WORDS, FIELDS, 8, [])
    world.reset(seed=1)
    world.wanted, world.page = np.array([0, 1, 2, 3, 0]), np.array([0, EMPTY, 3, EMPTY, 1])
    world.order = np.arange(FIELDS) if order is None else np.array(order)
    return torch.from_numpy(world.observe())[None]


def test_values_do_not_depend_on_the_order_of_the_instruction(algorithm):
    network = find_network(algorithm)
    with torch.no_grad():
        values = network(show())
        assert torch.allclose(network(show(order=[4, 2, 0, 1, 3])), values, atol=1e-6)
        attention = network.attend(show())
    assert attention.shape == (1, FIELDS, FIELDS)
    assert attention.sum(-1).flatten().tolist() == pytest.approx([1.0] * FIELDS)


def test_a_field_that_attends_to_its_own_pair_reads_its_word(algorithm):
    """Fields 0 and 4 are told the same word and differ in contents: with these alike, their values are."""
    network = find_network(algorithm)
    with torch.no_grad():
        for layer in (network.ask, network.answer):
            layer.bias.zero_(), layer.weight.zero_()
            layer.weight[:FIELDS, :FIELDS] = torch.eye(FIELDS) * 10
        assert torch.allclose(network.attend(show(order=[4, 2, 0, 1, 3]))[0, 4], torch.eye(5)[0], atol=1e-6)
        shown = show()
        values = network(shown).reshape(FIELDS, WORDS)
        same = shown.clone()
        page = same[:, FIELDS * (FIELDS + WORDS) :].reshape(1, FIELDS, -1)
        page[0, 4, FIELDS:] = page[0, 0, FIELDS:]
        moved = network(same).reshape(FIELDS, WORDS)
    assert not torch.allclose(values[0], values[4], atol=1e-4)
    assert torch.allclose(moved[0], moved[4], atol=1e-6)


def test_the_target_is_that_of_double_q_learning(algorithm):
    shown = show().expand(2, -1)
    columns = {"observation": shown, "next_observation": shown, "action": torch.tensor([3, 7])}
    columns |= {"reward": torch.tensor([[0.2], [1.0]]), "terminated": torch.tensor([[False], [True]])}
    batch = make_batch({**columns, "truncated": torch.zeros(2, 1, dtype=torch.bool)})
    with torch.no_grad():
        for parameter in algorithm.loss.target_value_network_params.values(True, True):
            parameter.add_(0.5 * torch.randn_like(parameter))
        value = find_network(algorithm)(shown)
        with algorithm.loss.target_value_network_params.to_module(algorithm.loss.value_network):
            later = next(m for m in algorithm.loss.value_network.modules() if isinstance(m, FormValues))(shown)
        assert later[0].argmax() != value[0].argmax()
        target = torch.stack([0.2 + 0.9 * later[0, value[0].argmax()], torch.tensor(1.0)])
        expected = (value[[0, 1], [3, 7]] - target).square().mean()
    assert algorithm.loss(batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_other_worlds_are_refused_and_policies_are_read_again(algorithm, tmp_path):
    assert find_sizes(SPACES) == (FIELDS, WORDS)
    assert find_sizes(read_spaces(form(fields=2, words=3))) == (2, 3)
    for spaces in (Spaces(4, 2), Spaces(SPACES.observations, 19)):
        with pytest.raises(StepError, match="a form has"):
            find_sizes(spaces)
    settings = NetworkSettings(hidden_sizes=[16])
    ControlPolicy(SPACES, settings, algorithm.actor_form, algorithm.actor).save(tmp_path, algorithm.loss.state_dict())
    shown = show().numpy()
    values = find_network(algorithm)(torch.from_numpy(shown))
    assert load_control_policy(tmp_path).act(shown, explore=False).tolist() == [int(values.argmax())]


def test_the_recipes_first_stage_learns_to_fill_in_one_field(written, tmp_path):
    context = Context({"env.tasks": written[0]}, tmp_path / "run", tmp_path / "run/checkpoints", seed=1)
    context.folder.mkdir()
    stage = STAGES["first"].model_copy(update={"environment_steps": 500, "updates_per_step": 1.0})
    control.run(stage, context)
    policy, world, won = load_control_policy(context.output("model")), form(open=1), 0.0
    for seed in range(40):
        shown, _ = world.reset(seed=seed)
        won += world.step(int(policy.act(shown[None], explore=False)[0]))[1]
    assert won / 40 > 0.4


def test_stages_follow_each_other_and_take_as_many_steps_as_the_arms_without():
    opened = [STAGES[name].env.options["open"] for name in STAGE_NAMES]
    assert opened == [1, 2, 3, 4, 5]
    assert [STAGES[name].model for name in STAGE_NAMES] == [None, *STAGE_NAMES[:-1]]
    assert sum(STAGES[name].environment_steps for name in STAGE_NAMES) == STAGES["shaped"].environment_steps
    shaped, plain, last = (STAGES[name].model_dump() for name in ("shaped", "plain", "curriculum"))
    assert shaped.pop("relabel") == last.pop("relabel") == {"use": "shape_by_progress", "gamma": 1.0}
    assert plain.pop("relabel") is None
    assert shaped == plain
    assert (last.pop("environment_steps"), last.pop("model")) == (800, "fourth")
    assert last["env"].pop("open") == 5
    shaped.pop("environment_steps"), shaped.pop("model")
    assert last == shaped
    assert last["exploration"] == {"use": "epsilon_greedy", "epsilon": 0.2}
