"""The names in a case that tell who and where: hosts, users, addresses, serial numbers, identifiers, jobs. Pure: texts in, names out.

Columns say what a name is; in free text it is told by its shape (an address, an identifier) or by the words around it (/home/NAME, uid 5001). A word
that everybody uses (node, gpu, root) is a name in its own column only: replacing it in sentences would destroy them and hide nothing.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rca.anonymous_words import is_common

__all__ = [
    "COLUMNS",
    "HASHES",
    "KEPT_TEXTS",
    "KINDS",
    "NAME_TABLES",
    "SHAPES",
    "USER_PHRASES",
    "Names",
    "is_plain_word",
    "is_real",
    "joined",
    "short",
]

KINDS: Final = ("host", "user", "name", "serial", "ipv4", "ipv6", "mac", "guid", "uuid", "hex32", "mail", "cloud", "url", "domain")
COLUMNS: Final = {  # column -> what stands in it
    **dict.fromkeys(("host", "hosts", "host_name", "evicted"), "host"),
    **dict.fromkeys(("user", "author", "reason_by", "cancelled_by", "by"), "user"),
    **dict.fromkeys(("job_name", "partition", "qos", "reservation", "job_id", "base_job_id", "name"), "name"),
    **dict.fromkeys(("gpu_serial", "boot_id"), "serial"),
}
NAME_TABLES: Final = {"name": frozenset({"planned_windows"})}  # elsewhere `name` is that of a number
HASHES: Final = ("evidence_id", "stack_id", "checksum")  # of bytes that whoever has them could recognise
_OWN: Final = """op state dtypes sizes format kind activity wait_kind backend dump_status layer cause sign analysis status
    signature signal severity unit attribution origin stage table finding_id param_checksum fingerprint expected outcome phase
    logged_at_local counts mapped_by collector checksum_kind parts lacks source decision what"""
KEPT_TEXTS: Final = frozenset(_OWN.split())  # columns with words of this program, numbers, shapes
_ADDRESS4: Final = re.compile(r"(?:(?<![A-Za-z0-9.])|(?<=MGC))(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![A-Za-z0-9]|\.[0-9])")  # Lustre glues it
_ADDRESS6: Final = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?:%\w{1,15})?(?![\w:])")
SHAPES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (  # in this order: the longer form first
    ("url", re.compile(r"(?<![\w])(?:https?|s3a?|gs|az|abfss?|wasbs?|hdfs|ssh|nfs|oci|hf|git)://[^\s\"'<>)\]},;\\]{1,2000}", re.I)),
    ("mail", re.compile(r"(?<![\w.+\-])[\w.+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}(?![\w\-])")),
    ("uuid", re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}([-_])(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])")),  # also podUUID
    (
        "mac",
        re.compile(r"(?<![\w:.])[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}(?![\w:])|(?<![\w\-])[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5}(?![\w\-])"),
    ),
    ("guid", re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){7}|[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3})(?![\w:])")),
    ("ipv6", _ADDRESS6),
    ("ipv4", _ADDRESS4),
    ("cloud", re.compile(r"(?<![\w\-])i-[0-9a-f]{8,17}(?!\w)|\b(?:arn:aws[\w\-]{0,10}:|ocid1\.)[\w.:/\-]{8,300}")),
    ("hex32", re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{32}(?:[0-9a-f]{8}|[0-9a-f]{32})?(?![0-9A-Za-z])")),
)
USER_PHRASES: Final = re.compile(
    r"(?:/(?:home|Users|users|user|scratch|work|workspaces?)/|\b(?:user(?:name)?|uid|owner|author|login|account|USER|LOGNAME|SUDO_USER)"
    r"[=: ]{1,2}[\"']?"
    r"|CANCELLED by |\bcancelled by |(?:for|by) user )([\w][\w.\-]{0,63})"
    r"|(?<![\w.+@\-])([a-z_][\w.\-]{1,31})@(?!plt\b|GLIBC|o2ib|tcp[0-9]|tty|latest\b)(?=[A-Za-z][\w\-]{2,62}(?![\w.@\-]))"
)
_FILE_SYSTEM: Final = re.compile(r"(?<![\w\-])([A-Za-z0-9_]{2,8})-(?:OST|MDT|MGT)[0-9a-f]{4}(?![0-9a-f])")  # of Lustre
_KIND_OF_POD: Final = re.compile(r"[A-Z][A-Za-z]{2,40}|pod|node|job|deployment|statefulset|replicaset|daemonset")
_SERIAL: Final = re.compile(r"\b(?:serial(?:[ _]?(?:number|no\.?))?|S/N|SN)[\"']?[=: #]{1,3}[\"']?([A-Z0-9][A-Z0-9\-]{5,40})\b", re.I)
_HOST_PHRASES: Final = re.compile(
    r"\b(?:host(?:name)?|node(?:name)?|machine|HOSTNAME|SLURMD_NODENAME|server)[=: ]{1,2}[\"']?"
    r"([A-Za-z][A-Za-z0-9\-]{0,62}[0-9][A-Za-z0-9\-]{0,30})(?![\w])"
    r"|\b(ip-[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3})(?![\w\-])"
    r"|(?:^|\s)([A-Za-z][A-Za-z0-9\-]{2,62}):[0-9]{1,8}:[0-9]{1,8} \["  # NCCL's own prefix: host:process:thread
    r"|(?<![\w.\-])([A-Za-z][A-Za-z0-9]{0,62}-[A-Za-z0-9\-]{1,62})<[0-9]{1,5}>|(?<![\w.\-])([A-Za-z][A-Za-z0-9]{1,62}[0-9])<[0-9]{4,5}>"  # its peers
    r"|\b(?:tcp|udp|env|gloo|zmq|ws|grpc|etcd|nccl|ucx|tls)://([A-Za-z][\w.\-]{1,253})(?=[:/\s'\",)]|$)"
    r"|\b(?:nfs4?|NFS|lockd|CIFS|ceph|rpc)(?:: |\b.{0,20}? )server ([A-Za-z][\w.\-]{1,253})"
    r"|\bserver ([A-Za-z][\w.\-]{1,253}) (?:not responding|OK\b|timed out|is not|error)"
    r"|\\\\([A-Za-z][\w.\-]{1,253})\\"  # a share of Windows
    r"|(?<![\w.+@\-])[a-z_][\w.\-]{1,31}@(?!plt\b|GLIBC|o2ib|tcp[0-9]|tty|latest\b)([A-Za-z][\w\-]{2,62})(?![\w.@\-])"
)
_KEYS: Final = {  # of JSON: labels of metrics, data of notes
    **dict.fromkeys(("host", "hostname", "node", "nodename", "node_name", "kubernetes_node", "hosts", "exported_host", "machine"), "host"),
    **dict.fromkeys(("user", "username", "user_name", "owner", "author", "by"), "user"),
    **dict.fromkeys(("job", "job_name", "jobid", "job_id", "hpc_job", "account", "partition", "team", "project", "cluster"), "name"),
    **dict.fromkeys(("pod", "pod_name", "namespace", "container", "exported_pod", "exported_namespace", "exported_container"), "name"),
    **dict.fromkeys(("rack", "region", "zone", "tenant", "queue", "workload", "image"), "name"),
    "instance": "host",
    **dict.fromkeys(("serial", "serial_number", "gpu_serial", "board_serial"), "serial"),
}
_COMMON: Final = """a an and the of on in to for by is are was not no none null nan unknown other all any some this that it at or
    with from node nodes host hosts gpu gpus cpu cpus machine server worker workers master main leader launcher trainer train
    training rank ranks job jobs task tasks step steps root system admin administrator operator scheduler user users slurm
    kubernetes autoscaler kubelet systemd daemon localhost local default batch interactive debug normal high low test dev prod
    production compute login head maint maintenance drain drained healthcheck health monitor python python3 nccl gloo mpi torch
    torchrun nvidia cuda kernel driver log logs data memory disk network link power time error warning info fatal true false ok up
    down idle mixed allocated yes preempted timeout failed completed cancelled running pending unset nobody public shared home tmp
    work scratch model bash sh service dcgm exporter prometheus pytorch dgx hgx rack cluster queue long short small large replay
    incident planned window day night change upgrade firmware reboot"""
_WORDS: Final = frozenset(_COMMON.split())  # no one is told by them
_FILES: Final = "log txt json jsonl csv gz zst out err pkl dmesg py tar pickle dump trace so cpp cc cu h md yaml yml prom xml dat db"
_FILE_WORDS: Final = frozenset(_FILES.split())
_NUMBER: Final = re.compile(r"[0-9_.+\[\]\-]+(?:\.\w+)?|job-[0-9]+")  # of a job: tells nobody's
_DOTTED: Final = re.compile(  # with the path of an image behind it
    r"(?<![\w.\-@])([A-Za-z0-9\-]{1,63})((?:\.[A-Za-z0-9][A-Za-z0-9\-]{0,62}){1,8})(?![\w\-])(?:(?::[0-9]{1,5})?/[\w./:@\-]{1,300})?"
)
_NUMBERED: Final = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z](?=[A-Za-z_\-]{0,60}[0-9])[A-Za-z0-9]{0,60}(?:[\-_][A-Za-z0-9]{1,60}){0,6}(?![A-Za-z0-9])"
)
_LISTED: Final = re.compile(r"(?<![\w.\-])([A-Za-z][\w.\-]{2,62})\[[\w,\-]{1,200}\](?:[\w.\-]{0,62}\w)?")
_PRIVATE: Final = frozenset(("internal", "local", "localdomain", "lan", "corp", "intra", "intern", "home", "private", "test", "example"))
_PUBLIC: Final = "com net org edu gov mil int cloud info io ai dev tech systems de fr uk eu ch nl jp cn kr"
_ENDINGS: Final = _PRIVATE | frozenset(_PUBLIC.split())
_DOMAIN: Final = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9\-]{0,62}){1,8}")


def is_plain_word(name: str) -> bool:
    """Whether a name is too short or too common to be looked for in sentences."""
    return len(name) < 3 or name.isdigit() or name.lower() in _WORDS


def short(host: str) -> str:
    """A host's first label in lower case; an address stays."""
    text = host.strip().lower().rstrip(".")
    return text if _ADDRESS4.fullmatch(text) or ":" in text else text.partition(".")[0]


