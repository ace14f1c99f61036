"""The directive ``executed``: Python that runs while its page is built, and what it printed.

The blocks of a page run in order, in one namespace and one temporary folder; the page shows the
code and the output. An exception stops the build, so an example that is shown works. With
``:file: NAME`` a block is written to that file in the folder instead, where later blocks can
import it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

import robustcf


class Page:
    """What the blocks of one page share: names, a temporary folder, modules written into it.

    Args:
        name: of the page, for messages.
    """

    def __init__(self, name: str) -> None:
        """Make the folder."""
        self.name = name
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self._made = TemporaryDirectory(prefix="robustcf-docs-")
        self.folder = Path(self._made.name).resolve()

    def run(self, code: str, line: int = 1) -> str:
        """Run a block that starts at a line of the page, and return what it printed.

        Raises:
            ExtensionError: the block raised something.
        """
        # Blank lines in front, so that a traceback counts lines as the page does.
        padded = "\n" * (line - 1) + code
        printed = io.StringIO()
        with self._inside(), contextlib.redirect_stdout(printed):
            try:
                exec(compile(padded, self.name, "exec"), self.names)
            except Exception as error:
                raise ExtensionError(
                    f"{self.name}:{line}: this block fails\n{code}\n{traceback.format_exc()}"
                ) from error
        return printed.getvalue()

    def write(self, file: str, code: str) -> None:
        """Keep a block as a file of the folder."""
        (self.folder / file).write_text(code + "\n", encoding="utf-8")

    def close(self) -> None:
        """Remove the folder, and forget the modules that came from it."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]
        self._made.cleanup()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """The folder as working directory, as home of caches, and first on the module path."""
        own = {"ROBUSTCF_CACHE": str(self.folder / ".cache")}
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, own),
            mock.patch.object(sys, "path", [str(self.folder), *sys.path]),
        ):
            yield


class Executed(SphinxDirective):
    """Run the content, or write it to a file; show it and what it printed."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"file": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The nodes of code and output."""
        name = self.env.docname
        if name not in _pages:
            note_package(self.env)
            _pages[name] = Page(f"{name}.md")
        page, code = _pages[name], "\n".join(self.content)
        shown = nodes.literal_block(code, code, language="python")
        if file := self.options.get("file"):
            page.write(file, code)
            title = nodes.caption("", "", nodes.literal("", file))
            return [nodes.container("", title, shown, literal_block=True,
                                    classes=["literal-block-wrapper"])]  # fmt: skip
        printed = page.run(code, self.lineno + 1).rstrip()
        if not printed:
            return [shown]
        output = nodes.literal_block(printed, printed, language="text", classes=["printed"])
        return [shown, output]


def note_package(env: BuildEnvironment) -> None:
    """Read a page again whenever a file of the package has changed."""
    for path in Path(robustcf.__file__).parent.rglob("*.py"):
        env.note_dependency(str(path))


# Pages that are being read, by name.
_pages: dict[str, Page] = {}


def _note_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Run a notebook again, too, whenever a file of the package has changed."""
    if Path(app.env.doc2path(docname)).suffix == ".ipynb":
        note_package(app.env)


def _close(app: Sphinx, doctree: nodes.document) -> None:
    page = _pages.pop(app.env.docname, None)
    if page is not None:
        page.close()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("executed", Executed)
    app.connect("source-read", _note_notebook)
    app.connect("doctree-read", _close)
    # Blocks change the working directory, which is one for all threads.
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
