"""LensKit, rectools, LightFM, RecBole and torch, by stand-ins: errors and odd cases.

Models that these libraries trained are in test_frozen.py. The stand-ins below have the attributes
and methods that the adapters read, named and shaped as in the sources of lenskit 2025.8, rectools
0.19, lightfm 1.17 and recbole 1.2; they were written for these tests, with random numbers in them,
and each scores as its library does, by a formula of its own. RecBole's files are made with
``torch.save`` and ``pickle`` while modules of its names exist, which are gone when they are read.
"""

from __future__ import annotations

import pickle
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp
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

SEEDS = (0, 1, 2)


def scores_of(found):
    return (found.factors.users.double() @ found.factors.items.double().T).numpy()


# --- LensKit ----------------------------------------------------------------------------------


class Vocabulary:
    def __init__(self, terms):
        self.terms_ = np.array(terms)

    def ids(self):
        return self.terms_


class ImplicitMFScorer:
    """As lenskit.als.ImplicitMFScorer after training."""

    def __init__(self, rng):
        self.users, self.items = Vocabulary([f"u{n}" for n in range(6)]), Vocabulary(range(50, 57))
        self.user_embeddings = rng.normal(size=(6, 3)).astype(np.float32)
        self.item_embeddings = rng.normal(size=(7, 3)).astype(np.float32)


class BiasedMFScorer(ImplicitMFScorer):
    """As lenskit.als.BiasedMFScorer: with a BiasModel."""

    def __init__(self, rng):
        super().__init__(rng)
        self.bias = types.SimpleNamespace(
            global_bias=3.5,
            user_biases=rng.normal(size=6).astype(np.float32),
            item_biases=rng.normal(size=7).astype(np.float32),
        )


