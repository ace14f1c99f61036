"""``python -m robustcf`` is ``robustcf``."""

from robustcf.cli.entry import main

main()
