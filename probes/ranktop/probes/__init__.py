"""The measured side: one fact a file, read without disturbing the process that is measured."""
