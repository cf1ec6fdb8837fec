"""A small real training job to watch: a GPT on text, under the strategies of torch. Needs torch."""
