"""Run by torchrun: several commands in one job, to save the start. Arguments: a file of JSON.

The file holds a list of command lines; what each prints on the first rank goes, line by line, to
stdout. The one thing that differs between runs, the time of a query, is set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

from robustcf._distributed import joined
from robustcf.cli.main import cli

if __name__ == "__main__":
    with joined(), mock.patch("robustcf.auditing.serving._microseconds", return_value=7.0):
        for words in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            cli.main(words, prog_name="robustcf", standalone_mode=False)
            sys.stdout.flush()
