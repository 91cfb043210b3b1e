"""The sandbox: the only place where code written by a model is executed."""
