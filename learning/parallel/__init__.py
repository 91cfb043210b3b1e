"""Process groups, pools of workers, and random states of ranks."""