class FlexMFScorer:
    """As lenskit.flexmf's scorers: a torch module inside, with LightGCN layers or without."""

    def __init__(self, rng, layers):
        self.users, self.items = Vocabulary(range(6)), Vocabulary(range(7))
        make = lambda *size: torch.from_numpy(rng.normal(size=size).astype(np.float32))  # noqa: E731
        weight = lambda *size: types.SimpleNamespace(weight=make(*size))  # noqa: E731
        self.model = types.SimpleNamespace(
            u_embed=weight(6, 3), i_embed=weight(7, 3), u_bias=None, i_bias=weight(7, 1),
            layers=layers, u_layers=None, i_layers=None,
        )  # fmt: skip
        if layers:
            self.model.u_layers, self.model.i_layers = (
                make(layers + 1, 6, 3),
                make(layers + 1, 7, 3),
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_lenskit(seed):
    rng = np.random.default_rng(seed)
    scorer = ImplicitMFScorer(rng)
    found = from_lenskit(scorer)
    np.testing.assert_allclose(
        scores_of(found), scorer.user_embeddings @ scorer.item_embeddings.T, atol=1e-5
    )
    assert found.fixed == ()
    assert found.user_labels[2] == "u2"
    assert found.item_labels.tolist() == list(range(50, 57))
    biased = BiasedMFScorer(rng)
    found = from_lenskit(biased)
    own = biased.user_embeddings @ biased.item_embeddings.T
    own = own + biased.bias.user_biases[:, None] + biased.bias.item_biases[None, :]
    np.testing.assert_allclose(scores_of(found), own, atol=1e-5)  # but for the global mean
    assert found.fixed == (3, 4)
    biased.user_embeddings = None
    with pytest.raises(InputError, match="must be trained and have user_embeddings"):
        from_lenskit(biased)


@pytest.mark.parametrize("layers", [0, 2])
def test_lenskit_flexmf(layers):
    scorer = FlexMFScorer(np.random.default_rng(0), layers)
    model = scorer.model
    U = model.u_layers.mean(0) if layers else model.u_embed.weight
    V = model.i_layers.mean(0) if layers else model.i_embed.weight
    own = (U @ V.T + model.i_bias.weight[:, 0]).numpy()
    found = from_lenskit(scorer)
    np.testing.assert_allclose(scores_of(found), own, atol=1e-5)
    assert found.fixed == (3,)


# --- rectools ---------------------------------------------------------------------------------


class RecToolsDataset:
    def __init__(self, n_users, n_items, cold=0):
        self.user_id_map = types.SimpleNamespace(external_ids=np.arange(n_users + cold) * 10)
        self.item_id_map = types.SimpleNamespace(
            external_ids=np.array([f"item {n}" for n in range(n_items)])
        )
        self.n_hot_users, self.n_hot_items = n_users, n_items


class Distance:
    def __init__(self, name):
        self.name = name


class ALSWrapper:
    """As ImplicitALSWrapperModel: vectors without arguments."""

    u2i_dist = Distance("DOT")

    def __init__(self, rng):
        self.vectors = rng.normal(size=(6, 3)), rng.normal(size=(7, 3))

    def get_vectors(self):
        return self.vectors


class LightFMWrapper(ALSWrapper):
    """As LightFMWrapperModel: vectors by the dataset, biases and ones in the first columns."""

    def __init__(self, rng):
        super().__init__(rng)
        self.biases = rng.normal(size=6), rng.normal(size=7)

    def get_vectors(self, dataset, add_biases=True):
        (U, V), (bu, bi) = self.vectors, self.biases
        if not add_biases:
            return U, V
        left = np.hstack((bu[:, None], np.ones((6, 1)), U))
        return left, np.hstack((np.ones((7, 1)), bi[:, None], V))


class PureSVD:
    """As PureSVDModel: attributes."""

    def __init__(self, rng):
        self.user_factors, self.item_factors = rng.normal(size=(6, 3)), rng.normal(size=(7, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_rectools(seed):
    rng = np.random.default_rng(seed)
    dataset = RecToolsDataset(6, 7)
    als = ALSWrapper(rng)
    found = from_rectools(als, dataset=dataset)
    np.testing.assert_allclose(scores_of(found), als.vectors[0] @ als.vectors[1].T)
    assert found.user_labels.tolist() == [0, 10, 20, 30, 40, 50]
    assert found.item_labels[1] == "item 1"
    light = LightFMWrapper(rng)
    found = from_rectools(light, dataset=dataset)
    own = light.vectors[0] @ light.vectors[1].T + light.biases[0][:, None] + light.biases[1]
    np.testing.assert_allclose(scores_of(found), own)
    assert found.fixed == (0, 1)
    svd = PureSVD(rng)
    found = from_rectools(svd, dataset=RecToolsDataset(6, 7, cold=2))
    np.testing.assert_allclose(scores_of(found), svd.user_factors @ svd.item_factors.T)
    assert len(found.user_labels) == 6
    als.u2i_dist = Distance("COSINE")
    with pytest.raises(InputError, match="ranks by COSINE, not by the dot product"):
        from_rectools(als, dataset=dataset)
    with pytest.raises(InputError, match="a rectools object has no vectors"):
        from_rectools(object(), dataset=dataset)
    with pytest.raises(DataError, match="8 user ids and 6 rows"):
        from_rectools(svd, dataset=RecToolsDataset(8, 7))


# --- LightFM ----------------------------------------------------------------------------------


class LightFM:
    """As lightfm.LightFM after fit: a row for each feature, folded by the matrices of features."""

    def __init__(self, rng, users=6, items=7):
        self.user_embeddings = rng.normal(size=(users, 3)).astype(np.float32)
        self.item_embeddings = rng.normal(size=(items, 3)).astype(np.float32)
        self.user_biases = rng.normal(size=users).astype(np.float32)
        self.item_biases = rng.normal(size=items).astype(np.float32)

    def get_user_representations(self, features=None):
        return self._folded(self.user_biases, self.user_embeddings, features)

    def get_item_representations(self, features=None):
        return self._folded(self.item_biases, self.item_embeddings, features)

    @staticmethod
    def _folded(biases, embeddings, features):
        return (biases, embeddings) if features is None else (features @ biases, features @ embeddings)  # fmt: skip  # noqa: E501


class LightFMDataset:
    def __init__(self, users, items):
        self.maps = ({f"u{n}": n for n in range(users)}, {}, {n * 2: n for n in range(items)}, {})

    def mapping(self):
        return self.maps


@pytest.mark.parametrize("seed", SEEDS)
def test_lightfm(seed):
    rng = np.random.default_rng(seed)
    model = LightFM(rng)
    own = model.user_embeddings @ model.item_embeddings.T
    own = own + model.user_biases[:, None] + model.item_biases
    found = from_lightfm(model)
    np.testing.assert_allclose(scores_of(found), own, atol=1e-5)
    assert found.fixed == (3, 4)
    assert found.user_labels is None
    found = from_lightfm(model, dataset=LightFMDataset(6, 7))
    assert found.item_labels.tolist() == [0, 2, 4, 6, 8, 10, 12]
    features = sp.csr_matrix(rng.normal(size=(4, 6)).astype(np.float32))
    found = from_lightfm(model, dataset=LightFMDataset(4, 7), user_features=features)
    own = features @ model.user_embeddings @ model.item_embeddings.T
    own = own + (features @ model.user_biases)[:, None] + model.item_biases
    np.testing.assert_allclose(scores_of(found), own, atol=1e-4)
    with pytest.raises(InputError, match="fitted with features, give user_features"):
        from_lightfm(model, dataset=LightFMDataset(4, 7))
    broken = LightFMDataset(6, 7)
    broken.maps[0]["u1"] = 0
    with pytest.raises(DataError, match="6 entries for 5 numbers, and there are 6 rows"):
        from_lightfm(model, dataset=broken)
    with pytest.raises(InputError, match="must be trained"):
        from_lightfm(object())


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
    with pytest.raises(InputError, match="score of recbole's NeuMF is not known"):
        from_recbole(NeuMF(), dataset=dataset)

    class Odd(LightGCN):
        def forward(self, one, two):
            return one, two

    with pytest.raises(InputError, match=r"arguments that are not known here \(one, two\)"):
        from_recbole(Odd(), dataset=dataset)
    del dataset.field2id_token["user_id"]
    dataset.field2id_token["user_id"] = np.array(["[PAD]", "a"])
    with pytest.raises(DataError, match="1 user ids and 5 rows"):
        from_recbole(model, dataset=dataset)


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
                sys.modules.setdefault(path, types.ModuleType(path))
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
    with pytest.raises(DataError, match="a checkpoint of LightGCN, .*from_recbole"):
        read(path)
    path = save_checkpoint(tmp_path / "b.pth", model, "LightGCN", restored=True)
    found = read(path)
    U, V = model()
    assert torch.equal(found.factors.users, U[1:].detach())
    assert torch.equal(found.factors.items, V[1:].detach())
    with pytest.raises(InputError, match="factors from recbole pth cannot be written back"):
        found.write_back(found.factors, tmp_path / "c.pth")
    # Somebody who names two tensors gets these.
    named = read(path, user_key="user_embedding.weight", item_key="item_embedding.weight")
    assert torch.equal(named.factors.users, model.user_embedding.weight[1:])


def test_recbole_datasets_that_are_none(tmp_path):
    path = save_checkpoint(tmp_path / "a.pth", BPR(), "BPR")
    with pytest.raises(DataError, match="cannot be read"):
        read(path, dataset_file=tmp_path / "nothing.pth")
    (tmp_path / "x.pth").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(DataError, match="RecBole saved"):
        read(path, dataset_file=tmp_path / "x.pth")
    with recbole_modules() as kinds:
        dataset = kinds["Dataset"]()
        dataset.field2id_token = {"other": np.array(["[PAD]"])}
        (tmp_path / "x.pth").write_bytes(pickle.dumps(dataset))
    with pytest.raises(DataError, match="has no tokens of 'user_id'"):
        read(path, dataset_file=tmp_path / "x.pth")
    torch.save({"user": torch.randn(2, 2), "item": torch.randn(2, 2)}, tmp_path / "t.pth")
    with pytest.raises(InputError, match="dataset_file means nothing for torch state dict"):
        read(tmp_path / "t.pth", dataset_file=tmp_path / "x.pth")


# --- torch, implicit, Cornac ------------------------------------------------------------------


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
    with pytest.raises(InputError, match="takes a module or a state dict of tensors, got int"):
        from_torch(3)
    with pytest.raises(InputError, match="found 0 matrices for the users"):
        from_torch({"a": torch.ones(2, 2), "b": torch.ones(2, 2)})


def test_implicit_on_a_gpu():
    """Its matrices live on the GPU and come back by to_numpy."""

    class Matrix:
        def __init__(self, array):
            self.array = array

        def to_numpy(self):
            return self.array

    class Model:
        user_factors = Matrix(np.eye(3, 2, dtype=np.float32))
        item_factors = Matrix(np.eye(4, 2, dtype=np.float32))

    found = from_implicit(Model(), user_labels=["a", "b", "c"])
    assert found.factors.n_items == 4
    assert found.user_labels.tolist() == ["a", "b", "c"]


def test_cornac_by_its_train_set():
    class Model:
        U, V = np.eye(2), np.eye(3, 2)
        train_set = types.SimpleNamespace(uid_map={"a": 0, "b": 1}, iid_map=None)

    found = from_cornac(Model())
    assert found.user_labels.tolist() == ["a", "b"]
    assert found.item_labels is None
