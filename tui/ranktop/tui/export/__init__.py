"""``ranktop export``: a recording as rows of numbers, or as a copy of itself."""
