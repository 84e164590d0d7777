"""What `open`, `note`, `stage`, `overrule` and `close` share: where notes lie, times as people type them, words for a record."""
