"""LensKit, rectools, LightFM and RecBole by models that these libraries trained.

``fixtures/make.py`` says how they were made and makes them again. Of a live object, what the
adapter reads was frozen; of RecBole, its own files. ``own`` are scores that the library computed.
"""

from __future__ import annotations

import json
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from robustcf.adapters import from_lenskit, from_lightfm, from_rectools
from robustcf.adapters.reading import read
from tests.adapters.helpers import saved_import

FIXTURES = Path(__file__).parent / "fixtures"


def frozen(library, name):
    """The arrays of one model, by their names."""
    with np.load(FIXTURES / f"{library}.npz") as arrays:
        return {
            key.removeprefix(f"{name}."): arrays[key]
            for key in arrays.files
            if key.startswith(f"{name}.")
        }


def apart(found, own):
    scores = (found.factors.users.double() @ found.factors.items.double().T).numpy()
    return scores - own


@pytest.mark.parametrize("library", ["lenskit", "rectools", "lightfm", "recbole"])
def test_fixtures_say_how_they_were_made(library):
    with np.load(FIXTURES / f"{library}.npz") as arrays:
        about = json.loads(str(arrays["about"]))
    assert "numpy" in about
    assert len(about) > 1
    assert (FIXTURES / f"{library}.npz").stat().st_size < 20_000


# FlexMF was told to learn biases, but in this version of LensKit they stay out of the scores.
@pytest.mark.parametrize(
    ("name", "fixed"),
    [("implicit", ()), ("biased", (3, 4)), ("funksvd", (3, 4)), ("flexmf", ()), ("lightgcn", ())],
)
def test_lenskit(name, fixed):
    saved = frozen("lenskit", name)
    scorer = types.SimpleNamespace(
        users=types.SimpleNamespace(ids=lambda: saved["users"]),
        items=types.SimpleNamespace(ids=lambda: saved["items"]),
    )
    if "layers" in saved:
        model = types.SimpleNamespace(layers=int(saved["layers"]))
        for side in "ui":
            for part in ("embed", "bias"):
                value = saved.get(f"{side}_{part}")
                tensor = None if value is None else torch.from_numpy(value)
                holder = None if tensor is None else types.SimpleNamespace(weight=tensor)
                setattr(model, f"{side}_{part}", holder)
            layers = saved.get(f"{side}_layers")
            setattr(model, f"{side}_layers", None if layers is None else torch.from_numpy(layers))
        scorer.model = model
    else:
        scorer.user_embeddings = saved["user_embeddings"]
        scorer.item_embeddings = saved["item_embeddings"]
        if "item_biases" in saved:
            scorer.bias = types.SimpleNamespace(
                user_biases=saved["user_biases"], item_biases=saved["item_biases"]
            )
    found = from_lenskit(scorer)
    difference = apart(found, saved["own"])
    # A global mean is added to all scores alike: no ranking shows it.
    assert np.abs(difference - difference.mean()).max() < 1e-6
    assert found.fixed == fixed
    assert found.user_labels.tolist() == saved["users"].tolist()
    assert found.item_labels.tolist() == saved["items"].tolist()


@pytest.mark.parametrize(
    ("name", "fixed"), [("als", ()), ("bpr", (3,)), ("svd", ()), ("lightfm", (0, 1))]
)
def test_rectools(name, fixed):
    saved = frozen("rectools", name)
    ids = [types.SimpleNamespace(external_ids=saved[kind]) for kind in ("users", "items")]
    dataset = types.SimpleNamespace(user_id_map=ids[0], item_id_map=ids[1])
    both = saved["left"], saved["right"]
    model = types.SimpleNamespace()
    if name == "svd":
        model.user_factors, model.item_factors = both
    elif name == "lightfm":
        model.get_vectors = lambda dataset: both
    else:
        model.get_vectors = lambda: both
    found = from_rectools(model, dataset=dataset)
    assert np.abs(apart(found, saved["own"])).max() < 1e-6
    assert found.fixed == fixed
    assert found.item_labels.tolist() == saved["items"].tolist()


@pytest.mark.parametrize("name", ["plain", "features"])
def test_lightfm(name):
    saved = frozen("lightfm", name)
    features = saved.get("user_features")

    def folded(side, given):
        own = saved[f"{side}_biases"], saved[f"{side}_embeddings"]
        return own if given is None else tuple(given @ part for part in own)

    maps = [{label: n for n, label in enumerate(saved[k].tolist())} for k in ("users", "items")]
    model = types.SimpleNamespace(
        user_embeddings=saved["user_embeddings"],
        item_embeddings=saved["item_embeddings"],
        get_user_representations=lambda given=None: folded("user", given),
        get_item_representations=lambda given=None: folded("item", given),
    )
    dataset = types.SimpleNamespace(mapping=lambda: (maps[0], {}, maps[1], {}))
    found = from_lightfm(model, dataset=dataset, user_features=features)
    assert np.abs(apart(found, saved["own"])).max() < 1e-6
    assert found.fixed == (3, 4)
    assert found.item_labels.tolist() == saved["items"].tolist()


@pytest.mark.parametrize("name", ["BPR", "LightGCN"])
def test_recbole_files(tmp_path, name):
    """Files that RecBole wrote, read where there is no RecBole."""
    with np.load(FIXTURES / "recbole.npz") as arrays:
        own, users, items = arrays[f"{name}.own"], arrays["users"], arrays["items"]
    found = read(FIXTURES / f"recbole-{name}.pth", dataset_file=FIXTURES / "recbole-dataset.pth")
    assert np.abs(apart(found, own)).max() < 1e-6
    assert found.user_labels.astype(str).tolist() == users.tolist()
    assert found.item_labels.astype(str).tolist() == items.tolist()
    assert any(name in note for note in found.notes)
    cells = np.argwhere(np.random.default_rng(0).random((14, 11)) < 0.5)  # as make.py drew them
    table = tmp_path / "pairs.csv"
    lines = [f"u{user},{item * 7}" for user, item in cells]
    table.write_text("\n".join(["user,item", *lines, ""]))
    made = saved_import(found, table, tmp_path / "run", check=False)  # two epochs know little
    assert made.training["format"] == "recbole pth"
    assert made.split.n_users == 14
