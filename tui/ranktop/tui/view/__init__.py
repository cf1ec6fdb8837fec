"""Session to strings and spans: everything a screen shows, as plain data; no Textual here."""
