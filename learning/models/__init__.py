"""Networks: how they are opened, computed, optimised and kept."""
