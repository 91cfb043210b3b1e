"""Problem families of the library reasoning-gym, and their verifiers in sandboxed processes."""
