"""What becomes of an interruption: notes, the course of its stages, the record that a fleet keeps. Pure."""
