"""Fuzzes one collector until it breaks its promise or the time is over: `python fuzz/one.py COLLECTOR [OPTIONS OF LIBFUZZER] [CORPUS...]`.

Run by run.py, which writes the seeds. Which branches an input takes is seen in the collectors and in `rca`; libraries and regular expressions
run as they are (atheris can follow these too, but not a match that begins in the middle of a text: the dictionary knows the words instead).
What breaks the promise ends the process and is left as a file.
"""

from __future__ import annotations

import sys

import atheris

PATIENCE = 5.0  # watching the branches costs a multiple of the reading; run.py looks again without


def main() -> None:
    with atheris.instrument_imports(include=["collectors", "rca"]):
        from rca import plugins

        collector = plugins.load("collectors", sys.argv[1])
    from _promise import keep

    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: keep(collector, data, patience=PATIENCE))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
