"""Live models of other libraries, by stand-ins: odd cases, RecBole's kinds of models, and errors.

Models that LensKit, rectools, LightFM and RecBole trained are in test_frozen.py, implicit and
Cornac themselves in test_live.py. The stand-ins have the attributes and methods that the adapters
read, named and shaped as in the sources of these libraries. RecBole's files are made with
``torch.save`` and ``pickle`` while modules of its names exist, which are gone when they are read.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from robustcf.adapters import (
    from_cornac,
    from_implicit,
    from_lenskit,
    from_lightfm,
    from_recbole,
    from_rectools,
    from_torch,
)
from robustcf.adapters.reading import read
from robustcf.errors import DataError, InputError

RNG = np.random.default_rng(0)
LEFT, RIGHT = RNG.normal(size=(6, 3)), RNG.normal(size=(7, 3))


def scores_of(found):
    return (found.factors.users.double() @ found.factors.items.double().T).numpy()


def rectools_dataset(users=6, cold=0, items=7):
    return SimpleNamespace(
        user_id_map=SimpleNamespace(external_ids=np.arange(users + cold) * 10),
        item_id_map=SimpleNamespace(external_ids=np.array([f"item {n}" for n in range(items)])),
        n_hot_users=users,
        n_hot_items=items,
    )


def rectools_model(distance="DOT"):
    return SimpleNamespace(
        u2i_dist=SimpleNamespace(name=distance), user_factors=LEFT, item_factors=RIGHT
    )


def lightfm_model():
    return SimpleNamespace(
        user_embeddings=LEFT,
        item_embeddings=RIGHT,
        get_user_representations=lambda features=None: (np.arange(6.0), LEFT),
        get_item_representations=lambda features=None: (np.arange(7.0), RIGHT),
    )


def lightfm_dataset(users=6, **changed):
    maps = {f"u{n}": n for n in range(users)} | changed
    return SimpleNamespace(mapping=lambda: (maps, {}, {n * 2: n for n in range(7)}, {}))


def test_users_of_rectools_without_interactions_have_no_vector():
    found = from_rectools(rectools_model(), dataset=rectools_dataset(cold=2))
    np.testing.assert_allclose(scores_of(found), LEFT @ RIGHT.T)
    assert found.user_labels.tolist() == [0, 10, 20, 30, 40, 50]
    assert found.item_labels[1] == "item 1"


def test_lightfm_without_its_dataset():
    found = from_lightfm(lightfm_model())
    own = LEFT @ RIGHT.T + np.arange(6.0)[:, None] + np.arange(7.0)
    np.testing.assert_allclose(scores_of(found), own)
    assert (found.fixed, found.user_labels) == ((3, 4), None)


def test_implicit_on_a_gpu():
    """Its matrices live on the GPU and come back by to_numpy."""
    model = SimpleNamespace(
        user_factors=SimpleNamespace(to_numpy=lambda: np.eye(3, 2, dtype=np.float32)),
        item_factors=SimpleNamespace(to_numpy=lambda: np.eye(4, 2, dtype=np.float32)),
    )
    found = from_implicit(model, user_labels=["a", "b", "c"])
    assert found.factors.n_items == 4
    assert found.user_labels.tolist() == ["a", "b", "c"]


def test_cornac_by_its_train_set():
    ids = SimpleNamespace(uid_map={"a": 0, "b": 1}, iid_map=None)
    found = from_cornac(SimpleNamespace(U=np.eye(2), V=np.eye(3, 2), train_set=ids))
    assert found.user_labels.tolist() == ["a", "b"]
    assert found.item_labels is None


def cornac_vectors(measure):
    return SimpleNamespace(
        uid_map={"a": 0, "b": 1},
        iid_map={"x": 1, "y": 0},
        get_vector_measure=lambda: measure,
        get_user_vectors=lambda: np.array([[0.5, 1.0], [0.2, 1.0]]),
        get_item_vectors=lambda: np.array([[0.1, 3.0], [0.3, 4.0]]),
    )


def test_cornac_serves_by_vectors():
    found = from_cornac(cornac_vectors("dot_product"))
    assert found.fixed == (1,)
    assert found.item_labels.tolist() == ["y", "x"]


def test_torch_live():
    torch.manual_seed(0)
    module = BPR()
    found = from_torch(module, padding=1, user_labels=range(5))
    assert torch.equal(found.factors.users, module.user_embedding.weight[1:])
    state = {**module.state_dict(), "item_bias": torch.arange(7.0), "extra": torch.ones(2)}
    found = from_torch(state)
    assert found.fixed == (3,)
    assert "not used: extra" in found.training["notes"]
    own = module.user_embedding.weight @ module.item_embedding.weight.T + torch.arange(7.0)
    np.testing.assert_allclose(scores_of(found), own.detach().numpy(), atol=1e-5)


# --- RecBole ----------------------------------------------------------------------------------


class BPR(torch.nn.Module):
    """As recbole.model.general_recommender.BPR: row 0 is padding."""

    def __init__(self):
        super().__init__()
        self.user_embedding = torch.nn.Embedding(6, 3)
        self.item_embedding = torch.nn.Embedding(7, 3)


class LightGCN(BPR):
    """As recbole's LightGCN: propagated embeddings are restored for ranking."""

    def __init__(self):
        super().__init__()
        self.restore_user_e = self.restore_item_e = None
        self.mix = torch.randn(13, 13)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self):
        rows = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        rows = self.dropout((rows + self.mix @ rows) / 2)
        return rows[:6], rows[6:]


