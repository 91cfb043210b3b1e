"""What a stage does: one file per kind with one public function `run(stage, context)`, readable from top to bottom."""
