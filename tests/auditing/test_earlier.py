"""Comparison with an earlier audit: what is worse, by how much, outside the noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robustcf.auditing import audit
from robustcf.auditing.audit import SCHEMA
from robustcf.auditing.earlier import changes, read_audit
from robustcf.errors import InputError
from robustcf.factors import Factors
from tests.auditing.helpers import small_target

NAMES = ["fresh", "noise", "int8", "int4", "norms", "coverage", "hubs"]


def test_the_same_model_is_unchanged_and_a_spoilt_one_worse():
    target = small_target(0)
    before = json.loads(json.dumps(audit(target, only=NAMES).as_dict()))
    again = audit(target, only=NAMES, compare_with=before)
    assert {row["check"] for row in again.compared} == set(NAMES)
    assert not [row for row in again.compared if row["worse"] or row["better"]]
    assert again.failures(["worse"], {}) == []
    assert f"{len(NAMES)} numbers unchanged" in str(again)
    users, items = (part.clone() for part in target.factors)
    items[0] *= 100
    spoilt = target.with_factors(Factors(users, items))
    now = audit(spoilt, only=NAMES, compare_with=before)
    worse = {row["check"] for row in now.compared if row["worse"]}
    assert "norms" in worse
    assert any("norms is worse" in reason for reason in now.failures(["worse"], {}))
    assert "norms is worse" in str(now)


@pytest.mark.parametrize(
    ("old", "new", "errors", "better", "outcome"),
    [
        (0.5, 0.4, (0.05, 0.04), "higher", ("worse", False)),
        (0.5, 0.4, (0.03, 0.0), "higher", ("worse", True)),
        (0.5, 0.6, (0.01, 0.01), "higher", ("better", True)),
        (0.5, 0.6, (0.0, 0.0), "lower", ("worse", True)),
        (0.5, 0.5, (0.0, 0.0), "lower", ("worse", False)),
    ],
)
def test_noise_is_that_of_the_difference(old, new, errors, better, outcome):
    made = [
        {"checks": [{"check": "x", "number": n, "error": e, "threshold": {"better": better}}]}
        for n, e in zip((old, new), errors, strict=True)
    ]
    (row,) = changes(made[1], made[0])
    assert row[outcome[0]] is outcome[1]
    assert row["noise"] == pytest.approx(1.96 * np.hypot(*errors))
    assert row["change"] == pytest.approx(new - old)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[1]", "schema"),
        ('{"schema": 1}', "schema"),
        (f'{{"schema": {SCHEMA}, "checks": 3, "subject": {{}}}}', "checks"),
        (f'{{"schema": {SCHEMA}, "checks": [{{"check": 1}}], "subject": {{}}}}', "check"),
        ("{", "JSON"),
    ],
)
def test_other_files_are_refused(tmp_path, text, word):
    (tmp_path / "last.json").write_text(text)
    with pytest.raises(InputError, match=word):
        read_audit(tmp_path / "last.json", SCHEMA)
