"""Words on a page. Text from evidence goes through `say`, `quote` or a table and nowhere else: streamlit shows these letter by letter.

Everything else that takes text (titles, labels, messages, metrics) reads Markdown, so it gets words of our own only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from apps.plain import one_line

if TYPE_CHECKING:
    from datetime import datetime

    import polars as pl

__all__ = ["STYLE", "chart", "fact", "problem", "quote", "say", "some", "table", "utc"]

# Ours, constant, and holding no text: sizes of what `say` prints inside a container of that key, and room at the top of the page.
STYLE = """<style>
.stMainBlockContainer {padding-top: 2.6rem; padding-bottom: 2rem; max-width: 1500px}
.stText {white-space: pre-wrap; overflow-wrap: anywhere}
.st-key-headline .stText {font-size: 1.45rem; font-weight: 600; line-height: 1.3}
.st-key-where .stText {opacity: 0.7; font-size: 0.85rem}
</style>"""


def say(text: str) -> None:
    """A line of text as it is."""
    import streamlit as st

    st.text(one_line(text))


def quote(lines: Iterable[str]) -> None:
    """Lines in a box from which they can be copied, as they are."""
    import streamlit as st

    st.code("\n".join(map(one_line, lines)), language=None, wrap_lines=True)


def fact(name: str, value: str) -> None:
    """A value from evidence under a name of ours."""
    import streamlit as st

    with st.container(gap=None):
        st.caption(name)
        say(value)


def problem(says: str, detail: str) -> None:
    """What went wrong: a sentence of ours, and the words of the error."""
    import streamlit as st

    st.error(says)
    quote([detail])


def table(frame: pl.DataFrame, *, key: str, labels: Sequence[str] = ()) -> None:
    """Rows as text, none interpreted."""
    import polars as pl
    import streamlit as st

    shown = frame.with_columns(pl.col(pl.String).map_elements(one_line, return_dtype=pl.String))
    shown = shown if not labels else shown.rename(dict(zip(frame.columns, labels, strict=True)))
    st.dataframe(shown, hide_index=True, key=key)


def chart(figure: Any, *, key: str) -> None:
    """A picture, in the colours of the page."""
    import streamlit as st

    st.plotly_chart(figure, key=key, config={"displaylogo": False, "displayModeBar": False})


def utc(at: datetime) -> str:
    """An instant to the millisecond: faults of a job lie closer together than a second."""
    return f"{at.strftime('%Y-%m-%d %H:%M:%S')}.{at.microsecond // 1000:03d} UTC"


def some(ranks: Sequence[int], limit: int = 12) -> str:
    return ", ".join(map(str, ranks[:limit])) + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")
