"""The script that streamlit runs. It lies in this folder because streamlit offers the files of a folder `pages` beside its script as pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from apps.explorer import main

__all__: list[str] = []

if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # streamlit put it first: its names would shadow others
    main(**json.loads(sys.argv[1]))
