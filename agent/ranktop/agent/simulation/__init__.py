"""A job that does not exist, for trying the tool and for its tests: ranks that work, wait for each other, and fail.

Pure arithmetic on a simulated clock, seeded; ``publishing`` sends what the ranks say through the real wire. Every card
has ``simulated`` set and a job name that begins with ``simulated-``.
"""
