"""How a search picks the settings of its next trial, by Optuna's samplers."""

from typing import Annotated, Any

from pydantic import Field


def tpe(seed: int, *, startup_trials: Annotated[int, Field(ge=1)] = 5, multivariate: bool = True) -> Any:
    """Return the tree-structured Parzen estimator, after some random trials (Bergstra et al. 2011)."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, n_startup_trials=startup_trials, multivariate=multivariate)


def random(seed: int) -> Any:
    """Return a sampler that draws each setting by itself (Bergstra and Bengio 2012)."""
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)
