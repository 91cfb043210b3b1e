"""TeachMyAgent: learning progress by the nearest past task, tasks where it is highest, knowledge that must be declared.

Not shown: the rankings on the bipedal walker and Parkour, the other teachers, bodies as tasks.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.control import training
from learning.control.rounds.task_teachers import compute_progress, sample_by_progress
from learning.control.stepping.episode_tasks import EpisodeTasks
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.poles import parametric_pole
from learning.lookup import bind
from schemas.errors import RecipeError, StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import control
from tasks.context import Context

PATH = Path(__file__).parents[2] / "recipes/papers/teachmyagent.yaml"
STAGES = load_recipe(PATH).stages
ARMS = ("random", "alp_gmm", "oracle")
LOW, HIGH = np.zeros(2), np.ones(2)


def ask(name, tasks, returns, seed=0, count=400, **options):
    """Tasks that the recipe's teacher chooses after these episodes."""
    use = STAGES[name].teacher
    teacher = bind(type(use).model_validate({**use.model_dump(), **options}), "teacher")
    rng = np.random.default_rng(seed)
    supplies = {"task_KD": np.array(tasks, float).reshape(-1, 2), "return_K": np.array(returns, float), "rng": rng}
    supplies |= {"low": LOW, "high": HIGH, "value_of": None}
    return np.array([teacher.ask(0, supplies) for _ in range(count)])


def test_progress_is_the_change_from_the_nearest_earlier_task():
    """Tasks .2 returned 1 and .8 returned 0: the new task .25 with return 3 has |3 − 1|."""
    assert compute_progress(np.array([[0.2], [0.8], [0.25]]), np.array([1.0, 0.0, 3.0])).tolist() == [0, 1, 2]
    assert compute_progress(np.array([[0.2], [0.8], [0.25], [0.7]]), np.array([1.0, 0.0, 3.0, -4.0]))[3] == 4


def test_tasks_come_from_the_component_with_progress_alone():
    """Progress (2, 0): every task is near that of the first component; in equal parts where none has any."""
    mean_CD = np.array([[0.2, 0.3, 2.0], [0.8, 0.7, 0.0]])
    cov_CDD = np.stack([1e-4 * np.eye(3)] * 2)
    rng = np.random.default_rng(0)
    drawn = np.array([sample_by_progress(mean_CD, cov_CDD, rng) for _ in range(200)])
    assert np.abs(drawn - [0.2, 0.3]).max() < 0.05
    mean_CD[:, 2] = [3.0, 1.0]
    first = np.mean([sample_by_progress(mean_CD, cov_CDD, rng)[0] < 0.5 for _ in range(2000)])
    assert first == pytest.approx(0.75, abs=0.03)
    mean_CD[:, 2] = 0.0
    first = np.mean([sample_by_progress(mean_CD, cov_CDD, rng)[0] < 0.5 for _ in range(2000)])
    assert first == pytest.approx(0.5, abs=0.04)


def make_history(count=50):
    """Returns that change in the lower left corner alone."""
    rng = np.random.default_rng(1)
    tasks = np.where(
        rng.random(count)[:, None] < 0.5, rng.uniform(0.1, 0.2, (count, 2)), rng.uniform(0.8, 0.9, (count, 2))
    )
    return tasks, np.where(tasks[:, 0] < 0.5, rng.uniform(0, 100, count), 50.0)


def test_the_fitted_teacher_goes_where_returns_change():
    tasks, returns = make_history()
    chosen = ask("alp_gmm", tasks, returns, random_ratio=0.0)
    assert (chosen < 0.5).all(1).mean() > 0.95
    mixed = ask("alp_gmm", tasks, returns)
    elsewhere = 1 - (mixed < 0.5).all(1).mean()
    assert elsewhere == pytest.approx(0.2 * 0.75 + 0.8 * (1 - (chosen < 0.5).all(1).mean()), abs=0.05)
    assert STAGES["alp_gmm"].teacher.options == {"random_ratio": 0.2, "fit_every": 50}


def test_before_the_first_fit_any_task_is_as_likely():
    tasks, returns = make_history()
    chosen = ask("alp_gmm", tasks[:49], returns[:49], random_ratio=0.0)
    assert chosen.mean(0) == pytest.approx([0.5, 0.5], abs=0.05)
    assert chosen.std(0) == pytest.approx([12**-0.5] * 2, abs=0.03)


def test_the_fit_is_to_the_newest_episodes_alone():
    """50 episodes in the lower left corner, then 50 in the upper right one, whose returns change as much."""
    rng = np.random.default_rng(2)
    tasks = np.concatenate([rng.uniform(0.1, 0.2, (50, 2)), rng.uniform(0.8, 0.9, (50, 2))])
    chosen = ask("alp_gmm", tasks, rng.uniform(0, 100, 100), random_ratio=0.0)
    assert (chosen > 0.5).all(1).mean() > 0.95


def test_random_is_uniform_whatever_was_returned():
    chosen = ask("random", *make_history(), count=4000)
    counts = np.histogram2d(*chosen.T, bins=4, range=[[0, 1], [0, 1]])[0]
    assert ((counts - 250) ** 2 / 250).sum() < 30.6  # the 99th percentile of χ² with 15 degrees of freedom
    assert np.array_equal(chosen, ask("random", [], [], count=4000))


def test_the_oracle_moves_its_window_with_what_is_mastered():
    """From (1, 1) to (0, 0) in ten steps of 20 episodes with a mean of 150; windows are .3 wide."""
    first = ask("oracle", np.zeros((19, 2)), np.full(19, 200.0))
    assert first.min() == pytest.approx(0.85, abs=0.01)
    returns = [150.0] * 40 + [149.0] * 20 + [200.0] * 20
    moved = ask("oracle", np.zeros((80, 2)), returns)
    assert moved.mean(0) == pytest.approx([0.7, 0.7], abs=0.02)
    assert (moved.min(), moved.max()) == pytest.approx((0.55, 0.85), abs=0.01)
    last = ask("oracle", np.zeros((400, 2)), [200.0] * 400)
    assert last.max() == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("missing", ["easiest", "hardest", "mastered"])
