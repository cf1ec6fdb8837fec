"""Which tensors a model has: families of architectures, Hugging Face configs, a catalogue of well-known shapes."""
