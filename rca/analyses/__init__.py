"""One question per file. The file name is the question; `rca analyse QUESTION` asks it."""
