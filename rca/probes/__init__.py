"""Active tests that run on the hosts themselves, one per file: plan, run, judge."""
