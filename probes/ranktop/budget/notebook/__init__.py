"""``ranktop plan`` for notebooks and scripts: keyword arguments in, tables out. Public by way of ``ranktop.budget``."""
