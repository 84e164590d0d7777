"""The host that the name of a file or folder states: `gpu-a01.pip-freeze.txt`, `kernel-host12.log`, `env-gpu-a01.txt`, `node-a/pip.txt`. Pure.

Endings, dates and the words for what a file holds (pip, freeze, env, nvidia-smi, gpu-info, dmesg, kern, journal, ...) are taken off both ends of
the name, whichever of `.`, `_` and `-` parts them; what is left must be one name of a host. A hyphen is a part of it, so `gpu-` in gpu-a01 stays;
of a name with dots the first label counts. It has a digit (node01, dgx-03) or begins with a word for a machine (node-a); a round, rank, copy,
attempt or case with a number is none.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["host_in_folder", "host_in_name"]

_ENDINGS: Final = re.compile(r"(?:\.(?:log|txt|out|err|json|jsonl|csv|tsv|list|ya?ml|gz|zst|bz2|xz|[0-9]{1,8}))+$", re.I)
_KERNEL: Final = r"dmesg(?:-[a-z])?|kern(?:el)?|kmsg|journal(?:ctl)?(?:-[a-z])?|syslog|messages"
_CONTENT: Final = (
    rf"{_KERNEL}|pip3?|freeze|list|packages?|env|environ(?:ment)?|printenv|collect|torch|info|nvidia|smi|query|q|versions?|configs?|facts?"
    r"|(?:gpus?|hosts?|nodes?)[._\-](?:info|list|query|q|versions?|configs?|facts?)"  # by itself such a word may begin the host's name
    r"|(?:19|20)[0-9][0-9][._\-]?[01][0-9][._\-]?[0-3][0-9](?:[T._\-]?[0-2][0-9][._\-:]?[0-5][0-9](?:[._\-:]?[0-5][0-9])?Z?)?"
)
_FIRST: Final = re.compile(rf"(?:{_CONTENT})(?:[._\-]+|$)", re.I)
_LAST: Final = re.compile(rf"(?:[._\-]+|^)(?:{_CONTENT})$", re.I)
_LAST_WORD: Final = re.compile(r"[._\-](?:gpus?|hosts|nodes)$", re.I)  # before other words it may end the host's name
_IS_KERNEL: Final = re.compile(rf"(?:^|[._\-])(?:{_KERNEL})(?=[._\-]|$)", re.I)
_MACHINE: Final = r"(?:node|host|gpu|server|worker|machine|instance|vm|dgx|hgx|compute|trainer|rack)"
_HOST: Final = re.compile(
    rf"(?:(?=[^.]{{0,63}}[0-9])|(?={_MACHINE}-))[A-Za-z][A-Za-z0-9\-]{{0,62}}(?:\.[A-Za-z0-9][A-Za-z0-9\-]{{0,62}}){{0,8}}", re.I
)
_PLAIN: Final = re.compile(rf"{_MACHINE}-?[A-Za-z0-9\-]{{1,62}}", re.I)
_NO_HOST: Final = re.compile(
    r"(?:(?:local|global|node)?[\-_]?rank|job|round|sample|iter|poll|snap|attempt|retry|try|restart|launch|step|run|slurm|part|boot|task|s?xid|log|logs|case"
    r"|aer|edac|oom|mlx|nvme|rfc|iso"
    r"|incident|drill|test|exp|experiment|backup|bak|copy|old|new|archive|dump|dumps|capture|upload|export|day|week|set|out|output|results?|data"
    r"|stage|epoch|ckpt|checkpoint|version|v|x|obj|object|file|tmp|dir|tp|pp|dp|ep|cp|local)[\-_]?[0-9]*(?:[\-_.][0-9]+)*|gpu-?[0-9]|.*-(?:old|prev|last|all|copy|backup)",
    re.I,
)


def host_in_name(name: str, *, kind: str = "") -> str | None:
    """The host that a file's name (no folders) states, in lower case; None where it states none.

    `kind="kernel"`: only beside a word for a kernel log. `kind="any"`: only beside any word for a content, or with one for a machine.
    """
    stem = _ENDINGS.sub("", name)
    if kind == "kernel" and not _IS_KERNEL.search(stem):
        return None
    rest = stem
    while found := _FIRST.match(rest):
        rest = rest[found.end() :]
    rest = _LAST_WORD.sub("", rest)
    while found := _LAST.search(rest[-60:]):
        rest = rest[: len(rest) - (min(len(rest), 60) - found.start())]
    if kind == "any" and rest == stem and not _PLAIN.fullmatch(rest):
        return None
    return _host(rest)


def host_in_folder(name: str) -> str | None:
    """The host that the name of one folder states; None where it states none."""
    return _host(name)


def _host(text: str) -> str | None:
    is_one = len(text) <= 255 and _HOST.fullmatch(text) and not _NO_HOST.fullmatch(text)
    return text.lower().split(".")[0] if is_one else None
