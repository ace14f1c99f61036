"""Files of factors: every format is read as it was written, and written back in its own form."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from robustcf.adapters import from_files, from_torch
from robustcf.adapters.reading import read
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from tests.adapters.helpers import naive_ndcg, world, write_pairs


def shrunk(found):
    """Other factors of the same shape, with fixed columns as they are."""
    parts = []
    for part in found.factors:
        other = part.clone() * 0.5
        other[:, list(found.fixed)] = part[:, list(found.fixed)]
        parts.append(other)
    return Factors(*parts)


def check_written(found, target, source_of=lambda path: path):
    other = shrunk(found)
    found.write_back(other, target)
    again = read(source_of(target))
    for mine, theirs in zip(other, again.factors, strict=True):
        assert torch.equal(mine, theirs)
    assert (again.format, again.fixed) == (found.format, found.fixed)
    for kind in ("user_labels", "item_labels"):
        mine, theirs = getattr(found, kind), getattr(again, kind)
        assert (mine is None and theirs is None) or mine.tolist() == theirs.tolist()
    with pytest.raises(InputError, match="exists"):
        found.write_back(other, target)
    with pytest.raises(InputError, match="shape"):
        found.write_back(Factors(other.users[:1], other.items), target.with_name("x"))
    if found.fixed:
        with pytest.raises(InputError, match="held fixed"):
            found.write_back(
                Factors(*(part * 0.5 for part in found.factors)), target.with_name("x")
            )


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "names",
    [("U", "V"), ("P", "Q"), ("users", "items"), ("User_Factors", "Item_Factors"),
     ("user_embedding.weight", "item_embedding.weight")],
)  # fmt: skip
def test_named_matrices(tmp_path, kind, dtype, names):
    U, V, _ = world()
    U, V = U.astype(dtype), V.astype(dtype)
    path = tmp_path / f"mine.{kind}"
    arrays = {names[0]: U, names[1]: V, "epoch": np.array([3])}
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, path)
    found = read(path)
    assert np.array_equal(found.factors.users.numpy(), U)
    assert np.array_equal(found.factors.items.numpy(), V)
    assert found.fixed == ()
    assert found.notes[0] == f"users are {names[0]}, items are {names[1]}"
    assert "not used: epoch" in found.notes
    check_written(found, tmp_path / f"other.{kind}")
    raw = (
        np.load(tmp_path / "other.npz")
        if kind == "npz"
        else load_file(tmp_path / "other.safetensors")
    )
    assert raw[names[0]].dtype == (dtype if kind == "npz" else torch.from_numpy(U).dtype)
    assert raw["epoch"][0] == 3


def test_bfloat16(tmp_path):
    U, V = torch.ones(3, 2, dtype=torch.bfloat16), torch.ones(4, 2, dtype=torch.bfloat16)
    save_file(
        {"U": U, "V": V * torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)},
        tmp_path / "a.safetensors",
    )
    found = read(tmp_path / "a.safetensors", fixed=())
    assert found.factors.users.dtype == torch.float32
    found.write_back(shrunk(found), tmp_path / "b.safetensors")
    assert load_file(tmp_path / "b.safetensors")["U"].dtype == torch.bfloat16


A, B, _ = world()
BIAS = np.ones(len(A), np.float32)


@pytest.mark.parametrize(
    ("arrays", "options", "word"),
    [
        ({"user_a": A, "user_b": A, "item": B}, {}, "--user-key"),
        ({"user": A, "second": B}, {}, "--item-key"),
        ({"user": A, "item": B}, {"user_key": "third"}, "there are user 40x4"),
        ({"U": A.T, "V": B[: len(A)].T}, {}, "transposed"),
        ({"U": A, "V": B}, {"id_key": "x"}, "id_key"),
        ({"U": A, "V": B, "user_bias": BIAS, "user_bias_2": BIAS}, {}, "user_bias_key"),
        ({"U": A, "V": B}, {"user_bias_key": "nothing"}, "nothing"),
        ({"U": A, "V": B, "item_bias": BIAS}, {}, "30 rows"),
        ({"U": A, "V": B, "user_bias": np.array(["a"] * 40)}, {}, "one number"),
        ({"U": A, "V": B}, {"fixed": (4,)}, "fixed columns"),
        ({"U": A, "V": B}, {"fixed": range(4)}, "all 4 columns"),
        ({"U": A.astype("i8"), "V": B}, {"user_key": "U", "item_key": "V"}, "numbers"),
        ({"U": A.astype("?"), "V": B}, {"user_key": "U", "item_key": "V"}, "numbers"),
        ({"U": A.astype("U3"), "V": B}, {"user_key": "U", "item_key": "V"}, "numbers"),
        ({"U": np.where(A[3, 1] == A, np.nan, A), "V": B}, {}, "nan in row 3"),
        ({"U": A, "V": np.where(B[3, 1] == B, -np.inf, B)}, {}, "-inf in row 3"),
    ],
)
def test_errors_of_named_matrices(tmp_path, arrays, options, word):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=word):
        read(tmp_path / "a.npz", **options)


def test_names_that_are_given(tmp_path):
    np.savez(tmp_path / "a.npz", first=A, second=B, user_a=A * 2, user_b=A * 3)
    found = read(tmp_path / "a.npz", user_key="first", item_key="second")
    assert np.array_equal(found.factors.users.numpy(), A)


def test_biases_of_their_own_become_fixed_columns(tmp_path):
    U, V, _ = world()
    rng = np.random.default_rng(0)
    bu, bi = rng.normal(size=len(U)).astype(np.float32), rng.normal(size=len(V)).astype(np.float32)
    path = tmp_path / "a.npz"
    np.savez(path, users=U, items=V, user_bias=bu, item_biases=bi[:, None])
    found = read(path)
    np.testing.assert_allclose(
        (found.factors.users @ found.factors.items.T).numpy(),
        U @ V.T + bu[:, None] + bi[None, :],
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    assert found.fixed == (4, 5)
    assert "biases are user_bias and item_biases: held fixed" in found.notes
    found.write_back(shrunk(found), tmp_path / "b.npz")
    raw = np.load(tmp_path / "b.npz")
    assert np.array_equal(raw["users"], U * np.float32(0.5))
    assert np.array_equal(raw["user_bias"], bu)
    assert raw["item_biases"].shape == (30, 1)
    np.savez(path, users=U, items=V, user_bias=bu, user_bias_2=bu)
    assert read(path, user_bias_key="user_bias_2").fixed == (4,)


def test_a_constant_column_is_a_bias(tmp_path):
    U, V, _ = world()
    path = tmp_path / "a.npz"
    np.savez(path, U=np.hstack([U, np.full((40, 1), 2.0)]), V=np.hstack([V, V[:, :1]]))
    found = read(path)
    assert found.fixed == (4,)
    assert "column 4 is constant, so it is a bias: held fixed" in found.notes
    assert read(path, fixed=()).fixed == ()
    assert read(path, fixed=(1, 0)).fixed == (0, 1)
    # A column of zeros cannot be the constant that a bias is multiplied with.
    np.savez(path, U=np.hstack([U, np.zeros((40, 1))]), V=np.hstack([V, V[:, :1]]))
    assert read(path).fixed == ()


def test_two_npy(tmp_path):
    U, V, _ = world()
    np.save(tmp_path / "u.npy", np.asfortranarray(U))
    np.save(tmp_path / "i.npy", V)
    found = read([tmp_path / "u.npy", str(tmp_path / "i.npy")])
    assert np.array_equal(found.factors.users.numpy(), U)
    check_written(found, tmp_path / "new", lambda path: [path / "u.npy", path / "i.npy"])
    (tmp_path / "x.npz").write_bytes(b"")
    for names in ("u.npy x.npz", "u.npy", "nothing.npz", "u.npy u.npy u.npy"):
        with pytest.raises(InputError):
            read([tmp_path / name for name in names.split()])


def save_parquet(path, ids, vectors, kind=None, names=("id", "features")):
    kind = kind or pa.list_(pa.float32())
    table = pa.table({names[0]: ids, names[1]: pa.array([list(v) for v in vectors], type=kind)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.float32()),
             pa.list_(pa.float32(), 4)], ids=str,
)  # fmt: skip
def test_parquet(tmp_path, kind):
    U, V, _ = world()
    names = [f"user {n}" for n in range(40)]
    save_parquet(tmp_path / "u.parquet", names, U, kind)
    save_parquet(tmp_path / "i.parquet", np.arange(100, 130)[::-1].copy(), V, kind)
    found = read([tmp_path / "u.parquet", tmp_path / "i.parquet"])
    assert np.array_equal(found.factors.items.numpy(), V)
    assert found.user_labels.tolist() == names
    assert found.item_labels.tolist() == list(range(129, 99, -1))
    check_written(found, tmp_path / "new", lambda path: [path / "u.parquet", path / "i.parquet"])
    assert pq.read_schema(tmp_path / "new" / "u.parquet").field("features").type == kind


def test_parquet_with_more_columns(tmp_path):
    U, V, _ = world()
    table = pa.table({"id": range(40), "age": range(40), "v": pa.array([list(u) for u in U])})
    pq.write_table(table, tmp_path / "u.parquet")
    save_parquet(tmp_path / "i.parquet", range(30), V, names=("id", "v"))
    paths = [tmp_path / "u.parquet", tmp_path / "i.parquet"]
    with pytest.raises(InputError, match="age"):
        read(paths)
    assert read(paths, id_key="id", vector_key="v").user_labels.tolist() == list(range(40))
    with pytest.raises(InputError, match="w"):
        read(paths, id_key="id", vector_key="w")
    save_parquet(tmp_path / "i.parquet", range(30), V[:, :3], names=("id", "v"))
    with pytest.raises(InputError, match="and 3 in"):
        read(paths, id_key="id", vector_key="v")


def spark_model(folder, U, V):
    """As ``ALSModel.save`` of Spark 3 lays it out: parts of ``id`` and ``features``, metadata."""
    for name, part in (("userFactors", U), ("itemFactors", V)):
        half = len(part) // 2
        ids = np.arange(len(part), dtype=np.int32) * 3 + 1
        for n, rows in enumerate((slice(half), slice(half, None))):
            save_parquet(folder / name / f"part-0000{n}-x.snappy.parquet", ids[rows], part[rows])
        (folder / name / "_SUCCESS").touch()
    (folder / "metadata").mkdir()
    (folder / "metadata" / "part-00000").write_text(json.dumps({"class": "ALSModel", "rank": 4}))
    return folder


def test_spark(tmp_path):
    U, V, _ = world()
    folder = spark_model(tmp_path / "als", U, V)
    found = read(folder)
    assert found.format == "spark als"
    assert np.array_equal(found.factors.users.numpy(), U)
    assert found.item_labels.tolist() == [3 * n + 1 for n in range(30)]
    check_written(found, tmp_path / "new")
    assert (tmp_path / "new" / "metadata" / "part-00000").is_file()
    apart = read([folder / "userFactors", folder / "itemFactors"])
    assert torch.equal(apart.factors.items, found.factors.items)


@pytest.mark.parametrize("wrapped", [False, True])
def test_torch_state_dict(tmp_path, wrapped):
    torch.manual_seed(0)
    module = torch.nn.ModuleDict(
        {"user": torch.nn.Embedding(5, 3), "item": torch.nn.Embedding(6, 3),
         "item_bias": torch.nn.Embedding(6, 1), "head": torch.nn.Linear(3, 3)}
    )  # fmt: skip
    state = {"state_dict": module.state_dict(), "epoch": 3} if wrapped else module.state_dict()
    torch.save(state, tmp_path / "m.pth")
    found = read(tmp_path / "m.pth")
    expected = module["user"].weight @ module["item"].weight.T + module["item_bias"].weight[:, 0]
    torch.testing.assert_close(found.factors.users @ found.factors.items.T, expected.detach())
    assert found.fixed == (3,)
    assert "not used: head.weight, head.bias" in found.notes
    check_written(found, tmp_path / "n.pth")
    again = torch.load(tmp_path / "n.pth", weights_only=True)
    again = again["state_dict"] if wrapped else again
    assert torch.equal(again["user.weight"], module["user"].weight * 0.5)
    assert torch.equal(again["head.weight"], module["head"].weight)


def test_tensors_that_share_a_storage_are_read_and_not_written(tmp_path):
    both = torch.randn(11, 3)
    torch.save({"user": both[:5], "item": both[5:], "t": both.T}, tmp_path / "m.pth")
    found = read(tmp_path / "m.pth", user_key="user", item_key="item")
    assert torch.equal(found.factors.users, both[:5])
    assert torch.equal(found.factors.items, both[5:])
    with pytest.raises(InputError, match="shares its storage"):
        found.write_back(shrunk(found), tmp_path / "n.pth")
    assert not (tmp_path / "n.pth").exists()
    assert torch.equal(read(tmp_path / "m.pth", user_key="t", item_key="t").factors.users, both.T)


def test_ids_from_files(tmp_path):
    U, V, _ = world()
    np.savez(tmp_path / "a.npz", U=U, V=V)
    (tmp_path / "users.txt").write_text("\n".join(f"u{n}" for n in range(40)) + "\n")
    np.save(tmp_path / "items.npy", np.arange(30) + 7)
    found = read(
        tmp_path / "a.npz", user_ids=tmp_path / "users.txt", item_ids=tmp_path / "items.npy"
    )
    assert found.user_labels[3] == "u3"
    assert found.item_labels.tolist() == list(range(7, 37))
    with pytest.raises(DataError, match="user"):
        read(tmp_path / "a.npz", user_ids=tmp_path / "items.npy")
    with pytest.raises(DataError, match="text"):
        read(tmp_path / "a.npz", user_ids=tmp_path / "nothing.txt")
    (tmp_path / "users.txt").write_text("\n".join(["same"] * 40))
    with pytest.raises(DataError, match="same"):
        read(tmp_path / "a.npz", user_ids=tmp_path / "users.txt")
    save_parquet(tmp_path / "u.parquet", range(40), U)
    save_parquet(tmp_path / "i.parquet", range(30), V)
    with pytest.raises(InputError, match="user"):
        read([tmp_path / "u.parquet", tmp_path / "i.parquet"], user_ids=tmp_path / "users.txt")


def test_what_cannot_be_written_back_says_so():
    found = from_torch({"user": torch.randn(3, 2), "item": torch.randn(4, 2)})
    with pytest.raises(InputError, match="expected"):
        found.export("anywhere")


def test_files_and_pairs_give_a_recommender_that_exports_in_their_format(tmp_path):
    U, V, split = world()
    np.savez(tmp_path / "mine.npz", first=U, second=V, epoch=3)
    keys = {"user_key": "first", "item_key": "second"}
    train = write_pairs(tmp_path / "train.csv", split.train)
    test = write_pairs(tmp_path / "test.csv", split.test)
    model = from_files(tmp_path / "mine.npz", train, test, matching={"name": "shop"}, **keys)
    own = naive_ndcg(U.astype(float) @ V.T.astype(float), split.train, split.test)
    assert model.evaluate()["ndcg@10"] == pytest.approx(own, abs=1e-6)
    assert (model.label, model.split.name, model.part) == ("mine.npz", "shop", "test")
    assert model.training["format"] == "npz"
    halved = model.with_factors(Factors(*(part * 0.5 for part in model.factors)))
    halved.export(tmp_path / "halved.npz")
    with np.load(tmp_path / "halved.npz") as raw:
        np.testing.assert_array_equal(raw["first"], U * np.float32(0.5))
        assert raw["epoch"] == 3
    with pytest.raises(InputError, match="exists"):
        halved.export(tmp_path / "halved.npz")


def test_files_without_pairs_serve_and_say_what_they_lack(tmp_path):
    U, V, split = world()
    np.savez(tmp_path / "mine.npz", U=U, V=V)
    model = from_files(tmp_path / "mine.npz", label="shop")
    assert not model.has_interactions
    assert model.training["format"] == "npz"
    found = model.recommend(3, k=4, filter_seen=False, as_ids=True)
    np.testing.assert_array_equal(found.items[0], np.argsort(-(U @ V.T)[3])[:4])
    for call in (model.evaluate, lambda: model.recommend(3), lambda: model.known):
        with pytest.raises(InputError, match="interactions"):
            call()
    for given in ({"test": split.test}, {"matching": {"rows": "sorted"}}):
        with pytest.raises(InputError, match="needs interactions"):
            from_files(tmp_path / "mine.npz", **given)
