"""What a process of a step sets before it imports anything that computes."""

import os

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def set_process_env(num_cpus: float) -> None:
    """Set what libraries of numbers read when they are imported."""
    os.environ |= make_process_env(num_cpus)


def make_process_env(num_cpus: float) -> dict[str, str]:
    """Variables for one thread per core, and equal results for equal inputs."""
    threads = dict.fromkeys(THREADS, str(max(1, int(num_cpus))))
    return {**threads, "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
