"""The import law, and the few places that may do what the rest may not. Judged from the source text; only three imports are run."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from _house import ROOT

PACKAGES = ("rca", "collectors", "apps")
FILES = tuple(sorted(p.relative_to(ROOT).as_posix() for package in PACKAGES for p in (ROOT / package).rglob("*.py")))
FOUNDATION = ("rca", "rca.types", "rca.tables", "rca.causes", "rca.errors", "rca.plugins", "rca.catalogues", "rca.memory")
ENGINE = (
    *FOUNDATION,
    "rca.roster",
    "rca.sources",
    "rca.guesses",
    "rca.parts",
    "rca.reading",
    "rca.topology",
    "rca.belonging",
    "rca.timing_sets",
)
STDLIB = frozenset(sys.stdlib_module_names)

# file pattern -> (modules of the project, third-party packages) it may import, the first pattern that fits; the standard library always
LAW: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rca/types.py": (("rca.tables", "rca.host_names"), ("polars", "zstandard")),
    "rca/host_names.py": ((), ()),
    "rca/group_ids.py": ((), ()),
    "rca/timing.py": ((), ()),
    "rca/memory.py": ((), ()),
    "rca/__init__.py": (("rca.building", "rca.case", "rca.judge", "rca.sources"), ()),  # when asked for: the test below holds it to that
    "rca/plugins.py": ((), ()),
    "rca/errors.py": ((), ()),
    "rca/tables/*": ((*FOUNDATION, "rca.tables._*"), ("polars",)),
    "rca/causes.py": (FOUNDATION, ("polars",)),
    "rca/torn_zips.py": ((), ()),
    "rca/archives.py": ((*FOUNDATION, "rca.torn_zips"), ()),
    "rca/sources.py": ((*FOUNDATION, "rca.archives"), ()),
    "rca/catalogues.py": (("rca.errors", "rca.causes", "rca.line_adapters", "rca.settings"), ()),
    "rca/line_adapters.py": (("rca.errors",), ("yaml", "polars")),
    "rca/files.py": (("rca.errors", "rca.sources"), ()),
    "rca/topology.py": (FOUNDATION, ("polars", "numpy")),
    "rca/roster.py": (FOUNDATION, ("polars",)),
    "rca/rank_rows.py": ((), ()),
    "rca/local_time.py": ((), ()),
    "rca/kernel_tracks.py": ((*FOUNDATION, "rca.local_time"), ()),
    "rca/kernel_notes.py": ((*FOUNDATION, "rca.local_time", "rca.kernel_tracks"), ()),
    "rca/kernel_years.py": ((*FOUNDATION, "rca.local_time", "rca.kernel_tracks"), ()),
    "rca/kernel_times.py": ((*FOUNDATION, "rca.local_time", "rca.kernel_tracks", "rca.kernel_notes", "rca.kernel_years"), ()),
    "rca/clock_offsets.py": (FOUNDATION, ("polars",)),
    "rca/clocks.py": ((*FOUNDATION, "rca.local_time", "rca.log_zones", "rca.kernel_times", "rca.clock_offsets"), ("polars",)),
    "rca/kernel_record.py": ((*FOUNDATION, "rca.clocks", "rca.local_time"), ()),
    "rca/log_launches.py": (FOUNDATION, ()),
    "rca/log_calls.py": (("rca.types",), ("polars",)),
    "rca/log_zones.py": ((*FOUNDATION, "rca.local_time"), ("polars",)),
    "rca/local_ranks.py": ((*FOUNDATION, "rca.log_launches", "rca.log_sets"), ("polars",)),
    "rca/log_jobs.py": (("rca.types",), ("polars",)),
    "rca/log_sets.py": ((*FOUNDATION, "rca.local_time", "rca.log_calls", "rca.log_jobs", "rca.log_launches"), ("polars",)),
    "rca/belonging.py": ((*FOUNDATION, "rca.timing_sets", "rca.other_runs", "rca.log_launches", "rca.log_sets"), ("polars",)),
    "rca/old_captures.py": ((*FOUNDATION, "rca.local_time", "rca.log_sets"), ("polars",)),
    "rca/other_runs.py": ((*FOUNDATION, "rca.timing_sets", "rca.job_reach"), ("polars",)),
    "rca/job_reach.py": ((*FOUNDATION, "rca.timing_sets"), ("polars",)),
    "rca/timing_sets.py": ((*FOUNDATION, "rca.timing_launches"), ("polars",)),
    "rca/timing_launches.py": ((), ()),
    "rca/dating.py": (("rca.types",), ("polars",)),
    "rca/weighing.py": (FOUNDATION, ()),
    "rca/stop_words.py": (FOUNDATION, ()),
    "rca/diagnose.py": ((*FOUNDATION, "rca.roster", "rca.weighing", "rca.stop_words"), ("polars", "numpy")),
    "rca/settings.py": (("rca.errors",), ()),
    "rca/decision/facts.py": (
        (*FOUNDATION, "rca.roster", "rca.clocks", "rca.incidents.course", "rca.decision.job_size", "rca.decision.launches"),
        ("polars",),
    ),
    "rca/decision/job_size.py": ((*FOUNDATION, "rca.roster"), ("polars",)),
    "rca/decision/launches.py": (FOUNDATION, ("polars",)),
    "rca/decision/*": (
        (
            *FOUNDATION,
            *(
                "rca.rank_rows",
                "rca.roster",
                "rca.commands",
                "rca.checkpoints",
                "rca.policies",
                "rca.settings",
                "rca.eviction",
                "rca.replay",
                "rca.stop_words",
                "rca.weighing",
            ),
            *("rca.incidents.records", "rca.reliability.published", "rca.decision.*"),
        ),
        (),
    ),
    "rca/policies.py": (FOUNDATION, ()),
    "rca/eviction.py": ((*FOUNDATION, "rca.replay", "rca.roster"), ()),
    "rca/step_names.py": ((), ()),
    "rca/saved_states.py": ((*FOUNDATION, "rca.step_names"), ()),
    "rca/checkpoints.py": ((*FOUNDATION, "rca.saved_states", "rca.step_names"), ("polars",)),
    "rca/commands.py": ((*FOUNDATION, "rca.roster"), ()),
    "rca/guesses.py": (FOUNDATION, ()),
    "rca/parts.py": (FOUNDATION, ("polars",)),
    "rca/reading.py": ((*FOUNDATION, "rca.guesses", "rca.parts"), ("polars",)),
    "rca/store.py": ((*FOUNDATION, "rca.parts", "rca.reading", "rca.sources"), ()),
    "rca/batches.py": ((*FOUNDATION, "rca.parts", "rca.reading", "rca.store"), ()),
    "rca/questions.py": (FOUNDATION, ("polars",)),
    "rca/anonymous_words.py": ((), ()),
    "rca/anonymous_names.py": (("rca.anonymous_words",), ()),
    "rca/anonymise.py": ((*FOUNDATION, "rca.anonymous_names", "rca.anonymous_words"), ("polars",)),
    "rca/timeline.py": (FOUNDATION, ("polars",)),
    "rca/case.py": ((*FOUNDATION, "rca.sources"), ("polars", "duckdb")),
    "rca/linking.py": ((*ENGINE, "rca.batches", "rca.case", "rca.local_ranks", "rca.old_captures", "rca.store"), ("polars",)),
    "rca/building.py": ((*ENGINE, "rca.batches", "rca.case", "rca.linking", "rca.store"), ("polars", "duckdb")),
    "rca/judge.py": (
        (*FOUNDATION, "rca.dating", "rca.roster", "rca.questions", "rca.diagnose", "rca.decision.*", "rca.checkpoints"),
        ("polars",),
    ),
    "rca/triage.py": ((*ENGINE, "rca.case", "rca.linking", "rca.judge", "rca.decision.history", "rca.analyses._*"), ("polars", "numpy")),
    "rca/incidents/*": ((*FOUNDATION, "rca.incidents.*", "rca.clocks", "rca.roster"), ("polars",)),
    "rca/reliability/formulas.py": ((), ("scipy",)),
    "rca/reliability/*": ((*FOUNDATION, "rca.reliability.*", "rca.incidents.records", "rca.incidents.incident"), ("polars",)),
    "rca/drills/_synthetic_fleet*.py": (
        (*FOUNDATION, "rca.files", "rca.incidents.records", "rca.incidents.incident", "rca.reliability.published", "rca.drills._*"),
        ("numpy",),
    ),
    "rca/replay.py": (FOUNDATION, ()),
    "rca/quarantine.py": (FOUNDATION, ()),
    "rca/analyses/*": (
        (
            *FOUNDATION,
            *("rca.clocks", "rca.local_time", "rca.kernel_record", "rca.replay", "rca.policies", "rca.saved_states", "rca.stop_words"),
            *("rca.group_ids", "rca.analyses._*"),
        ),
        ("polars", "numpy", "scipy", "sklearn"),
    ),
    "rca/probes/*": ((*ENGINE, "rca.replay", "rca.probes._*"), ("polars", "numpy", "torch")),
    "rca/drills/simulated/_emit.py": (
        (*ENGINE, "rca.case", "rca.linking", "rca.drills._synthetic*", "rca.drills.simulated._*"),
        ("polars",),
    ),
    "rca/drills/simulated/*": (
        (*FOUNDATION, "rca.drills._kernel", "rca.drills._synthetic*", "rca.drills.simulated._*"),
        ("polars", "numpy"),
    ),
    "rca/drills/_campaign*.py": (
        (
            *ENGINE,
            *("rca.building", "rca.case", "rca.dating", "rca.questions", "rca.weighing", "rca.diagnose", "rca.judge"),
            *("rca.drills._*", "rca.drills.simulated"),
        ),
        ("numpy", "scipy"),
    ),  # they play, ask and mark: the whole of the library under test
    "rca/drills/*": ((*FOUNDATION, "rca.drills._*"), ("polars", "numpy", "torch", "zstandard")),
    "rca/catalogue/*": ((), ()),
    "collectors/_capture/*": (("rca.errors", "collectors._capture.*"), ("pynvml",)),
    "collectors/*": (
        (
            "rca.types",
            "rca.tables",
            "rca.errors",
            "rca.catalogues",
            "rca.line_adapters",
            "rca.memory",
            "rca.host_names",
            "rca.group_ids",
            "rca.step_names",
            "collectors._*",
        ),
        ("polars", "duckdb", "numpy", "numba", "yaml", "icalendar", "tensorboard", "google"),
    ),
    "apps/charts.py": (("rca", "rca.*", "apps.*"), ("polars", "plotly")),
    "apps/explorer.py": (("rca", "rca.*", "apps.*"), ("polars", "streamlit")),
    "apps/pages/*": (("rca", "rca.*", "apps.*"), ("polars", "streamlit")),
    "apps/verbs/capture.py": (("rca", "rca.*", "apps.*", "collectors._capture.*"), ()),
    "apps/*": (("rca", "rca.*", "apps.*"), ("polars", "numpy", "fsspec")),
}
IN_FUNCTIONS_ONLY = (
    "torch",
    "sklearn",
    "scipy",
    "duckdb",
    "plotly",
    "streamlit",
    "zstandard",
    "pynvml",
    "yaml",
    "icalendar",
    "tensorboard",
    "fsspec",
    "numba",
)
COMPILED = "collectors/_dump_kernels.py"  # Numba's decorators stand over its functions; it is imported in functions only
TRAINING_SCRIPT = "rca/drills/_job.py"  # runs as the injected job's own program, never imported by the library
# Functions that catch broadly. The runners record what they caught; the others open compressed bytes, whose library raises a type
# of its own that is loaded on demand, and raise again whatever is not that.
RUNNERS = {("rca/reading.py", "claimants"), ("rca/reading.py", "_read_with"), ("rca/reading.py", "_added"), ("rca/questions.py", "ask")}
DECOMPRESSION = {("rca/types.py", "blocks"), ("rca/archives.py", "unpack"), ("apps/remote.py", "_asked")}  # the last: a store's own types
CLOCKS = frozenset(
    {
        *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.sleep"),
        *("datetime.now", "datetime.utcnow", "datetime.today", "datetime.datetime.now", "date.today"),
    }
)
ENVIRONMENT = frozenset({"os.environ", "os.getenv", "os.environb", "os.putenv", "os.getcwd", "Path.home", "Path.cwd"})
NETWORK = frozenset({"socket", "urllib", "http", "ssl", "ftplib", "smtplib", "xmlrpc", "asyncio"})


@dataclass(frozen=True)
class Import:
    """An import and where it stands."""

    module: str
    line: int
    in_function: bool
    for_types_only: bool


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text("utf-8"), file)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports(file: str) -> list[Import]:
    """Every import of a file, those in functions included; `from package import module` counts as the module."""
    found = []

    def visit(node: ast.AST, *, in_function: bool, for_types_only: bool) -> None:
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            base = node.module or ""
            names = [f"{base}.{a.name}" if is_module(f"{base}.{a.name}") else base for a in node.names]
        found.extend(Import(name, node.lineno, in_function, for_types_only) for name in names)  # type: ignore[attr-defined]
        types_only = for_types_only or (isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"))
        for child in ast.iter_child_nodes(node):
            visit(child, in_function=inside, for_types_only=types_only)

    visit(tree(file), in_function=False, for_types_only=False)
    return found


def calls(file: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def fits(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def law_of(file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return next(law for pattern, law in LAW.items() if fnmatch.fnmatchcase(file, pattern))


def test_there_is_a_law_for_every_file() -> None:
    assert [file for file in FILES if not any(fnmatch.fnmatchcase(file, pattern) for pattern in LAW)] == []


@pytest.mark.parametrize("file", FILES)
def test_file_imports_only_what_its_layer_may(file: str) -> None:
    own, third = law_of(file)
    wrong = [
        f"line {i.line}: {i.module}"
        for i in imports(file)
        if (top := i.module.partition(".")[0]) not in STDLIB and not (fits(i.module, own) if top in PACKAGES else top in third)
    ]
    assert wrong == []


def test_duckdb_is_known_to_cases_and_to_the_reader_of_parquet_alone() -> None:
    """Parquet is read with it because a damaged file makes it raise an error, where polars ends the process (2.1.0, seen)."""
    users = {file for file in FILES for i in imports(file) if i.module.partition(".")[0] == "duckdb"}
    assert users <= {"rca/building.py", "rca/case.py", "collectors/parquet_tables.py"}


def test_zstandard_is_opened_by_the_source_alone() -> None:
    users = {file for file in FILES for i in imports(file) if i.module.partition(".")[0] == "zstandard"}
    assert {file for file in users if not file.startswith("rca/drills/")} == {"rca/types.py"}


def test_torch_is_used_by_drills_and_probes_alone() -> None:
    users = {file for file in FILES for i in imports(file) if i.module.partition(".")[0] == "torch"}
    assert [file for file in users if not file.startswith(("rca/drills/", "rca/probes/"))] == []


@pytest.mark.parametrize("file", [f for f in FILES if f not in (TRAINING_SCRIPT, COMPILED)])
def test_heavy_packages_are_imported_in_the_function_that_needs_them(file: str) -> None:
    heavy = [
        f"line {i.line}: {i.module}"
        for i in imports(file)
        if i.module.partition(".")[0] in IN_FUNCTIONS_ONLY and not i.in_function and not i.for_types_only
    ]
    assert heavy == []


def test_the_compiled_loops_are_imported_in_functions_alone() -> None:
    users = [(file, i.in_function) for file in FILES for i in imports(file) if i.module == "collectors._dump_kernels"]
    assert users
    assert all(in_function for _, in_function in users)


def test_training_script_of_the_drills_is_imported_by_nobody() -> None:
    assert [file for file in FILES for i in imports(file) if i.module == "rca.drills._job"] == []


def test_questions_never_import_each_other() -> None:
    wrong = [
        (file, i.module)
        for file in FILES
        if file.startswith("rca/analyses/")
        for i in imports(file)
        if i.module.startswith("rca.analyses.") and not i.module.split(".")[2].startswith("_")
    ]
    assert wrong == []


def test_plugins_are_imported_by_name_only_so_that_adding_one_touches_nothing_else() -> None:
    plugin = re.compile(r"(collectors|rca\.analyses|rca\.drills|rca\.probes|apps\.verbs|apps\.pages)\.[a-z0-9][a-z0-9_]*$")
    rooms = {file.removesuffix("/__init__.py").replace("/", ".") for file in FILES if file.endswith("/__init__.py")}
    assert [(file, i.module) for file in FILES for i in imports(file) if plugin.match(i.module) and i.module not in rooms] == []


def test_only_the_edge_prints() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file in FILES
        if not file.startswith(("apps/", TRAINING_SCRIPT))
        for node in ast.walk(tree(file))
        if (isinstance(node, ast.Call) and dotted(node.func) == "print") or dotted(node) in ("sys.stdout", "sys.stderr", "sys.__stdout__")
    ]
    assert found == []


def test_only_the_edge_and_the_drills_read_the_clock_the_environment_or_the_network() -> None:
    found = []
    for file in FILES:
        if file.startswith(("apps/", "rca/drills/", "rca/probes/", "rca/timing.py", "collectors/_capture/")):
            continue
        found += [f"{file}:{n.lineno}: {dotted(n)}" for n in ast.walk(tree(file)) if dotted(n) in CLOCKS | ENVIRONMENT]  # type: ignore[attr-defined]
        found += [f"{file}:{i.line}: {i.module}" for i in imports(file) if i.module.partition(".")[0] in NETWORK]
    assert found == []


def test_only_the_runners_and_decompression_catch_broadly() -> None:
    found: set[tuple[str, str]] = set()
    for file in FILES:
        functions = [n for n in ast.walk(tree(file)) if isinstance(n, ast.FunctionDef)]
        for node in ast.walk(tree(file)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {dotted(kind) if kind else "everything" for kind in kinds}
            if not names & {"everything", "Exception", "BaseException"}:
                continue
            where = [f.name for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)][-1]
            # polars raises its panics as no Exception: a runner that lets them through would end with one bad file
            assert names - {"pl.exceptions.PanicException"} == {"Exception"}, f"{file}:{node.lineno} catches {names}"
            found.add((file, where))
            if (file, where) in DECOMPRESSION:
                assert any(isinstance(n, ast.Raise) for n in ast.walk(node)), f"{file}:{node.lineno} hides what is no decompression error"
    assert found <= RUNNERS | DECOMPRESSION


def test_nothing_in_evidence_can_run() -> None:
    unsafe = {
        *("eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads"),
        *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "shelve.open", "yaml.load"),
    }
    found = []
    for file in FILES:
        for name, node in calls(file):
            shell = any(k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in node.keywords)
            if name in unsafe or shell:
                found.append(f"{file}:{node.lineno}: {name}")
        found += [f"{file}: {i.module}" for i in imports(file) if i.module in ("shelve", "dill", "cloudpickle", "joblib")]
    assert found == []


def test_a_number_in_evidence_is_of_ascii_digits() -> None:
    """`\\d` of text means the digits of every script: who reads a number says [0-9]. In bytes it is the same."""
    found = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file.startswith(("collectors/", "rca/"))
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"(?<!\\)(?:\\\\)*\\d", node.value)
    ]
    tables = (ROOT / "rca" / "catalogue").rglob("*.*")
    assert [*found, *(table.name for table in tables if table.suffix in (".csv", ".yaml") and "\\d" in table.read_text("utf-8"))] == []


def test_evidence_readers_touch_nothing_but_bytes() -> None:
    """Only `capture` may start programs or write."""
    touching = ("subprocess", "shutil", "tempfile", "multiprocessing", "ctypes", "threading")
    found = [
        f"{file}:{i.line}: {i.module}"
        for file in FILES
        if file.startswith(("collectors/", "rca/analyses/")) and not file.startswith("collectors/_capture/")
        for i in imports(file)
        if i.module.partition(".")[0] in touching
    ]
    assert found == []


@pytest.mark.parametrize("file", FILES)
def test_module_has_a_docstring_that_begins_with_a_sentence(file: str) -> None:
    first = (ast.get_docstring(tree(file)) or "").split("\n\n")[0].strip()
    assert first
    assert re.search(r"[.:?!]$|[.:?!]\s", first)


@pytest.mark.parametrize("file", [f for f in FILES if not f.endswith("__init__.py") and f != TRAINING_SCRIPT])
def test_public_names_of_a_module_are_listed_and_there(file: str) -> None:
    body = tree(file).body
    listed = [
        ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if dotted(target) == "__all__"
    ]
    assert len(listed) == 1, "no __all__"
    names = listed[0]
    defined = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {dotted(e) for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
    assert sorted(set(names) - defined) == []
    assert [name for name in names if name.startswith("_")] == []
    assert len(set(names)) == len(names)


def loaded_by(*words: str) -> set[str]:
    """Top-level packages that a Python command imports."""
    done = subprocess.run([sys.executable, "-X", "importtime", *words], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_import_rca_loads_nothing_but_the_standard_library() -> None:
    loaded = loaded_by("-S", "-c", "import rca")
    assert "rca" in loaded
    assert loaded - STDLIB - {"rca", "encodings"} == {"imported package"}


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_by("-c", "import sys; from apps.cli import main; sys.exit(main(['--help']))")
    assert "apps" in loaded
    assert loaded & {"polars", "duckdb", "torch", "sklearn", "scipy", "numpy", "zstandard", "plotly", "streamlit", "pandas"} == set()


def test_tables_are_declared_without_the_case_engine() -> None:
    loaded = loaded_by("-c", "import rca.tables, rca.causes, rca.types, rca.errors, rca.plugins")
    assert "polars" in loaded
    assert loaded & {"duckdb", "torch", "sklearn", "scipy", "zstandard"} == set()
