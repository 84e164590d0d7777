"""What many verbs say alike of their arguments: the evidence, and a site's own catalogue files (--site or RCA_SITE)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["EVIDENCE", "VARIABLE", "choose", "option"]

VARIABLE = "RCA_SITE"
EVIDENCE = (
    "the evidence: a folder, a file, an archive (tar, zip; compressed or not), s3://, gs:// or az://; or a case file or Parquet export"
)


def option(parser: argparse.ArgumentParser) -> None:
    """`--site FOLDER`, as every verb says it that has it."""
    parser.add_argument(
        "--site", metavar="FOLDER", help="the site's own catalogue files (xid.csv ...), laid over the shipped ones (default: $RCA_SITE)"
    )


def choose(asked: str | None = None) -> None:
    """From now on the rules of that folder count, else those of RCA_SITE, else the shipped ones. Raises UsageError for a wrong file."""
    from rca.catalogues import read_site, use_site

    named = asked or os.environ.get(VARIABLE) or ""
    use_site(read_site(Path(named)) if named else None)
