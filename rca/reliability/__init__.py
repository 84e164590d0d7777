"""What faults cost, whose they are, whether they come back: figures over the records of a fleet, and what is published. Pure."""
