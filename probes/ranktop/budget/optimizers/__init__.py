"""Optimizers: what each keeps per parameter, what its step allocates, by which names people call it."""
