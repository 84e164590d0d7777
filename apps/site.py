"""What many verbs say alike of their arguments: the evidence, a site's own catalogue files (--site or RCA_SITE), what reading may take (--memory)."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

__all__ = ["EVIDENCE", "VARIABLE", "choose", "memory_option", "option"]

VARIABLE = "RCA_SITE"
EVIDENCE = (
    "the evidence: a folder, a file, an archive (tar, zip; compressed or not), s3://, gs:// or az://; or a case file or Parquet export"
)


def option(parser: argparse.ArgumentParser) -> None:
    """`--site FOLDER`, as every verb says it that has it."""
    parser.add_argument(
        "--site", metavar="FOLDER", help="the site's own catalogue files (xid.csv ...), laid over the shipped ones (default: $RCA_SITE)"
    )


def memory_option(parser: argparse.ArgumentParser) -> None:
    """`--memory SIZE`, in bytes."""
    parser.add_argument(
        "--memory", metavar="SIZE", type=_num_bytes,
        help="what reading may take, all its processes together, as 900MB or 4GB (default: a quarter of the machine)",
    )  # fmt: skip


def _num_bytes(text: str) -> int:
    told = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s?([KMGT]?)i?B?", text.strip(), re.I)
    if told is None or float(told[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 900MB or 4GB")
    return int(float(told[1]) * 1024 ** " KMGT".index(told[2].upper() or " "))


def choose(asked: str | None = None) -> None:
    """From now on the rules of that folder count, else those of RCA_SITE, else the shipped ones. Raises UsageError for a wrong file."""
    from rca.catalogues import read_site, use_site

    named = asked or os.environ.get(VARIABLE) or ""
    use_site(read_site(Path(named)) if named else None)
