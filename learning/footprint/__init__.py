"""How much memory a step needs: arithmetic only."""
