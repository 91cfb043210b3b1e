"""The only place where code that a model wrote runs."""
