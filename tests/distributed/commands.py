"""Run by torchrun: several commands in one job, to save the start. Arguments: a file of JSON.

The file holds a list of command lines; what each prints on the first rank goes, line by line, to
stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from robustcf._distributed import joined
from robustcf.cli.main import cli

if __name__ == "__main__":
    with joined():
        for words in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            cli.main(words, prog_name="robustcf", standalone_mode=False)
            sys.stdout.flush()
