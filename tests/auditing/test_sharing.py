"""Model cards, and logging into the run of a tracker."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from robustcf.auditing import audit
from robustcf.errors import InputError
from tests.auditing.helpers import small_target
from tests.auditing.test_page import HOSTILE, hostile_target


def test_a_card_has_the_figures_and_hostile_text_stays_text():
    names = ["popularity", "attack", "certificate", "int8", "user_groups"]
    found = audit(hostile_target(), only=names, serve=["int8"], source=HOSTILE)
    card = found.card()
    for words in (
        "## Data",
        "## Threat model",
        "## Quality",
        "## Serving",
        "## Who loses",
        "## Limits",
    ):
        assert words in card
    assert f"{found['int8'].number:.4g}" in card
    assert f"{found['attack'].details['joint']:.4f}" in card
    assert "low activity" in card
    assert "<script" not in card
    assert card.startswith("---\nlibrary_name: robustcf\n")
    assert "No attack was run" in audit(small_target(0), only=["int8"]).card()


@pytest.mark.slow
def test_the_card_of_a_recommender():
    assert "## Threat model" in small_target(0).card()


class Client:
    """mlflow's functions that are called, as it documents them."""

    def __init__(self, active=None):
        self.active, self.ended, self.logged = active, False, {}

    def active_run(self):
        return self.active

    def start_run(self):
        self.active = SimpleNamespace(info=SimpleNamespace(run_id="new"))
        return self.active

    def end_run(self):
        self.ended = True

    def log_metrics(self, metrics):
        self.logged |= metrics

    def set_tag(self, name, value):
        self.logged[name] = value

    def log_artifact(self, path):
        with open(path, encoding="utf-8") as file:
            self.logged["page"] = file.read()


@pytest.mark.parametrize("active", [None, SimpleNamespace(info=SimpleNamespace(run_id="mine"))])
def test_numbers_and_page_are_logged_into_the_active_run(monkeypatch, active):
    client = Client(active)
    monkeypatch.setitem(sys.modules, "mlflow", client)
    found = audit(small_target(0), only=["int8", "norms"])
    assert found.log("mlflow") == ("new" if active is None else "mine")
    assert client.ended is (active is None)
    assert client.logged["audit.int8"] == found["int8"].number
    assert client.logged["audit.verdict"] == found.verdict
    assert 'id="verdict"' in client.logged["page"]


def test_numbers_and_page_are_logged_into_wandb(monkeypatch):
    logged = {}
    run = SimpleNamespace(id="w1", log=logged.update)
    client = SimpleNamespace(run=None, init=lambda: run, Html=lambda text: text)
    monkeypatch.setitem(sys.modules, "wandb", client)
    assert audit(small_target(0), only=["norms"]).log("wandb") == "w1"
    assert logged["audit.norms"] > 1
    assert 'id="verdict"' in logged["audit.html"]


@pytest.mark.filterwarnings("ignore")  # of mlflow and its dependencies
def test_a_local_file_store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "files").as_uri())
    mlflow.set_experiment("audits")
    found = audit(small_target(0), only=["int8", "norms"])
    with mlflow.start_run() as run:
        assert found.log() == run.info.run_id
    stored = mlflow.get_run(run.info.run_id)
    assert stored.data.metrics["audit.int8"] == pytest.approx(found["int8"].number)
    assert list((tmp_path / "files").rglob("audit.html"))


def test_a_missing_or_unknown_tracker(monkeypatch):
    found = audit(small_target(0), only=["norms"])
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"robustcf\[mlflow\]"):
        found.log("mlflow")
    with pytest.raises(InputError, match="mlflow, wandb"):
        found.log("paper")
