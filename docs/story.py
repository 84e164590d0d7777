"""Plays one incident with the real commands, from the live fault to Monday's report, and writes docs/story.md with its pictures.

python docs/story.py     play it and write the page: two minutes; needs the extras drill, capture and explore, root, and Chromium

1. Six ranks train on three made-up hosts of this machine; one bit of one weight flips. 2. The job is captured while it runs, diagnosed, and an
incident opened. 3. The hosts replay the same steps, and the one with the (injected) bad chip computes other bits. 4. The job is started again
without it, the incident closed, the week reported. 5. The explorer shows it in a real browser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import chromium

from rca import plugins
from rca.drills._launch import Drill, Job, stop_on_signals, strays

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
FAULT, SEED = "bit_flip", 4
JOB = "llm-7b"
MAX_LINES = {"capture": 2, "diagnose": 12, "open": 10, "stage": 1, "replay": 9}  # of a command's output on the page
FLIP = "step=2,bit=17"


@dataclass(frozen=True)
class Told:
    """One command as it was typed and what it printed."""

    command: str
    output: str
    code: int


@dataclass
class Story:
    """A folder in which commands are typed, and what they said."""

    folder: Path
    told: list[Told] = field(default_factory=list)
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    week: str = ""
    report: str = ""  # what the report says first
    stopped: tuple[int, ...] = ()  # processes of the job that do not run on after the captures

    def type(self, *words: str) -> Told:
        """Run `rca WORDS` in the story's folder."""
        done = subprocess.run([sys.executable, "-m", "apps.cli", *words], cwd=self.folder, capture_output=True, text=True, check=False)
        shown = " ".join(f"'{word}'" if " " in word else word for word in words)
        self.told.append(Told(f"rca {shown}", done.stdout.rstrip(), done.returncode))
        if done.returncode != 0:
            raise SystemExit(f"rca {shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return self.told[-1]

    def ask(self, *words: str) -> dict[str, Any]:
        """The document of a command; not told."""
        done = subprocess.run(
            [sys.executable, "-m", "apps.cli", *words, "--json"], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))


@contextmanager
def running(fault: str) -> Iterator[tuple[Job, Any]]:
    """A live job with a fault in it, past the moment where the fault bit; nothing of it is left afterwards."""
    module = plugins.load("rca.drills", fault)
    layout = plugins.load("rca.drills", FAULT).LAYOUT
    injection = module.inject(layout, seed=SEED)
    with tempfile.TemporaryDirectory(prefix="job-") as folder, stop_on_signals():
        job = Job(Drill(fault, layout, seed=SEED), injection, Path(folder), uuid.uuid4().hex)
        try:
            job.launch()
            job.wait_for_start()
            if injection.step:
                job.wait_for_bite(injection.step, shows_after=injection.shows_after, ends=module.ENDS)
            yield job, injection
        finally:
            job.end()


def play(folder: Path, say: Callable[[str], object] = lambda line: None) -> Story:
    """The whole incident; raises SystemExit where a command fails."""
    story = Story(folder)
    say("a job with a fault")
    with running(FAULT) as (job, injection):
        story.ranks = tuple(injection.ranks)
        story.hosts = tuple(sorted({job.layout.host(rank) for rank in injection.ranks}))
        for host, agent in zip(job.layout.hosts, job.agents, strict=True):
            say(f"capture of {host}")
            story.type("capture", "--out", "case", "--host", host, "--pid", str(agent.pid), "--rounds", "2", "--gap", "1")
        story.stopped = tuple(pid for pid in strays(job.token) if _state(pid) in ("T", "t"))
        story.type("diagnose", "case")
        story.type("open", "case", "--job", JOB, "--gpus", str(job.layout.world_size), "--tokens-per-step", "4096")
    story.type("stage", "case", "replace", "--now")
    say("replay")
    bad = story.hosts[0]
    story.type("replay", "plan", "case", "--pp", "1", "--out", "plan.json")
    story.type("replay", "run", "plan.json", "--out", "case/replay", "--inject", f"host={bad},{FLIP}")
    story.type("diagnose", "case")
    story.type("stage", "case", "replace", "--now")
    story.type("stage", "case", "resume", "--now")
    say("the job again, without the fault")
    with running("none"):
        story.type("stage", "case", "resume", "--now")
    story.type("note", "case", f"{bad} is drained; the job runs on the spare")
    story.type("fleet", "generate", "--out", "fleet", "--hosts", "512", "--weeks", "6", "--end-week", _week_before(story))
    story.type("close", "case", "--fleet", "fleet", "--action", "rollback", "--evicted", bad, "--checkpoint-step", "10")
    story.week = max((folder / "fleet" / "incidents").iterdir()).name
    story.type("report", "--fleet", "fleet", "--week", story.week, "--out", "report")
    text = (folder / "report" / f"report-{story.week}.md").read_text("utf-8")
    story.report = re.sub(r"<!-- write here.*?<!-- end[^>]*-->\n*", "", text.partition("\n## Figures")[0], flags=re.DOTALL).strip()
    return story


