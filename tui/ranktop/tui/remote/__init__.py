"""A job on another machine, by way of the user's own ``ssh``."""
