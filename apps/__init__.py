"""The edge: command line, text, pages. Only here is anything printed or the clock read."""
