"""Progress bars: on in a terminal and in a notebook, off in pipes and logs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from robustcf._distributed import job

if TYPE_CHECKING:
    from tqdm import tqdm


def shows(progress: bool | None = None) -> bool:
    """Return whether to show a bar: as the caller says, else in a terminal or a notebook."""
    if progress is not None:
        return progress
    return job().first and (_in_notebook() or (sys.stderr is not None and sys.stderr.isatty()))


def bar(
    total: int | None, title: str, unit: str, progress: bool | None = None, **options: Any
) -> tqdm[Any]:
    """Return a bar of tqdm, one of the notebook's own kind in a notebook."""
    # On demand: tqdm.auto asks for the notebook's widgets.
    from tqdm import tqdm as plain

    kind: Any = plain
    # Without the widgets, tqdm.auto would warn and fall back to text.
    if _in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.auto import tqdm as kind
    shown: tqdm[Any] = kind(
        total=total, desc=title, unit=unit, disable=not shows(progress), **options
    )
    return shown


def _in_notebook() -> bool:
    """Return whether this runs in a Jupyter kernel; IPython is not imported for it."""
    shell = sys.modules.get("IPython")
    get = getattr(shell, "get_ipython", None)
    return get is not None and type(get()).__name__ == "ZMQInteractiveShell"
