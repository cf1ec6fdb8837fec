"""FSDP1 and FSDP2: shards, gathered units, and what a step allocates around them."""
