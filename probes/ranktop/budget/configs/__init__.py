"""Configurations as users write them, read and written: DeepSpeed's JSON, Accelerate's and FSDP's YAML."""
