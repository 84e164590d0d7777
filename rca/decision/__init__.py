"""From a verdict to what to do: the branch of the tree, retries, degrade or replace, shrink, the way back and what it costs. Pure.

`advise` puts it together; each other file holds one idea. Nothing here is ever run: commands are text for a person.
"""
