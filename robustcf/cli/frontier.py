"""``robustcf frontier``: clean quality against quality under attack, for a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robustcf.cli.options import data_options, out_option
from robustcf.cli.reporting import Report, command, say
from robustcf.cli.signatures import options


@command()
@options(
    "experiments.frontier:frontier",
    *("size", "kept", "minutes", "seed", "serve"),
    serve="training.config:SERVES",
)
@out_option("The preset to write, a .json file, with a picture next to it.", "FILE")
@data_options()
def frontier(dataset: str, out: str | None, data: dict[str, Any], **how: Any) -> Report:
    """Search for models that hold under attack, judged on validation data.

    The table shows the models that no other exceeds in both clean quality and quality under attack.
    Then: robustcf train --dataset NAME --preset FILE. Test data are not used.
    """
    from robustcf._runtime import threads_used
    from robustcf.data import load
    from robustcf.errors import InputError
    from robustcf.experiments.frontier import frontier as search
    from robustcf.experiments.frontier import write_frontier

    if out is not None and (Path(out).suffix != ".json" or Path(out).exists()):
        raise InputError(f"expected a new .json file for --out, got {out}: choose another name")
    split = load(dataset, **data)
    with threads_used(None, split.n_users, split.n_items):
        found = search(split, report=say, **how)
    text = str(found)
    if out is not None:
        write_frontier(found, out, split)
        picture = found.plot(Path(out).with_suffix(".png"))
        text += f"\npreset: {out}\npicture: {picture}"
    return Report({"preset": out, **found.as_dict()}, text)
