"""One source format per file. `claims` recognises it by content, `read` turns it into rows."""
