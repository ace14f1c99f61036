"""``report.md``: what a sweep found, said in its first lines, and then the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robustcf._io.files import write_bytes
from robustcf._io.text import counted
from robustcf._runtime import environment
from robustcf.experiments.comparison import METHOD
from robustcf.experiments.grids import markdown
from robustcf.experiments.sweeps.plan import CONTROLS, control_of
from robustcf.experiments.sweeps.summary import METRIC, SHOWN, Summary, axis
from robustcf.robustness.curves import uneven_words
from robustcf.robustness.table import AUTO, CERTIFICATE, RANDOM

_BCE = "fgm-bce"
_BESIDE = {
    RANDOM: "the same budget in a random direction",
    CONTROLS["pgd"]: "the worse of two random directions, one for all users",
    CONTROLS[AUTO]: "the worst of as many random directions as `auto` has members, one for all "
    "users",
    CERTIFICATE: "certified lower bound on the mean, valid for every attack of this size",
}


def write_report(summary: Summary) -> None:
    """Write ``report.md`` into the folder of the sweep."""
    parts = [
        f"# {summary.plan.model} on {summary.first.facts['protocol']['dataset']} under attack",
        "## What the result says",
        "\n".join(f"- `{name}` is {summary.words(name)}." for name in summary.curves),
        "\n".join(f"- {finding}" for finding in findings(summary)),
        "## Curves",
        *(_attack_section(summary, attack) for attack in summary.attacks),
        *(_beside(summary, name, words) for name, words in _BESIDE.items()),
        "## Differences",
        f"Difference of {METRIC}, first minus second, mean over seeds. {METHOD}.",
        *(_difference_table(summary, attack) for attack in summary.comparisons),
        "## How it was made",
        _how(summary),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_bytes(summary.out / "report.md", text.encode())


def findings(summary: Summary) -> list[str]:
    """What the numbers support, in sentences; the dependence on the attack before all."""
    return [
        *_attack_dependence(summary),
        *_weaker_than_noise(summary),
        *_uneven(summary),
        *(_order(summary, attack) for attack in sorted(summary.attacks, key=_after_auto)),
        *_certified_order(summary),
        *(
            f"`{attack}`: {sentence}"
            for attack, found in summary.comparisons.items()
            for sentence in found.words()
        ),
    ]


def _attack_dependence(summary: Summary) -> list[str]:
    """Pairs of settings whose order by area is another one under another attack."""
    verdicts: dict[tuple[str, str], dict[str, int]] = {}
    for attack in summary.attacks if summary.comparisons else ():
        for contrast in summary.comparisons[attack].contrasts:
            pair = (contrast.first, contrast.second)
            verdicts.setdefault(pair, {})[attack] = int(contrast.verdict[0])
    sentences = []
    for (first, second), by_attack in verdicts.items():
        ahead = [attack for attack, verdict in by_attack.items() if verdict == 1]
        behind = [attack for attack, verdict in by_attack.items() if verdict == -1]
        if not ahead or not behind:
            continue
        # The gain to doubt is the one under the paper's attack, else the first one's.
        if _BCE in behind:
            first, second, ahead, behind = second, first, behind, ahead
        gain = "the cross-entropy gradient" if _BCE in ahead else _names(ahead)
        sentences.append(
            f"**The order depends on the attack.** {first} is ahead of {second} under "
            f"{_names(ahead)} and behind under {_names(behind)} (area under {METRIC}): what it "
            f"gains belongs to attacks by {gain}, it is not robustness in general."
        )
    return sentences


def _weaker_than_noise(summary: Summary) -> list[str]:
    sentences = []
    for attack in summary.attacks:
        weak = [
            f"{setting} ({summary.area(attack, setting):.4f}, noise "
            f"{summary.area(control_of(attack), setting):.4f})"
            for setting in summary.settings
            if summary.area(attack, setting) > summary.area(control_of(attack), setting)
        ]
        if weak:
            sentences.append(
                f"`{attack}` does less harm than random noise of the same size, by area, to "
                f"{', '.join(weak)}: there it measures little."
            )
    return sentences


def _uneven(summary: Summary) -> list[str]:
    """Settings for which the unit of a relative row budget says little."""
    if summary.plan.unit != "relative" or summary.plan.budget != "row":
        return []
    words = {
        setting: uneven_words(curves[0].facts.get("unevenness", {}))
        for setting, curves in summary.curves[summary.attacks[0]].items()
    }
    return [
        f"{setting}: {found}. A size in medians is small for the long rows, which rank first, "
        "so its curves flatter it. With `--relative own` every row has a unit of its own."
        for setting, found in words.items()
        if found
    ]


def _order(summary: Summary, attack: str) -> str:
    areas = {setting: summary.area(attack, setting) for setting in summary.settings}
    ranked = sorted(areas, key=lambda setting: -areas[setting])
    shown = ", ".join(f"{setting} {areas[setting]:.4f}" for setting in ranked)
    quote = ", the headline attack" if attack == AUTO else ""
    return f"Area under {METRIC} against `{attack}`{quote}, mean over seeds: {shown}."


def _after_auto(attack: str) -> bool:
    return attack != AUTO


def _certified_order(summary: Summary) -> list[str]:
    if CERTIFICATE not in summary.curves:
        return []
    areas = {setting: summary.area(CERTIFICATE, setting) for setting in summary.settings}
    ranked = sorted(areas, key=lambda setting: -areas[setting])
    shown = ", ".join(f"{setting} {areas[setting]:.4f}" for setting in ranked)
    return [f"Certified against every attack, area under {METRIC}, mean over seeds: {shown}."]


def _names(attacks: Sequence[str]) -> str:
    return " and ".join(f"`{attack}`" for attack in attacks)


def _attack_section(summary: Summary, attack: str) -> str:
    tables = [_metric_table(summary, attack, metric) for metric in SHOWN]
    return "\n\n".join([f"### `{attack}`", f"![{attack}]({attack}.png)", *tables])


def _beside(summary: Summary, name: str, words: str) -> str:
    tables = [
        _metric_table(summary, name, metric) for metric in SHOWN if metric in summary.metrics(name)
    ]
    return "\n\n".join([f"### `{name}`: {words}", *tables]) if tables else ""


def _metric_table(summary: Summary, attack: str, metric: str) -> str:
    header = [f"{metric}, mean (lowest to highest seed)"]
    header += [f"{size:g}" for size in summary.plan.epsilons]
    rows = []
    for setting in summary.settings:
        values = summary.values(attack, setting, metric)
        cells = [setting]
        for column in values.T:
            spread = f" ({column.min():.4f} to {column.max():.4f})" if len(column) > 1 else ""
            cells.append(f"{column.mean():.4f}{spread}")
        rows.append(cells)
    return markdown(header, rows)


def _difference_table(summary: Summary, attack: str) -> str:
    found = summary.comparisons[attack]
    places = ["area", *(f"{size:g}" for size in found.epsilons)]
    rows = []
    for contrast in found.contrasts:
        cells = [
            f"{contrast.difference[n]:+.4f} [{contrast.lower[n]:+.4f}, {contrast.upper[n]:+.4f}] "
            f"p {contrast.p_holm[n]:.2g}"
            for n in range(len(places))
        ]
        rows.append([f"{contrast.first} - {contrast.second}", *cells])
    return markdown([f"`{attack}`", *places], rows)


def _how(summary: Summary) -> str:
    plan, protocol = summary.plan, summary.first.facts["protocol"]
    masked = " and ".join(protocol["masked"])
    versions = environment()["packages"]
    seeds = f"{counted(len(plan.seeds), 'seed')} ({', '.join(map(str, plan.seeds))})"
    lines = [
        f"- Protocol: {protocol['dataset']}, {protocol['part']}: all {protocol['n_items']:,} items "
        f"ranked, pairs of {masked} masked, mean over {protocol['n_users']:,} users.",
        f"- Attack size: {axis(summary.first.facts)}.",
        f"- {seeds} per setting; intervals are over users, the spread over seeds is shown too.",
        f"- Command: `{plan.command()}`",
        f"- Threads per run: {plan.threads}. Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
        "- Training settings (those that differ between settings, then those shared):",
        "",
        _settings_table(summary),
    ]
    return "\n".join(lines)


def _settings_table(summary: Summary) -> str:
    every = summary.settings
    keys = list(dict.fromkeys(key for values in every.values() for key in values if key != "seed"))
    first = next(iter(every.values()))
    differ = [
        key for key in keys if any(values.get(key) != first.get(key) for values in every.values())
    ]
    shared = [key for key in keys if key not in differ]
    rows: list[list[str]] = [
        [key, *(_plain(values.get(key, "-")) for values in every.values())] for key in differ
    ]
    text = markdown(["setting", *every], rows) if rows else ""
    return f"{text}\n\nShared: {', '.join(f'{key} {_plain(first[key])}' for key in shared)}."


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