class Names:
    """All names that were seen, by kind. Filled text by text; then sorted, so that the same case always gives the same numbers."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = defaultdict(set)
        self._asked = 0  # hosts known when `_families` was made
        self._families: frozenset[str] = frozenset()
        self._joined: set[str] = set()

    def see_column(self, table: str, column: str, values: Iterable[str]) -> None:
        """Every different text of a column."""
        kind = COLUMNS.get(column)
        if column in NAME_TABLES and table not in NAME_TABLES[column]:
            kind = None
        for value in values:
            if kind is not None and value:
                self._add(kind, value)
            if f"{table}.{column}" == "node_events.object":
                self.see_object(value)
            if column not in KEPT_TEXTS and column not in HASHES:
                self.see_text(value)

    def _add(self, kind: str, value: str) -> None:
        value = value.strip()
        if not value or (kind != "host" and value.lower() in _WORDS) or (kind == "name" and _NUMBER.fullmatch(value)):
            return
        if kind == "host":
            self._host(value)
        elif not any(shape.fullmatch(value) for _, shape in SHAPES):
            self.found[kind].add(value)
        self._shapes(value)

    def _host(self, value: str) -> None:
        name = short(value)
        if not name or any(shape.fullmatch(name) for _, shape in SHAPES) or name in ("localhost", "none", "null", "unknown"):
            return
        self.found["host"].add(name)
        rest = value.strip().rstrip(".")[len(name) :].lower()
        if rest and _DOMAIN.fullmatch(rest):
            self._domain(rest)

    def see_text(self, text: str) -> None:
        """A free text: what its shape or the words before it tell."""
        if len(text) < 3:
            return
        self._shapes(text)
        for found in USER_PHRASES.finditer(text):
            self._add("user", (found[1] or found[2]).rstrip(".-"))
        for found in _FILE_SYSTEM.finditer(text):
            self._add("name", found[1])
        for found in _SERIAL.finditer(text):
            if any(letter.isdigit() for letter in found[1]):
                self.found["serial"].add(found[1])
        for found in _HOST_PHRASES.finditer(text):
            self._host(next(group for group in found.groups() if group))
        if text[:1] in "{[":
            self._json(text)

    def _shapes(self, text: str) -> None:
        for kind, shape in SHAPES:
            for found in shape.finditer(text):
                if is_real(kind, found[0]):
                    self.found[kind].add(found[0])
                    if kind == "mail":
                        self._add("user", found[0].partition("@")[0])
                    if kind == "url":
                        self._address(found[0])

    def _address(self, url: str) -> None:
        """Bucket or server of an address, which may stand alone elsewhere."""
        place = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0]
        if len(place) > 3 and not is_plain_word(place) and not _ADDRESS4.fullmatch(place):
            self.found["name"].add(place)

    def _json(self, text: str) -> None:
        try:
            for key, value in _pairs(json.loads(text)):
                if (kind := _KEYS.get(key.lower())) is not None:
                    self._add(kind, value.rpartition(":")[0] if kind == "host" and re.search(r":[0-9]{1,5}$", value) else value)
        except (ValueError, RecursionError):
            return

    def see_object(self, text: str) -> None:
        """What an event of Kubernetes is about: kind, namespace, pod, container."""
        kind, *rest = text.split("/")
        for part in rest if _KIND_OF_POD.fullmatch(kind) else ():
            self._add("name", part)

    def see_relatives(self, text: str) -> None:
        """Names beside known ones: domains, hosts numbered as the known are, lists of them; to be asked once all hosts are known."""
        hosts = self.found["host"]
        for found in _DOTTED.finditer(text):
            first, rest = found[1].lower(), found[2].lower()
            if _FILE_WORDS & set(rest.split(".")):
                continue
            if first in hosts:
                if rest.count(".") > 1 or _is_of_somebody(first, rest):
                    self._domain(rest)
            elif _is_of_somebody(first, rest):
                self.found["name"].add(found[0].rstrip(".:"))
                self._domain(rest, is_a_hosts=False)
        families = self._of_hosts()
        for found in _NUMBERED.finditer(text):
            if (family(found[0]) in families) and joined(found[0]) not in self._joined:
                self._host(found[0].replace("_", "-"))
        for found in _LISTED.finditer(text):
            if not is_plain_word(found[1].rstrip("-_")) and any(host.startswith(found[1].lower()) for host in hosts):
                self.found["name"].add(found[0])

    def _domain(self, rest: str, *, is_a_hosts: bool = True) -> None:
        if is_a_hosts:
            self.found["domain"].add(rest)
        self.found["name"].update(label for label in rest.split(".") if len(label) > 3 and not _is_common(label))

    def _of_hosts(self) -> frozenset[str]:
        """How the hosts are numbered, where the word before the number is no common one."""
        hosts = self.found["host"]
        if len(hosts) != self._asked:
            self._asked = len(hosts)
            self._joined = {joined(host) for host in hosts}
            self._families = frozenset(family(host) for host in hosts if "#" in family(host) and not _is_common(family(host)))
        return self._families


def family(host: str) -> str:
    """A host's name without its numbers: node17-03, NODE17_04 and node1702 are of one."""
    return re.sub(r"[\-_]?[0-9]+(?:[\-_][0-9]+)*", "#", host.lower())


def joined(host: str) -> str:
    """A host's name in letters and digits alone, as paths and variables write it."""
    return re.sub(r"[\-_]", "", host.lower())


def _is_common(label: str) -> bool:
    return all(is_common(word) for word in re.findall(r"[A-Za-z]+", label))


def _is_of_somebody(first: str, rest: str) -> bool:
    """Whether a name with dots is that of a machine or a service of one's own: a known ending, and a word in it that is not everybody's."""
    *labels, last = rest[1:].split(".")
    if last not in _ENDINGS or not labels:
        return False
    return not _is_common(labels[-1]) or (not all(map(_is_common, (first, *labels))) and (last in _PRIVATE or len(labels) > 1))


def is_real(kind: str, text: str) -> bool:
    """Whether what has the shape of an address is one, and one that tells somebody's."""
    if kind not in ("ipv4", "ipv6"):
        return True
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if kind == "ipv6" and text.count(":") < 7 and not re.match(r"[0-9a-fA-F]{3,4}:", text):
        return False  # a::b is a name of a program
    return not (address.is_loopback or address.is_unspecified or str(address).startswith("255."))


def _pairs(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _pairs(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _pairs(inner, key)
    elif isinstance(value, str) and key:
        yield key, value
