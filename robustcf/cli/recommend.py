"""``robustcf recommend``: labels in, labels out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.kinds import COUNT
from robustcf.cli.reporting import Report, command, say_capped
from robustcf.cli.sources import Opener, code_option, opens_run

if TYPE_CHECKING:
    from robustcf.data.interactions import Labels

# Numbers as they are written: 007 is not the label 7.
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


@command()
@click.option("--user", "users", multiple=True, metavar="LABEL...", help="Users of the run.")
@click.option(
    "--items", multiple=True, metavar="LABEL...", help="Instead: the items of a new user."
)
@click.option("-k", "k", type=COUNT, default=10, show_default=True, help="Items per user.")
@opens_run
@code_option
def recommend(
    run: str,
    opener: Opener,
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
    model = opener.recommender(run, allow_code=allow_code)
    say_capped((k,), model.n_items)
    found = model.recommend(
        users=[_typed(label, model.user_labels) for label in users] or None,
        items=[_typed(label, model.item_labels) for label in items] or None,
        k=k,
        as_ids=True,
    )
    labels = model.item_labels
    lists: list[dict[str, Any]] = []
    for name, chosen, scores in zip(users or (None,), *found, strict=True):
        ids = chosen[chosen >= 0]
        named = (ids if labels is None else labels[ids]).tolist()
        lists.append({"user": name, "items": named, "scores": scores[chosen >= 0].tolist()})
    text = "\n".join(
        f"{entry['user'] or 'new user'}: {', '.join(map(str, entry['items']))}" for entry in lists
    )
    return Report({"run": run, "k": k, "recommendations": lists}, text)


def _typed(label: str, labels: Labels | None) -> int | str:
    """A label as it was typed, as the integer it stands for where labels are integers."""
    numbers = labels is None or labels.dtype.kind != "U"
    return int(label) if numbers and _INTEGER.fullmatch(label) else label
