"""The state of one watched job, free of any user interface."""
