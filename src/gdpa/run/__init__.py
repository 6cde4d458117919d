"""One run: the loop, its stop rules and observers, and the result."""
