"""kind: python — a user-defined function."""

import traceback
from dataclasses import replace

from learning.data.rows import SCHEMAS, scan_rows
from learning.lookup import bind
from schemas.errors import PosttrainError, StepError
from schemas.stages.python import Python
from tasks.context import Context, Result

MODEL_FILES = {
    "policy": ("config.json", "*.gguf"),  # a model that was an input may be passed on as it came
    "reward_model": ("config.json",),
    "adapter": ("adapter_config.json",),
}
"""Files of which a folder with a model of a type has at least one."""


def run(stage: Python, context: Context) -> Result:
    """Call the function, check the outputs that the stage declares, and return the function's metrics."""
    function = bind(stage.function, "function", context.inputs)
    short = {port.removeprefix("inputs."): folder for port, folder in context.inputs.items()}
    try:
        returned = function(replace(context, inputs={**short, **context.inputs}))
    except PosttrainError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename}:{at.lineno}"
        raise StepError(f"function {stage.function.use}: {type(error).__name__}: {error} ({where})") from error
    for name, artifact_type in stage.produces.items():
        check_output(stage, context, name, artifact_type)
    return as_result(stage, returned)


def check_output(stage: Python, context: Context, name: str, artifact_type: str) -> None:
    """Raise StepError if an output is empty or not of its type."""
    folder = context.output(name)
    if not any(folder.iterdir()):
        advice = f"write files to context.output({name!r})"
        raise StepError(f"function {stage.function.use}: output {name!r} is empty; {advice}")
    if artifact_type in SCHEMAS:
        if not any(folder.glob("rows*.parquet")):
            raise StepError(
                f"function {stage.function.use}: output {name!r} has no rows.parquet; write it with "
                "learning.data.rows.write_rows"
            )
        for _ in scan_rows(folder, artifact_type):
            pass  # what is damaged, or of another type, is an error
    patterns = MODEL_FILES.get(artifact_type, ())
    if patterns and not any(path.is_file() for pattern in patterns for path in folder.glob(pattern)):
        raise StepError(
            f"function {stage.function.use}: output {name!r} is not a {artifact_type}: it has no {patterns[0]}"
        )


def as_result(stage: Python, returned: object) -> Result:
    """Return the function's Result, or its dictionary of metrics as one; raise StepError for anything else."""
    if isinstance(returned, Result):
        return returned
    metrics = {} if returned is None else returned
    plain = (int, float, bool, str, type(None))
    if not isinstance(metrics, dict) or any(not isinstance(value, plain) for value in metrics.values()):
        raise StepError(
            f"function {stage.function.use}: must return None, a Result, or a dictionary of numbers and strings"
        )
    return Result({str(name): value for name, value in metrics.items()})
