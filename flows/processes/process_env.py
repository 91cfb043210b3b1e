"""Environment variables of the processes that posttrain starts."""

import os

from schemas.package import IMPORT_FOLDER

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def set_process_env(num_cpus: float) -> None:
    """Set the variables that numeric libraries read when they are imported."""
    os.environ |= make_process_env(num_cpus)


def make_process_env(num_cpus: float) -> dict[str, str]:
    """Return variables for one thread per core and for deterministic kernels."""
    threads = dict.fromkeys(THREADS, str(max(1, int(num_cpus))))
    return {**threads, "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def make_python_path() -> str:
    """Return PYTHONPATH for a process that imports posttrain."""
    paths = [str(IMPORT_FOLDER), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(paths))
