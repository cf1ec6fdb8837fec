"""A recording under the playhead: the dashboard's source for what is over, with a clock of its own."""
