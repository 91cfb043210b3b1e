"""An OpenAI-compatible endpoint over a model of this checkout."""
