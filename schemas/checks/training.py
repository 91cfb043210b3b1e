"""Rules of training stages that a type cannot state: what a group of trainers cannot do, unusual learning rates."""

from collections.abc import Iterator, Mapping

from schemas.errors import Problem
from schemas.stages.rl import Rl
from schemas.steps.learning_rates import find_usual_rate
from schemas.steps.step_info import StepInfo
from schemas.training import WHOLE_ONLY, Evaluation, LoRA, Training


def check_training(info: StepInfo, training: Training) -> Iterator[Problem]:
    """Yield what a training stage asks for and its resources cannot give."""
    train = info.stage.resources.train
    if train is not None and train.strategy == "fsdp2" and train.workers > 1 and training.optim in WHOLE_ONLY:
        message = f"{training.optim} cannot update weights that are sharded over workers"
        yield info.problem("optim", message, "use `strategy: ddp`, or `optim: adamw`, `lion` or `muon`")
    if isinstance(training, LoRA) and training.use_peft and training.load_in_4bit:
        yield from _check_quantised(info, training)
    yield from _check_choice(info, training)


def _check_choice(info: StepInfo, training: Training) -> Iterator[Problem]:
    """Yield what chooses among evaluations where the steps leave room for one at most."""
    if not isinstance(training, Evaluation | Rl) or training.eval_steps is None or training.max_steps < 0:
        return
    # Supervised training evaluates after its last step, too.
    last = training.max_steps if isinstance(training, Rl) else training.max_steps - 1
    for option in ("load_best_model_at_end", "early_stopping_patience"):
        if getattr(training, option) and last // training.eval_steps < (2 if isinstance(training, Rl) else 1):
            message = f"compares evaluations, and {training.max_steps} steps have only one, every {training.eval_steps}"
            yield info.problem(option, message, "lower `eval_steps`, or leave it out")


def _check_quantised(info: StepInfo, training: Training) -> Iterator[Problem]:
    """Yield what does not work with weights in 4 bits under the adapters."""
    resources = info.stage.resources
    if resources.train is not None and resources.train.strategy == "fsdp2" and resources.train.workers > 1:
        yield info.problem("load_in_4bit", "weights in 4 bits cannot be sharded over workers", "use `strategy: ddp`")
    if training.bf16:
        message = "the weights are multiplied in `dtype`, and adapters are float32 anyway"
        yield info.problem("bf16", message, "use `dtype: bfloat16` instead")
    if not isinstance(info.stage, Rl):
        return
    networks = {f"auxiliary_models.{name}": block for name, block in info.stage.auxiliary_models.items()}
    networks |= {"critic": info.stage.critic} if info.stage.critic is not None else {}
    for key in (key for key, block in networks.items() if block.model is None):
        message = "it starts as a copy of the policy's body, and weights in 4 bits cannot be trained"
        yield info.problem(key, message, "give it a `model`, or remove `load_in_4bit`")
    for role in ("reference", "rollout"):
        if getattr(resources, role) is not None:
            message = "its workers would load the model without quantising it"
            yield info.problem(f"resources.{role}", message, "remove it, or `load_in_4bit`")


def check_learning_rate(info: StepInfo, training: Training, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield a learning rate of AdamW that is far from the usual ones for what the step trains."""
    usual = find_usual_rate(info, steps)
    if usual is None or not training.optim.startswith("adamw") or usual.low <= training.learning_rate <= usual.high:
        return
    risk = "ruin the model" if training.learning_rate > usual.high else "change next to nothing"
    message = f"a learning rate of {_format_rate(training.learning_rate)} may {risk}: here it trains {usual.trained}"
    span = f"usual are {_format_rate(usual.low)} to {_format_rate(usual.high)}"
    yield info.problem("learning_rate", message, f"{span}; without this key it is {_format_rate(usual.default)}")


def _format_rate(rate: float) -> str:
    """Return a rate in the shortest form, such as 2e-5 or 0.01."""
    return f"{rate:g}".replace("e-0", "e-")
