"""``python -m robustcf`` is ``robustcf``."""

from robustcf.cli.main import main

main()
