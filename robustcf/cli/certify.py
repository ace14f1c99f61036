"""``robustcf certify``: what a trained run keeps under any attack, next to what attacks take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from robustcf.cli.kinds import FINITE
from robustcf.cli.options import cutoffs_option, refuse, side_option, unit_options
from robustcf.cli.reporting import Report, command, numbers, say_capped, table
from robustcf.cli.signatures import choice, options
from robustcf.cli.sources import Opener, opens_run

if TYPE_CHECKING:
    from robustcf.robustness import CertifiedRadii, RobustnessCurve

_OF_EMBEDDINGS = ("epsilons", "relative", "absolute", "side", "bound", "personal", "seed")


@command()
@click.option(
    "--epsilons",
    type=FINITE,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.002 0.005 0.01 0.02 0.05 0.1).",
)
@click.option(
    "--fakes",
    type=click.IntRange(0),
    multiple=True,
    metavar="N...",
    help="Numbers of fake accounts to certify a vote against ('train --model vote'), ascending.",
)
@unit_options
@side_option
@cutoffs_option
@options("robustness.table:AttackSpec", "bound", bound=choice("attacks.certificates.bounds:BOUNDS"))
@click.option(
    "--personal",
    is_flag=True,
    help="Also run the worst attack on each user alone (slower).",
)
@options("robustness.table:AttackSpec", "seed")
@opens_run
def certify(
    run: str,
    opener: Opener,
    epsilons: tuple[float, ...],
    fakes: tuple[int, ...],
    unit: str,
    side: str,
    ks: tuple[int, ...],
    bound: str,
    personal: bool,
    seed: int,
) -> Report:
    """Certify the rankings of RUN when every row of its factors moves by at most epsilon.

    No attack takes any user below the certified lower bounds. A quick attack by an attacker who
    knows the labels (fgm on softmax; 'robustcf attack' has the strongest) and the random control of
    the same sizes are shown next to them. Writes JSON, radii of all users and a picture into
    RUN/robustness.

    With --fakes, RUN is that of a vote: so many fake accounts, whatever they hold, do not take it
    below the certified lower bounds. Writes JSON, values of all users and a picture into RUN/fakes.
    """
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf.experiments.results import certify_run
    from robustcf.robustness import Threat
    from robustcf.robustness.table import CERTIFIED_SIZES

    cutoffs = check_cutoffs(ks)
    if fakes:
        refuse("is about embeddings and has no effect with --fakes", *_OF_EMBEDDINGS)
        return _certify_vote(run, opener, fakes, cutoffs)
    sizes = check_epsilons(epsilons or CERTIFIED_SIZES)
    threat = Threat(unit=unit, side=side, knowledge="labels")
    model = opener.recommender(run)
    say_capped(cutoffs, model.factors.n_items)
    curve, others, radii, facts = certify_run(
        run, model, threat, sizes, cutoffs, bound=bound, personal=personal, seed=seed
    )
    lines = [_text(curve, others, radii, cutoffs), str(curve.protocol)]
    return Report(facts, "\n".join([*lines, *_places(facts)]))


def _certify_vote(run: str, opener: Opener, fakes: tuple[int, ...], ks: tuple[int, ...]) -> Report:
    from robustcf.experiments.results import certify_vote_run
    from robustcf.models.voting.config import check_fakes

    check_fakes(fakes)
    model = opener.recommender(run)
    say_capped(ks, model.n_items)
    certified, facts = certify_vote_run(run, model, fakes, ks)
    first, last = ks[0], ks[-1]
    shown = (f"precision@{first}", f"ndcg@{first}", f"hit_rate@{first}", f"recall@{last}")
    rows = [
        (f"{number:,}", *numbers([certified[metric][n] for metric in shown]))
        for n, number in enumerate(certified.fakes)
    ]
    voters = model.scorer.stored().facts["settings"]["groups"]
    what = (
        "fake accounts that are added, whatever they hold"
        if voters is None
        else f"accounts that are added, altered or removed, in {voters:,} groups"
    )
    lines = [table(("fakes", *(f"certified {metric}" for metric in shown)), rows, left=())]
    lines += [f"lower bounds for so many {what}", str(certified.protocol), *_places(facts)]
    return Report(facts, "\n".join(lines))


def _places(facts: Mapping[str, object]) -> list[str]:
    replaced = [f"replaced an earlier result of the same settings: {facts['file']}"]
    return [*(replaced if facts["replaced"] else []), f"picture: {facts['picture']}"]


def _text(
    curve: RobustnessCurve,
    others: Mapping[str, RobustnessCurve],
    radii: CertifiedRadii,
    ks: tuple[int, ...],
) -> str:
    first, last = ks[0], ks[-1]
    certified = (f"ndcg@{first}", f"mrr@{first}", f"recall@{last}")
    columns = (f"{kind.replace('_', ' ')} {certified[0]}" for kind in others)
    header = ("epsilon", *(f"certified {metric}" for metric in certified), *columns)
    rows = [
        (
            f"{size:g}",
            *numbers([curve[metric][n] for metric in certified]),
            *numbers([other[certified[0]][n] for other in others.values()]),
        )
        for n, size in enumerate(curve.epsilons)
    ]
    lines = [table(header, rows, left=())]
    for name, found in radii.as_dict().items():
        middle = "unbounded" if found["median"] is None else f"{found['median']:.3g}"
        what = "the first item" if name == "top1" else f"the set of the {name.replace('p', 'p ')}"
        lines.append(f"median certified radius of {what}: {middle}")
    exact = ", exact for every pair of items" if radii.bound == "tight" else ""
    moved = "users and items" if curve.threat.side == "both" else curve.threat.side
    units = curve.threat.unit_words
    lines.append(f"{radii.bound} bound{exact}; row budget on {moved}, {units}")
    return "\n".join(lines)
