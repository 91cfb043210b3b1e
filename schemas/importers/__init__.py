"""Configurations of axolotl, LLaMA-Factory, TRL, oumi, verl, open-instruct, mergekit and lm-eval as recipes."""
