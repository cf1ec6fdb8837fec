"""What crosses a process border: messages, their encoding, where sockets are, what a recording holds."""