class SGL(LightGCN):
    def __init__(self):
        super().__init__()
        self.train_graph = torch.randn(13, 13)

    def forward(self, graph):
        rows = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        return (graph @ rows)[:6], (graph @ rows)[6:]


class NeuMF(BPR):
    pass


class Odd(LightGCN):
    def forward(self, one, two):
        return one, two


class RecBoleDataset:
    uid_field, iid_field = "user_id", "item_id"

    def __init__(self):
        self.field2id_token = {
            "user_id": np.array(["[PAD]", *(f"u{n}" for n in range(5))]),
            "item_id": np.array(["[PAD]", *(str(n * 7) for n in range(6))]),
        }
        self.field2token_id = {
            field: {token: n for n, token in enumerate(tokens)}
            for field, tokens in self.field2id_token.items()
        }
        self.inter_feat = torch.arange(4)


def test_recbole_live():
    torch.manual_seed(0)
    dataset = RecBoleDataset()
    model = BPR()
    found = from_recbole(model, dataset=dataset)
    own = (model.user_embedding.weight @ model.item_embedding.weight.T)[1:, 1:]
    np.testing.assert_allclose(scores_of(found), own.detach().numpy(), atol=1e-5)
    assert found.user_labels.tolist() == [f"u{n}" for n in range(5)]
    assert found.item_labels.tolist() == [0, 7, 14, 21, 28, 35]

    graph = LightGCN().train()
    found = from_recbole(graph, dataset=dataset)
    assert graph.training
    graph.eval()
    U, V = graph()
    np.testing.assert_allclose(scores_of(found), (U @ V.T)[1:, 1:].detach().numpy(), atol=1e-4)
    layer_0 = (graph.user_embedding.weight @ graph.item_embedding.weight.T)[1:, 1:]
    assert not np.allclose(scores_of(found), layer_0.detach().numpy(), atol=0.1)
    assert found.training["notes"] == ["embeddings are those after propagation"]

    contrast = SGL()
    U, V = contrast(contrast.train_graph)
    np.testing.assert_allclose(
        scores_of(from_recbole(contrast, dataset=dataset)),
        (U @ V.T)[1:, 1:].detach().numpy(),
        atol=1e-4,
    )


def recbole_dataset(users):
    dataset = RecBoleDataset()
    dataset.field2id_token["user_id"] = np.array(["[PAD]", *users])
    return dataset


@pytest.mark.parametrize(
    ("call", "kind", "word"),
    [
        (lambda: from_implicit(object()), InputError, "trained"),
        (lambda: from_lenskit(SimpleNamespace(user_embeddings=None)), InputError, "trained"),
        (lambda: from_lightfm(object()), InputError, "trained"),
        (lambda: from_cornac(SimpleNamespace(u_factors=None)), InputError, "trained"),
        (lambda: from_cornac(object()), InputError, "no factors"),
        (lambda: from_cornac(cornac_vectors("cosine")), InputError, "dot product"),
        (
            lambda: from_rectools(rectools_model("COSINE"), dataset=rectools_dataset()),
            InputError,
            "dot product",
        ),
        (lambda: from_rectools(object(), dataset=rectools_dataset()), InputError, "no vectors"),
        (lambda: from_rectools(rectools_model(), dataset=rectools_dataset(8)), DataError, "got 8"),
        (
            lambda: from_lightfm(lightfm_model(), dataset=lightfm_dataset(4)),
            InputError,
            "user_features",
        ),
        (lambda: from_lightfm(lightfm_model(), dataset=lightfm_dataset(u1=0)), DataError, "6 rows"),
        (lambda: from_recbole(NeuMF(), dataset=RecBoleDataset()), InputError, "NeuMF"),
        (lambda: from_recbole(Odd(), dataset=RecBoleDataset()), InputError, "one, two"),
        (lambda: from_recbole(BPR(), dataset=recbole_dataset("a")), DataError, "got 1"),
        (lambda: from_torch(3), InputError, "got int"),
        (lambda: from_torch({"a": torch.ones(2, 2), "b": torch.ones(2, 2)}), InputError, "users"),
    ],
)
def test_errors(call, kind, word):
    with pytest.raises(kind, match=word):
        call()


