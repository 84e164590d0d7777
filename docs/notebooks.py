"""Runs the notebooks and keeps what their cells print, as text; pictures are left out, they would be megabytes.

python docs/notebooks.py     run both, write the outputs into them
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
WAIT_S = 300  # for one cell


def executed(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run of now; raises where a cell does."""
    import nbformat
    from nbclient import NotebookClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's transport, which stays on this machine
        book = nbformat.read(path, as_version=4)
        NotebookClient(book, timeout=WAIT_S, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in book.cells:
        cell.metadata.clear()
        cell.pop("execution_count", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [kept for output in cell.outputs if (kept := _as_text(output)) is not None]
    return dict(book)


def _as_text(output: dict[str, Any]) -> dict[str, Any] | None:
    """What is printed or shown as text; a picture says only that it is one."""
    if output["output_type"] == "stream":
        return output if output["name"] == "stdout" else None
    data = output.get("data", {})
    is_picture = any("plotly" in kind for kind in data)
    output["data"] = {"text/plain": "(a chart; run the notebook to see it)" if is_picture else data.get("text/plain", "")}
    output["metadata"] = {}
    if "execution_count" in output:
        output["execution_count"] = None
    return output


def main() -> int:
    """Run and keep."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        book = nbformat.from_dict(executed(path))
        nbformat.write(book, path)
        sys.stderr.write(f"notebooks/{path.name}: run\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
