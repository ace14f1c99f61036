"""``robustcf certify``: certified lower bounds of a run, next to the results of attacks."""

from __future__ import annotations

from typing import Any

import click

from robustcf.cli.attack import places
from robustcf.cli.options import cutoffs_option, refuse, side_option, unit_options
from robustcf.cli.reporting import Report, command, numbers, say_capped, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import Opener, opens_run

_CERTIFY = "robustness.measuring:certify"
_OF_EMBEDDINGS = ("epsilons", "relative", "absolute", "side", "bound", "personal", "seed")


@command()
@options(_CERTIFY, "epsilons", "fakes", "reach", fakes=click.IntRange(0))
@unit_options
@side_option
@cutoffs_option
@options(_CERTIFY, "bound", bound="attacks.certificates.bounds:BOUNDS")
@click.option("--personal", is_flag=True, help="Also attack each user alone (slower).")
@options("robustness.table:AttackSpec", "seed")
@opens_run
def certify(
    run: str,
    opener: Opener,
    epsilons: tuple[float, ...],
    fakes: tuple[int, ...],
    reach: bool,
    ks: tuple[int, ...],
    **how: Any,
) -> Report:
    """Certify the rankings of RUN when every row of its factors moves by at most epsilon.

    No attack takes any user below the certified lower bounds. A quick attack by an attacker who
    knows the labels (fgm on softmax; 'robustcf attack' has the strongest) and the random control of
    the same sizes are shown next to them. Writes JSON, radii of all users and a picture into
    RUN/robustness.

    With --fakes, RUN is that of a vote, certified against any so many fake accounts. Writes JSON,
    values of all users and a picture into RUN/fakes. --reach adds the users to whom an item can be
    shown at most, and the share of today's recommendations that must stay.
    """
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf.experiments.results import certify_run
    from robustcf.robustness import Threat
    from robustcf.robustness.table import CERTIFIED_SIZES

    cutoffs = check_cutoffs(ks)
    if fakes:
        refuse("is about embeddings and has no effect with --fakes", *_OF_EMBEDDINGS)
        return _certify_vote(run, opener, fakes, cutoffs, reach)
    refuse("is about fake accounts: give --fakes, or", "reach")
    sizes = check_epsilons(epsilons or CERTIFIED_SIZES)
    threat = Threat(unit=how.pop("unit"), side=how.pop("side"), knowledge="labels")
    model = opener.recommender(run)
    say_capped(cutoffs, model.factors.n_items)
    curve, others, radii, facts = certify_run(run, model, threat, sizes, cutoffs, **how)
    first, last = cutoffs[0], cutoffs[-1]
    certified = (f"ndcg@{first}", f"mrr@{first}", f"recall@{last}")
    columns = {f"certified {metric}": curve[metric] for metric in certified}
    columns |= {
        f"{kind.replace('_', ' ')} {certified[0]}": other[certified[0]]
        for kind, other in others.items()
    }
    rows = [
        (f"{size:g}", *numbers([column[n] for column in columns.values()]))
        for n, size in enumerate(curve.epsilons)
    ]
    lines = [table(("epsilon", *columns), rows, left=()), str(radii), str(curve.protocol)]
    return Report(facts, "\n".join([*lines, *places(facts)]))


def _certify_vote(
    run: str, opener: Opener, fakes: tuple[int, ...], ks: tuple[int, ...], reach: bool
) -> Report:
    from robustcf.experiments.results import certify_vote_run
    from robustcf.models.voting.config import check_fakes

    check_fakes(fakes)
    model = opener.recommender(run)
    say_capped(ks, model.n_items)
    certified, reached, facts = certify_vote_run(run, model, fakes, ks, reach=reach)
    first, last = ks[0], ks[-1]
    shown = (f"precision@{first}", f"ndcg@{first}", f"hit_rate@{first}", f"recall@{last}")
    rows = [
        (f"{number:,}", *numbers([certified[metric][n] for metric in shown]))
        for n, number in enumerate(certified.fakes)
    ]
    voters = model.scorer.stored().facts["settings"]["groups"]
    what = (
        "fake accounts that are added, with any items"
        if voters is None
        else f"accounts that are added, altered or removed, in {voters:,} groups"
    )
    lines = [table(("fakes", *(f"certified {metric}" for metric in shown)), rows, left=())]
    lines += [f"lower bounds for so many {what}", str(certified.protocol)]
    lines += ["", *reached.lines()] if reached is not None else []
    return Report(facts, "\n".join([*lines, *places(facts)]))
