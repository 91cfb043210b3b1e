"""A merge, tensor by tensor."""
