"""``robustcf recommend``: top-k lists by labels."""

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
    run: str, opener: Opener, users: tuple[str, ...], items: tuple[str, ...], k: int, **how: Any
) -> Report:
    """Recommend items to users of RUN, or to a new user who has some items.

    Items that a user has in train or valid are left out. A new user is folded in by the best
    embedding for their items; a vote serves them by their items.
    """
    if bool(users) == bool(items):
        raise click.UsageError("give either --user or --items")
    from robustcf._checks import check_cutoff

    check_cutoff("k", k)
    model = opener.recommender(run, **how)
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
    lines = [f"{one['user'] or 'new user'}: {', '.join(map(str, one['items']))}" for one in lists]
    return Report({"run": run, "k": k, "recommendations": lists}, "\n".join(lines))


def _typed(label: str, labels: Labels | None) -> int | str:
    """Return a label as typed, or the integer it spells where labels are integers."""
    numbers = labels is None or labels.dtype.kind != "U"
    return int(label) if numbers and _INTEGER.fullmatch(label) else label
