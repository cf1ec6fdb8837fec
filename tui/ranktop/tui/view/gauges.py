"""The gauges of a device as the screens take them (``ranktop.tui.session.gauges``)."""

from ranktop.tui.session.gauges import WORDS, Gauges, harmful, in_a_word, named, named_together

__all__ = ["WORDS", "Gauges", "harmful", "in_a_word", "named", "named_together"]
