"""Policies that act: trained ones, experts, rules, and what changes their actions or their steps."""
