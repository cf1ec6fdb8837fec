"""``ranktop plan``: from flags and config files to a run, and from its projections to a table and JSON."""
