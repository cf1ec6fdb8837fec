"""The terminal: what it knows, what it shows now, how fast it takes more, and how it is left."""
