"""Which rank is out of line, and why: one rule a file, each a pure function of a scene."""
