"""A search's own view of Optuna: settings are asked for, their values are reported, nothing is stored outside."""

import importlib.util
from typing import Any

from schemas.errors import StepError
from schemas.search_space import Range, Value, is_whole
from schemas.stages.search import Search


class Study:
    """Asks a sampler for settings, one trial after the other; the same seed and values give the same settings."""

    def __init__(self, stage: Search, sampler: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction=stage.direction, sampler=sampler)
        self.space = {path: make_distribution(values) for path, values in stage.space.items()}
        self.trial: Any = None

    def ask(self) -> dict[str, Value]:
        """Return the settings of the next trial."""
        self.trial = self.study.ask(self.space)
        return {path: self.trial.params[path] for path in self.space}

    def tell(self, value: float | None) -> None:
        """Report the value of the trial that was asked for; None: it failed."""
        from optuna.trial import TrialState

        if value is None:
            self.study.tell(self.trial, state=TrialState.FAIL)
        else:
            self.study.tell(self.trial, value)


def make_distribution(values: Range | list[Value]) -> Any:
    """Return the values of a setting as Optuna describes them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution(values)
    if is_whole(values):
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(float(values.low), float(values.high), log=values.log, step=values.step)


def require_library() -> None:
    """Raise StepError if Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise StepError("kind search needs the package optuna: pip install 'posttrain[search]'")
