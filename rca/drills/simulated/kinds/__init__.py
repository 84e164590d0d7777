"""Kinds of incidents, one file per layer; each function makes one happen in a scene and tells the truth of it."""
