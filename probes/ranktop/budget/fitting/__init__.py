"""The search for plans that fit, in pieces: which layouts are looked at, what each costs, how it is judged."""
