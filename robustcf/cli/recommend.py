"""``robustcf recommend``: labels in, labels out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.opening import OpenedRun, code_option, opens_run
from robustcf.cli.options import threads_option
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
@opens_run
@code_option
@threads_option
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
    from robustcf._checks import check_cutoff

    check_cutoff("k", k)
    model = opened.recommender(allow_code=allow_code)
    say_capped((k,), model.n_items)
    found = model.recommend(
        users=[_typed(label, model.user_labels) for label in users] or None,
        items=[_typed(label, model.item_labels) for label in items] or None,
        k=k,
        as_ids=True,
    )
    names = list(users) if users else ["new user"]
    lists: list[dict[str, Any]] = [
        {
            "user": name if users else None,
            "items": [
                item if model.item_labels is None else model.item_labels[item].item()
                for item in chosen[chosen >= 0].tolist()
            ],
            "scores": scores[chosen >= 0].tolist(),
        }
        for name, chosen, scores in zip(names, *found, strict=True)
    ]
    text = "\n".join(
        f"{name}: " + ", ".join(str(item) for item in entry["items"])
        for name, entry in zip(names, lists, strict=True)
    )
    return Report({"run": opened.path, "k": k, "recommendations": lists}, text)


def _typed(label: str, labels: Labels | None) -> int | str:
    """A label as it was typed, as the integer it stands for where labels are integers."""
    numbers = labels is None or labels.dtype.kind != "U"
    return int(label) if numbers and _INTEGER.fullmatch(label) else label
