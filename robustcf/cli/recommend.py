"""``robustcf recommend``: labels in, labels out."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.opening import OpenedRun, code_option, opens_run
from robustcf.cli.reporting import Report, reports, say_capped
from robustcf.cli.words import ListCommand

if TYPE_CHECKING:
    from robustcf.data.interactions import Labels


# Numbers as they are written: 007 is no label 7.
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


@click.command(cls=ListCommand)
@click.option("--user", "users", multiple=True, metavar="LABEL...", help="Users of the run.")
@click.option(
    "--items", multiple=True, metavar="LABEL...", help="Instead: the items of a new user."
)
@click.option(
    "-k",
    "k",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Items per user.",
)
@opens_run()
@code_option
@reports
def recommend(
    opened: OpenedRun,
    users: tuple[str, ...],
    items: tuple[str, ...],
    k: int,
    allow_code: bool,
) -> Report:
    """Recommend items to users of RUN, or to a new user who has some items.

    Items that a user has in train or valid are left out. A new user is folded in: the best
    embedding for their items, those of the items held fixed; a vote serves them by their items.
    """
    if bool(users) == bool(items):
        raise click.UsageError("give either --user or --items")
    from robustcf.support.checks import check_cutoff

    check_cutoff("k", k)
    trained = opened.recommender(allow_code=allow_code)
    split = opened.split(trained)
    say_capped((k,), split.n_items)
    if users:
        ids = [_id("user", label, split.user_labels, split.n_users) for label in users]
        found = trained.recommend(split, ids, k)
    else:
        ids = [_id("item", label, split.item_labels, split.n_items) for label in items]
        found = [trained.fold_in(split, ids, k)]
    names = list(users) if users else ["new user"]
    lists: list[dict[str, Any]] = [
        {
            "user": name if users else None,
            "items": [_label(split.item_labels, item) for item in chosen],
            "scores": scores,
        }
        for name, (chosen, scores) in zip(names, found, strict=True)
    ]
    text = "\n".join(
        f"{name}: " + ", ".join(str(item) for item in entry["items"])
        for name, entry in zip(names, lists, strict=True)
    )
    return Report({"run": opened.path, "k": k, "recommendations": lists}, text)


def _id(kind: str, label: str, labels: Labels | None, count: int) -> int:
    """The id behind a label; without labels the ids themselves are the labels."""
    from robustcf.errors import InputError

    if labels is None:
        if label.isdecimal() and int(label) < count:
            return int(label)
        raise InputError(f"no {kind} {label!r} in this run: its {kind}s are 0 to {count - 1}")
    wanted: int | str | None = label
    if labels.dtype.kind != "U":
        wanted = int(label) if _INTEGER.fullmatch(label) else None
    found = [] if wanted is None else (labels == wanted).nonzero()[0]
    if len(found):
        return int(found[0])
    names: list[str] = labels.astype(str).tolist()
    close = difflib.get_close_matches(label, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"no {kind} {label!r} in this run{hint}")


def _label(labels: Labels | None, index: int) -> Any:
    return index if labels is None else labels[index].item()
