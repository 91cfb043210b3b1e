"""Configurations of axolotl, LLaMA-Factory, TRL, oumi, verl, open-instruct and mergekit as recipes."""
