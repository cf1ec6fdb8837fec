"""DeepSpeed ZeRO: what its stages allocate, at every moment of a step, on the device, the host and the disk."""
