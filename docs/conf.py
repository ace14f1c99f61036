"""Sphinx configuration: MyST pages and notebooks, the furo theme, examples that run in the build.

Build with ``make docs``. Warnings are errors there.
"""

import inspect
import logging
import os
import re
import sys
from pathlib import Path

# One thread, so that printed figures do not depend on the number of cores. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from robustcf import __version__

project = "robustcf"
author = "The robustcf authors"
copyright = "The robustcf authors"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "executed",
    "commands",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

# Notebooks are committed without outputs and run in every build; one that fails stops it.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_output_stderr = "remove"  # progress bars
nb_merge_streams = True
for name in ("faiss.loader", "traitlets"):  # what is loaded, which kernel runs
    logging.getLogger(name).setLevel(logging.WARNING)

smartquotes_action = "D"  # dashes only

html_theme = "furo"
html_title = f"robustcf {__version__}"
html_static_path = ["_static"]
html_css_files = ["printed.css"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88


def plain_docstring(app, what, name, obj, options, lines):
    """Put right what napoleon and reStructuredText take for something else.

    A colon in the one paragraph of a property's docstring does not end its type; the bars of
    norms, ||A||, are not substitutions.
    """
    written = inspect.getdoc(obj) or ""
    if what == "property" and "\n\n" not in written:
        lines[:] = [*written.split("\n"), ""]
    text = re.sub(r"(``.*?``)|\|", lambda m: m[1] or r"\|", "\n".join(lines), flags=re.DOTALL)
    lines[:] = text.split("\n")


def setup(app):
    """Connect what the docstrings need, after napoleon has read them."""
    app.connect("autodoc-process-docstring", plain_docstring, priority=600)
