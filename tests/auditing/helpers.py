"""A small recommender to audit, naive top lists, and pages in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest

from robustcf.data import Split
from robustcf.recommender import Recommender


def small_split(seed=0, users=40, items=30, labels=False):
    """Random pairs: six for training and two held out per user."""
    rng = np.random.default_rng(seed)
    train, test = np.zeros((2, users, items))
    for user in range(users):
        chosen = rng.choice(items, 8, replace=False)
        train[user, chosen[:6]] = 1
        test[user, chosen[6:]] = 1
    named = {
        "user_labels": np.array([f"u{n}" for n in range(users)]),
        "item_labels": np.array([f"i{n}" for n in range(items)]),
    }
    return Split.from_csr(train, test, **(named if labels else {}))


def small_target(seed=0, dim=5, labels=False, **options):
    split = small_split(seed, labels=labels)
    rng = np.random.default_rng([seed, 1])
    users = rng.normal(size=(split.n_users, dim)).astype(np.float32)
    items = rng.normal(size=(split.n_items, dim)).astype(np.float32)
    return Recommender(users, items, split, **options)


def naive_top(users, items, seen, k=10):
    """The k best unseen items of each user, by plain loops."""
    lists = []
    for user in range(len(users)):
        have = set(seen.items_of(user).tolist())
        scores = {
            item: float(np.dot(users[user].astype(np.float64), items[item].astype(np.float64)))
            for item in range(len(items))
            if item not in have
        }
        lists.append(sorted(scores, key=lambda item: (-scores[item], item))[:k])
    return lists


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_MISSING = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def needs_browser(test):
    return _MISSING(pytest.mark.slow(test))


def _chromium(path, *options):
    return subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", f"--user-data-dir={path.parent.with_suffix('.profile')}"),
            *(*options, f"file://{path}"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def laid_out_by_browser(path):
    """The page after its scripts ran."""
    return _chromium(path, "--dump-dom").stdout


def shown(path, width, *options):
    """A picture of a page that wrote nothing to the console and asked nothing of the network."""
    from PIL import Image

    shot, log = path.with_suffix(".png"), path.with_suffix(".net.json")
    seen = _chromium(
        *(path, "--enable-logging=stderr", "--v=0", f"--log-net-log={log}"),
        *(f"--window-size={width},1200", f"--screenshot={shot}", *options),
    )
    assert shot.is_file(), seen.stderr
    assert "CONSOLE" not in seen.stderr
    requests = re.findall(r'"url":"(https?:[^"]+)"', log.read_text(errors="replace"))
    assert [url for url in requests if "google" not in url and "gstatic" not in url] == []
    with Image.open(shot) as picture:
        drawn = picture.convert("RGB")
        assert len(drawn.getcolors(2**24)) > 50  # something was drawn
        return drawn