def test_an_oracle_without_declared_knowledge_is_refused(missing, tmp_path):
    text = PATH.read_text(encoding="utf-8")
    broken = text.replace(f', {missing}: "${{vars.{missing}}}"', "")
    assert broken != text
    (tmp_path / "broken.yaml").write_text(broken)
    with pytest.raises(RecipeError, match=missing):
        load_recipe(tmp_path / "broken.yaml")


def test_a_task_sets_length_and_force_and_is_drawn_without_a_teacher():
    world = bind(STAGES["report"].env, "env")()
    world.reset(seed=1, options={"task": np.array([0.25, 0.5])})
    assert (world.pole.length, world.pole.force_mag) == pytest.approx((0.3, 8.0))
    assert world.pole.polemass_length == pytest.approx(0.1 * 0.3)
    before = world.pole.state[1]
    world.pole.state = np.zeros(4)
    world.step(1)
    temp = 8.0 / 1.1
    turn = -temp / (0.3 * (4 / 3 - 0.1 / 1.1))
    assert world.pole.state[1] == pytest.approx(0.02 * (temp - 0.03 * turn / 1.1))
    assert before != world.pole.state[1]
    drawn = np.array([(world.reset(seed=seed), world.task)[1] for seed in range(1000)])
    assert drawn.mean(0) == pytest.approx([0.5, 0.5], abs=0.04)
    world.reset(seed=7)
    again = world.task
    world.reset(seed=7)
    assert np.array_equal(again, world.task)


def test_episodes_have_the_tasks_of_the_teacher_who_hears_of_their_returns():
    heard = []

    def teach(task_KD, return_K, low, high):
        heard.append((len(task_KD), list(return_K)))
        return np.full(2, len(return_K) / 10)

    tasks = EpisodeTasks(make_bound(teach), seed=0)
    worlds = Worlds(lambda: parametric_pole(limit=3), 1, 0, "test", tasks)
    for _ in range(7):
        worlds.step(np.array([0]))
    assert [task.tolist() for task in tasks.tasks] == [[0.0, 0.0], [0.1, 0.1]]
    assert tasks.returns == [3.0, 3.0]
    assert heard == [(0, []), (1, [3.0]), (2, [3.0, 3.0])]
    assert worlds.worlds[0].task.tolist() == [0.2, 0.2]


def make_bound(function):
    from learning.lookup import Bound

    return Bound("teach", function, {}, "teacher")


def test_a_continued_training_has_the_same_tasks():
    """What was saved within the third episode leads to the same tasks and returns as what went on."""

    def begin():
        teacher = bind(STAGES["random"].teacher, "teacher")
        return Worlds(lambda: parametric_pole(limit=4), 2, 3, "test", EpisodeTasks(teacher, seed=5))

    worlds = begin()
    for _ in range(10):
        worlds.step(np.array([0, 1]))
    tensors, state = worlds.save()
    other = begin()
    for _ in range(2):
        other.step(np.array([1, 1]))
    other.restore(tensors, state)
    for _ in range(9):
        first, second = worlds.step(np.array([0, 1])), other.step(np.array([0, 1]))
        assert np.array_equal(first.observation, second.observation)
    assert np.array_equal(worlds.episode_tasks.tasks, other.episode_tasks.tasks)
    assert worlds.episode_tasks.returns == other.episode_tasks.returns


def test_a_world_without_tasks_and_a_task_outside_are_refused():
    with pytest.raises(StepError, match="task_space"):
        control.run(
            Control.model_validate({**STAGES["random"].model_dump(exclude_unset=True), "env": "CartPole-v1"}),
            Context({}, Path("unused"), Path("unused"), seed=1),
        )
    with pytest.raises(StepError, match="no task from"):
        Worlds(parametric_pole, 1, 0, "test", EpisodeTasks(make_bound(lambda low: low - 1), seed=0))


@pytest.mark.parametrize("name", ARMS)
def test_the_training_is_that_of_the_teachers_tasks(name, tmp_path, monkeypatch):
    seen = []

    class Watched(training.ControlLoop):
        def __post_init__(self):
            super().__post_init__()
            seen.append(self.worlds.episode_tasks)

    monkeypatch.setattr(control, "ControlLoop", Watched)
    context = Context({}, tmp_path / "step", tmp_path / "c", seed=1)
    context.folder.mkdir()
    short = {"environment_steps": 256, "rollout_steps": 64, "num_iterations": 1, "learning_starts": 1}
    control.run(STAGES[name].model_copy(update=short), context)
    (tasks,) = seen
    assert tasks.teacher.name == name
    assert len(tasks.tasks) == len(tasks.returns) >= 4
    assert (np.array(tasks.tasks).min() > 0.8) == (name == "oracle")


def test_the_arms_differ_in_the_teacher_alone_and_tasks_are_mastered_from_150():
    arms = [STAGES[name].model_dump() for name in ARMS]
    assert [arm.pop("teacher")["use"] for arm in arms] == list(ARMS)
    assert arms[0] == arms[1] == arms[2]
    assert arms[0]["loss"]["use"] == "ppo"
    success, _ = STAGES["report"].metrics
    score_PN = np.array([[149.0], [150.0], [200.0]])
    assert bind(success, "metric").ask(0, {"score_PN": score_PN}).tolist() == [0, 1, 1]
    assert dict(STAGES["report"].models) == {name: name for name in ARMS}
