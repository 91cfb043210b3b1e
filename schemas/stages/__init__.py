"""One file per stage kind; `schemas.stages.union` lists them."""
