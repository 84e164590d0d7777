"""One verb per file: parse, call one library function, render."""
