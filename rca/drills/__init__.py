"""Injected faults, one per file, each with its truth."""
