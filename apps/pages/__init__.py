"""Pages of the explorer, one per file: `TITLE`, `OVER` (case or fleet), `render(look)`; a name that starts with _ is a helper."""