@contextmanager
def recbole_modules():
    """Modules by RecBole's names, with classes that pickle as RecBole's do; gone afterwards."""
    names = {
        "recbole.config.configurator": "Config",
        "recbole.data.dataset.dataset": "Dataset",
        "recbole.utils.enum_type": "ModelType",
    }
    made = {}
    try:
        for module, name in names.items():
            parts = module.split(".")
            for n in range(1, len(parts) + 1):
                path = ".".join(parts[:n])
                sys.modules.setdefault(path, ModuleType(path))
            kind = type(name, (), {"__module__": module})
            setattr(sys.modules[module], name, kind)
            made[name] = kind
        yield made
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "recbole"]:
            del sys.modules[name]


def save_checkpoint(path, model, name, restored=False):
    """As recbole.trainer.Trainer._save_checkpoint writes it."""
    with recbole_modules() as kinds:
        config = kinds["Config"]()
        config.final_config_dict = {
            "model": name, "USER_ID_FIELD": "user_id", "ITEM_ID_FIELD": "item_id",
            "MODEL_TYPE": kinds["ModelType"](), "device": torch.device("cpu"),
        }  # fmt: skip
        other = {}
        if hasattr(model, "restore_user_e"):
            other = dict(zip(("restore_user_e", "restore_item_e"), model() if restored else (None, None), strict=True))  # fmt: skip  # noqa: E501
        state = {
            "config": config, "epoch": 3, "cur_step": 0, "best_valid_score": 0.1,
            "state_dict": model.state_dict(), "other_parameter": other,
            "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1}]},
        }  # fmt: skip
        torch.save(state, path, pickle_protocol=4)
    return path


def save_dataset(path):
    """As recbole.data.dataset.Dataset.save writes it: a plain pickle of the whole object."""
    with recbole_modules() as kinds:
        dataset = kinds["Dataset"]()
        dataset.__dict__.update(RecBoleDataset().__dict__)
        path.write_bytes(pickle.dumps(dataset))
    return path


def test_recbole_checkpoint(tmp_path):
    torch.manual_seed(0)
    model = BPR()
    path = save_checkpoint(tmp_path / "BPR-Nov.pth", model, "BPR")
    assert "recbole" not in sys.modules
    found = read(path)
    assert torch.equal(found.factors.users, model.user_embedding.weight[1:])
    assert found.user_labels is None
    assert "RecBole's BPR; row 0 is padding and was left out" in found.notes
    tokens = save_dataset(tmp_path / "ml-Dataset.pth")
    found = read(path, dataset_file=tokens)
    assert found.user_labels.tolist() == [f"u{n}" for n in range(5)]
    assert found.item_labels.tolist() == [0, 7, 14, 21, 28, 35]
    assert "recbole" not in sys.modules
    # Written back, the padding and everything else is as it was.
    halved = type(found.factors)(*(part * 0.5 for part in found.factors))
    found.write_back(halved, tmp_path / "new.pth")
    assert torch.equal(read(tmp_path / "new.pth").factors.items, halved.items)
    with recbole_modules():
        again = torch.load(tmp_path / "new.pth", weights_only=False)
    assert torch.equal(again["state_dict"]["user_embedding.weight"][0], model.user_embedding.weight[0])  # fmt: skip  # noqa: E501
    assert again["epoch"] == 3


def test_recbole_checkpoints_of_graph_models(tmp_path):
    torch.manual_seed(0)
    model = LightGCN().eval()
    path = save_checkpoint(tmp_path / "a.pth", model, "LightGCN")
    with pytest.raises(DataError, match="from_recbole"):
        read(path)
    path = save_checkpoint(tmp_path / "b.pth", model, "LightGCN", restored=True)
    found = read(path)
    U, V = model()
    assert torch.equal(found.factors.users, U[1:].detach())
    assert torch.equal(found.factors.items, V[1:].detach())
    with pytest.raises(InputError, match="expected"):
        found.write_back(found.factors, tmp_path / "c.pth")
    # A caller who names two tensors gets these.
    named = read(path, user_key="user_embedding.weight", item_key="item_embedding.weight")
    assert torch.equal(named.factors.users, model.user_embedding.weight[1:])


def test_recbole_datasets_that_are_none(tmp_path):
    path = save_checkpoint(tmp_path / "a.pth", BPR(), "BPR")
    (tmp_path / "x.pth").write_bytes(pickle.dumps({"a": 1}))
    with recbole_modules() as kinds:
        dataset = kinds["Dataset"]()
        dataset.field2id_token = {"other": np.array(["[PAD]"])}
        (tmp_path / "y.pth").write_bytes(pickle.dumps(dataset))
    for name, word in (("nothing", "nothing"), ("x", "RecBole saved"), ("y", "user_id")):
        with pytest.raises(DataError, match=word):
            read(path, dataset_file=tmp_path / f"{name}.pth")
    torch.save({"user": torch.randn(2, 2), "item": torch.randn(2, 2)}, tmp_path / "t.pth")
    with pytest.raises(InputError, match="dataset_file"):
        read(tmp_path / "t.pth", dataset_file=tmp_path / "x.pth")