def _state(pid: int) -> str:
    """R, S, D, T, ...; "" of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _week_before(story: Story) -> str:
    """The ISO week before that of the fault."""
    began = story.ask("diagnose", "case")["verdict"]["first_failing"]["at"]
    year, week, _ = (datetime.fromisoformat(began) - timedelta(days=7)).isocalendar()
    return f"{year}-W{week:02}"


def look(story: Story, into: Path) -> dict[str, str]:
    """Pictures of the explorer's two pages, and the first line of each."""
    into.mkdir(parents=True, exist_ok=True)
    lines: dict[str, str] = {}
    with chromium.explorer(["case", "fleet"], story.folder) as url, chromium.opened(url) as page:
        for name in ("Incident", "Reliability"):
            page.locator("[data-testid=stSidebarNav]").get_by_text(name).click()
            page.wait_for_selector(chromium.HEADLINE)
            chromium.settled(page)
            lines[name] = page.locator(chromium.HEADLINE).inner_text()
            page.screenshot(path=into / f"story_{name.lower()}.png")
    return lines


WORDS = (
    (
        "rca capture",
        "On each host, while the job goes on: stacks, logs, what the ranks write of their steps. Nothing in the job is changed.",
    ),
    ("rca diagnose", "What the captures tell. No rank complained; the bits of one differ."),
    ("rca open", "The incident begins: what was said and when is noted beside the evidence."),
    ("rca stage case replace", "The job is stopped; who is out, and until when, is noted."),
    ("rca replay", "Before a host is sent away, every host computes the same steps, twice, and the bits are compared."),
    ("rca diagnose", "The records of the replay lie with the evidence, so the answer now says that it is proven."),
    ("rca stage", "The job starts again without the host."),
    ("rca note", "What is said by hand stays, with its time."),
    ("rca fleet", "A fleet without a past says little, so six weeks are made up here, at the failure rates that Llama 3's table gives."),
    ("rca close", "The record goes to the fleet's folder."),
    ("rca report", "And on Monday the week has one more line."),
)


def page(story: Story) -> str:
    """docs/story.md."""
    parts = [
        "<!-- Written by docs/story.py. Change the commands there, not this page. -->\n",
        "# One incident, start to finish\n",
        "Six ranks train on three hosts. After a step, one bit of one weight is another on one rank: what a chip does that computes wrong. There "
        "is no error, the loss stays finite, the job goes on. Everything below was typed and printed as it stands (`python docs/story.py` plays "
        "it again; a test does so as well); long outputs are cut. The three hosts are made up: all processes ran on one machine, with gloo, and "
        "the bad chip of the replay is an injected flip.\n",
    ]
    words = iter(WORDS)
    prefix, text = next(words)
    is_new = True
    for told in story.told:
        if not told.command.startswith(prefix):
            prefix, text = next(words)
            is_new = True
        if is_new:
            parts.append(text + "\n")
            is_new = False
        parts.append(f"```text\n$ {told.command}\n{_cut(told)}\n```\n")
    quoted = "\n".join(f"> {line.lstrip('#').strip()}" for line in story.report.splitlines())
    parts += [
        f"It begins:\n\n{quoted}\n",
        f"The report is one Markdown file (`report/report-{story.week}.md`) and one HTML file. In a browser, `rca explore case fleet`:\n",
        "![The incident: the answer, what to do, stages against budgets, ranks](pictures/story_incident.png)\n",
        "![The week: interruptions, time to recover by stage, lost time by cause](pictures/story_reliability.png)\n",
    ]
    return "\n".join(parts)


def _cut(told: Told) -> str:
    """The begin of a long output; process ids and ports are no part of the story, but they are what was printed."""
    lines = [re.sub(r"\s+$", "", line) for line in told.output.splitlines()]
    most = MAX_LINES.get(told.command.split()[1], len(lines))
    return "\n".join([*lines[:most], *(["[...]"] if len(lines) > most else [])])


def main(argv: Sequence[str]) -> int:
    """Play, and write the page and its pictures."""
    folder = Path(tempfile.mkdtemp(prefix="story-"))
    try:
        story = play(folder, lambda line: sys.stderr.write(f"{line}\n"))
        look(story, PICTURES)
        (DOCS / "story.md").write_text(page(story), "utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
