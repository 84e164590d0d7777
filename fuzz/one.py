"""Fuzzes one collector until it breaks its promise or the time is over: `python fuzz/one.py COLLECTOR [OPTIONS OF LIBFUZZER] [CORPUS...]`.

Run by run.py, which writes the seeds. Which branches an input takes is seen in the collectors and in `rca`; libraries and regular expressions
run as they are (atheris can follow these too, but not a match that begins in the middle of a text: the dictionary knows the words instead).
Half of the changes are the fuzzer's own, to bytes; the other half put another value in the place of a whole one, so that a document stays a
document. What breaks the promise ends the process and is left as a file.
"""

from __future__ import annotations

import random
import re
import sys

import atheris

PATIENCE = 5.0  # watching the branches costs a multiple of the reading; run.py looks again without
VALUE = re.compile(rb'"[^"\n]{0,60}"|-?\d[\d.:T+-]*|[A-Za-z_]{3,}')
NUM_CHANGED = 3  # values at most at a time


def another_value(data: bytes, max_size: int, seed: int, words: list[bytes]) -> bytes:
    """A few values of the input replaced: by a word of the dictionary, or by another value of the input itself."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, NUM_CHANGED)):
        values = list(VALUE.finditer(data))
        if not values:
            break
        old = chance.choice(values)
        new = chance.choice(words) if chance.random() < 0.7 else chance.choice(values)[0]
        if old[0].startswith(b'"') and not new.startswith(b'"') and chance.random() < 0.8:
            new = b'"' + new + b'"'
        data = data[: old.start()] + new + data[old.end() :]
    return data[:max_size]


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    with atheris.instrument_imports(include=["collectors", "rca"]):
        from rca import plugins

        collector = plugins.load("collectors", sys.argv[1])
    from _promise import keep
    from _seeds import NASTY, words

    known = [*words(collector, []), *NASTY * 20]

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        return atheris.Mutate(data, max_size) if seed % 2 else another_value(data, max_size, seed, known)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: keep(collector, data, patience=PATIENCE), custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
