"""``ranktop doctor``: what this machine and the jobs on it let ranktop see, line by line, and what to do about it."""
