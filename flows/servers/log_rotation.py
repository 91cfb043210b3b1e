"""Logs of servers, kept below a size while their processes write them."""

import os
import shutil
from pathlib import Path

KEPT_LOG = 5_000_000
"""Bytes from which a log is rotated: `NAME.log` and `NAME.log.old` have at most about twice that together."""


def rotate_log(log: Path, limit: int = KEPT_LOG) -> bool:
    """Copy a log to `NAME.old` and empty it if it has more than `limit` bytes; return whether that was done.

    Its writer must append (O_APPEND): it keeps the file open and goes on at the new end. Lines written between copy
    and emptying, microseconds, are lost.
    """
    try:
        if log.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    shutil.copyfile(log, log.with_name(f"{log.name}.old"))
    os.truncate(log, 0)
    return True
