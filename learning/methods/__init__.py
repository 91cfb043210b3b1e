"""Functions of single published methods that slots offer beside the common ones."""
