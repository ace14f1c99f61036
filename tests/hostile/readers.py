"""Every reader of files from outside, with sound files to spoil."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from PIL import Image
from safetensors.numpy import save as save_tensors

from robustcf._io import sandbox
from robustcf._io.reading import read_member, read_members
from robustcf._io.sandbox import Given, read_apart
from robustcf.data import cache, checkerboard, id_lists, load, prepare
from robustcf.data.catalog import parse_manifest
from robustcf.data.formats import read_ratings
from robustcf.data.large.opening import check_prepared
from robustcf.estimators import read_matrix, two_to_inf
from robustcf.experiments.grid import keep_plan
from robustcf.experiments.run import RunConfig
from robustcf.experiments.sweep import SweepPlan
from robustcf.models.voting import fit_vote
from robustcf.poisoning.injection import read_profiles
from robustcf.recommender import Recommender, open_recommender
from robustcf.testing import labelled_split
from robustcf.training.presets import read_preset
from robustcf.training.search import Trial, read_trials
from robustcf.vision import load_images
from robustcf.vision.archives import read_cifar_binary, read_cifar_pickle, read_tiny_imagenet
from robustcf.vision.catalog import parse_image_manifest
from robustcf.vision.config import VisionRunConfig
from tests.data.layout import replace_file, write_layout
from tests.hostile import mutations as spoil
from tests.hostile.mutations import saved, tar_of, zip_of
from tests.recommender.tampering import sign

Spoiler = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Reader:
    """Something that reads files of a suffix: sound ones, and ways to spoil them by format."""

    suffix: str
    files: Sequence[bytes]
    read: Callable[[Path], Any]
    spoilers: Sequence[Spoiler] = ()

    def spoilt(self, rng: Random) -> bytes:
        content = rng.choice(self.files)
        if self.spoilers and rng.random() < 0.7:
            return rng.choice(self.spoilers)(rng, content)
        return (spoil.spoil_whole if rng.random() < 0.05 else spoil.spoil_bytes)(rng, content)


# All files are users': a parser of one file.
_VECTORS = {"users": 1, "id_key": None, "vector_key": None}


def _json(rng: Random, content: bytes) -> bytes:
    return spoil.spoil_json(rng, content)[1]


def _tensors(rng: Random, content: bytes) -> bytes:
    return spoil.spoil_tensors(rng, content)[1]


def _of_bytes(read: Callable[[bytes, str], Any]) -> Callable[[Path], Any]:
    return lambda path: read(path.read_bytes(), path.name)


def _with_ratings(path: Path) -> None:
    load(path, rating_col="rating", time_col="timestamp", min_rating=2, cache=False)


def _by_number(path: Path) -> None:
    columns = dict(user_col="0", item_col="1", rating_col="2", time_col="3")
    load(path, split="leave-one-out", cache=False, **columns)


def _profiles(path: Path) -> None:
    read_profiles(path, checkerboard().train)


def _norm(path: Path) -> None:
    two_to_inf(read_matrix(path), 20, generator=0)


def _of_a_folder(path: Path) -> None:
    """A spoilt image among sound ones."""
    folder = path.with_suffix("")
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            (folder / name / f"{number}.png").write_bytes(_image("PNG"))
    os.rename(path, folder / "a" / "x.png")
    load_images(folder)


def _image(kind: str, size: int = 8) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return saved(lambda file: Image.fromarray(pixels).save(file, kind))


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBUSTCF_CACHE", str(folder))
        yield


def _cached(path: Path) -> None:
    """A spoilt copy of a parsed table changes nothing: the table is read again."""
    folder, content = path.with_suffix(""), path.read_bytes()
    folder.mkdir()
    table = folder / "a.csv"
    table.write_bytes(_CSV)
    with _cache_in(folder):
        sound = load(table)
        (entry,) = (folder / "parsed").iterdir()
        forged = content[:1] == b"\0"
        if forged:  # with the right checksum
            digest = hashlib.sha256(entry.name.encode() + content[32:]).digest()
            content = digest + content[32:]
        entry.write_bytes(content)
        found = load(table)
    if not forged and found.fingerprint != sound.fingerprint:
        raise AssertionError("other data came out of the cache")


def _entry() -> bytes:
    """A parsed table as the cache has it, of another name: its checksum does not fit."""
    with tempfile.TemporaryDirectory() as folder, _cache_in(Path(folder)):
        split = load("demo", cache=False)
        cache.write("x.parsed", cache.Parsed({"train": split.train, "test": split.test}))
        return bytes(32) + (Path(folder) / "parsed" / "x.parsed").read_bytes()[32:]


def _prepared(name: str) -> Callable[[Path], Any]:
    """A spoilt file of a prepared set among sound ones."""

    def read(path: Path) -> None:
        manifest = write_layout(path.with_suffix(""), (0, 2, 5))
        if name == "manifest.json":
            manifest.write_bytes(path.read_bytes())
        else:
            replace_file(manifest, name, path.read_bytes())
        check_prepared(manifest)

    return read


def _layout(name: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_layout(Path(folder), (0, 2, 5))
        return [(Path(folder) / name).read_bytes()]


def _collection(path: Path) -> None:
    """A spoilt file of a collection that is prepared; nothing is left where it was refused."""
    out = path.with_suffix(".set")
    try:
        prepare(path, out, memory=2 << 30)
    except Exception:
        if out.exists():
            raise AssertionError("a set was left half-made") from None
        raise
    check_prepared(out / "manifest.json")


def _foreign(reader: str, options: dict[str, Any] | None = None) -> Callable[[Path], Any]:
    """A reader of model files: mostly its parser in this process, at times as users run it."""

    def read(path: Path) -> None:
        name = f"robustcf._io.{reader}"
        if zlib.crc32(path.read_bytes()) % 25 == 0:
            found = read_apart(name, [path], options)
            for each in found.arrays:
                found.array(each)
            return
        size = path.stat().st_size
        with path.open("rb") as file, tempfile.TemporaryFile() as memory:
            given = [Given(0, path.name, file, size)]
            answer = sandbox._here(name, given, memory, options or {})
            _, arrays = sandbox._understood(answer)
            available = [size, os.fstat(memory.fileno()).st_size]
            for each, where in arrays.items():
                where.check(each, available)

    return read


def _saved_recommender(kind: str) -> dict[str, bytes]:
    """The files of a sound one: of factors, of factors without their interactions, of a vote."""
    split = labelled_split(n_users=12, n_items=9)
    rng = np.random.default_rng(0)
    if kind == "vote":
        model = fit_vote(split, cap=0.2, damping=0.5)
    else:
        model = Recommender(rng.normal(size=(12, 3)), rng.normal(size=(9, 3)), split, fixed=[2])
    with tempfile.TemporaryDirectory() as home:
        folder = model.save(Path(home) / "model", include_interactions=kind != "bare")
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _opened(sound: dict[str, bytes], name: str) -> Callable[[Path], Any]:
    """A spoilt file of a saved recommender among sound ones, which is opened and used."""

    def read(path: Path) -> None:
        folder = path.with_suffix("")
        folder.mkdir()
        for each, content in sound.items():
            (folder / each).write_bytes(path.read_bytes() if each == name else content)
        if name != "recommender.json":
            sign(folder)
        model = open_recommender(folder)
        known = model.has_interactions
        found = model.recommend(k=3, filter_seen=known)
        model.recommend(items=found["item"].tolist()[:2], k=3)
        model.similar(found["item"].tolist()[0], k=2)
        if known:
            model.evaluate((2,))
        repr(model)

    return read


def _state() -> list[bytes]:
    state = {"user": torch.ones(4, 3), "item": torch.arange(15.0).reshape(5, 3)}
    views = {"user": torch.ones(6, 3)[1:3], "item": torch.ones(3, 5).T}
    return [
        saved(lambda file: torch.save(state, file)),
        saved(lambda file: torch.save({"state_dict": state, "epoch": 3, "notes": ["a"]}, file)),
        saved(lambda file: torch.save(views, file)),
    ]


def _vectors() -> list[bytes]:
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    tables = [
        pa.table({"id": np.arange(5), "features": list(rows)}),
        pa.table({"id": [f"u{n}" for n in range(5)], "features": list(rows.astype(float))}),
    ]
    return [saved(lambda file, t=table: pq.write_table(t, file)) for table in tables]  # type: ignore[misc]


def _meta(rng: Random, content: bytes) -> bytes:
    """Another description of the interactions, inside of their file."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["meta"] = np.array(spoil.spoil_json(rng, str(arrays["meta"]).encode())[1].decode())
    return saved(lambda file: np.savez_compressed(file, **arrays))


def _saved_readers() -> dict[str, Reader]:
    ways: dict[str, list[Spoiler]] = {
        "recommender.json": [_json],
        "interactions.npz": [spoil.spoil_npz, spoil.spoil_npz, _meta],
        "factors.safetensors": [_tensors],
    }
    found = {}
    for kind in ("factors", "bare", "vote"):
        sound = _saved_recommender(kind)
        for name, content in sound.items():
            read = _opened(sound, name)
            found[f"saved {kind}, {name}"] = Reader(Path(name).suffix, [content], read, ways[name])
    return found


def _plan(path: Path) -> None:
    """A spoilt plan in the folder of a sweep that is begun again."""
    asked = {**SweepPlan("demo", regs=("none",)).identity(), "fingerprint": "a"}
    keep_plan(path, asked, "sweep")


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 20, 60),
            "item": rng.integers(0, 15, 60),
            "rating": rng.integers(1, 6, 60),
            "timestamp": rng.integers(0, 10**9, 60),
        }
    )


_CSV = _frame().to_csv(index=False).encode()


def readers_by_name() -> dict[str, Reader]:
    """All of them; made once, it takes a moment."""
    frame = _frame()
    texts = frame.assign(
        user=[f"u{label}" for label in frame.user],
        item=[f"i {label}" for label in frame.item],
        timestamp=pd.to_datetime(frame.timestamp, unit="s"),
    )
    csv = [_CSV, texts.to_csv(index=False).encode()]
    names = {"user": "user_id:token", "item": "item_id:token", "rating": "rating:float"}
    atomic = frame.rename(columns=names).to_csv(index=False, sep="\t").encode()
    colons = "\n".join("::".join(map(str, row)) for row in frame.to_numpy().tolist()).encode()
    adjacency = "".join(
        f"{user} {' '.join(map(str, sorted(set(group))))}\n"
        for user, group in frame.groupby("user").item
    ).encode()
    parquet = [
        saved(lambda file: frame.to_parquet(file)),
        saved(lambda file: texts.to_parquet(file, compression="gzip")),
    ]
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    sparse = sp.csr_matrix(matrix * (matrix > 0))
    formats = (sparse, sparse.tocoo(), sparse.todia(), sparse.tobsr(), sparse.tocsc())
    arrays = [
        saved(lambda file: np.savez_compressed(file, U=matrix, V=matrix)),
        saved(lambda file: np.savez(file, a=matrix)),
        *(saved(lambda file, m=one: sp.save_npz(file, m)) for one in formats),  # type: ignore[misc]
    ]
    square = sp.coo_matrix(matrix[:5] + matrix[:5].T)
    market = [
        saved(lambda file: scipy.io.mmwrite(file, sparse.tocoo())),
        saved(lambda file: scipy.io.mmwrite(file, matrix)),
        saved(lambda file: scipy.io.mmwrite(file, square, symmetry="symmetric")),
    ]
    members = {"a/u.data": adjacency, "b": _CSV}
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    binary = b"".join(b"\1" + row.tobytes() for row in pixels)
    cifar = {
        "c/batches.meta.txt": b"a\nb\n", "c/data_batch_1.bin": binary, "c/test_batch.bin": binary,
    }  # fmt: skip
    batch = pickle.dumps({"data": pixels, "labels": [1] * 6}, protocol=2)
    names_of_classes = pickle.dumps({"label_names": ["a", "b"]}, protocol=2)
    pickled = {"c/batches.meta": names_of_classes, "c/data_batch_1": batch, "c/test_batch": batch}
    root = "tiny-imagenet-200"
    tiny = {
        f"{root}/wnids.txt": b"n01\nn02",
        f"{root}/train/n01/images/a.JPEG": _image("PNG", 64),
        f"{root}/val/images/v.JPEG": _image("PNG", 64),
        f"{root}/val/val_annotations.txt": b"v.JPEG\tn02\t0\t0\n",
    }
    images = saved(
        lambda file: np.savez_compressed(
            file,
            x_train=np.zeros((6, 4, 4, 3), np.uint8),
            y_train=np.arange(6) % 2,
            x_test=np.zeros((2, 4, 4, 3), np.uint8),
            y_test=np.arange(2),
            label_names=np.array(["a", "b"]),
        )
    )
    manifest, image_manifest = (
        [entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".json")]
        for folder in (
            resources.files("robustcf.data") / "manifests",
            resources.files("robustcf.vision") / "manifests",
        )
    )
    preset = {
        "config": {"model": "ultragcn", "factors": 2, "epochs": 1, "reg": "none"},
        "found": {},
    }
    trial = Trial({"model": "ultragcn", "factors": 2}, 0.1, 0.01, 1.0, "portfolio")
    trials = {"config": None, "found": {"trials": [trial.as_dict()]}}
    config = RunConfig("a.csv", {"seed": 0}).to_json().encode()
    vision = VisionRunConfig("a.npz", {}).to_json().encode()
    plan = json.dumps({**SweepPlan("demo", regs=("none",)).identity(), "fingerprint": "a"}).encode()
    plain = lambda path: load(path, cache=False)  # noqa: E731
    everything = lambda path: read_members(path, lambda name: True)  # noqa: E731
    gz = spoil.spoil_gzip
    return {
        "csv": Reader(".csv", csv, plain),
        "csv with ratings": Reader(".csv", csv, _with_ratings),
        "profiles": Reader(".csv", [b"user,item\nf0,1\nf0,2\nf1,2\n"], _profiles),
        "csv without header": Reader(".csv", [_CSV.split(b"\n", 1)[1]], _by_number),
        "csv.gz": Reader(".csv.gz", [gzip.compress(c) for c in csv], plain, [gz]),
        "tsv": Reader(".tsv", [_CSV.replace(b",", b"\t")], plain),
        "inter": Reader(".inter", [atomic], plain),
        "dat": Reader(".dat", [colons + b"\n"], plain),
        "adjacency": Reader(".txt", [adjacency], plain),
        "adjacency.gz": Reader(".txt.gz", [gzip.compress(adjacency)], plain, [gz]),
        "parquet": Reader(".parquet", parquet, plain, [spoil.spoil_parquet]),
        "parquet with ratings": Reader(".parquet", parquet, _with_ratings, [spoil.spoil_parquet]),
        "parquet.gz": Reader(".parquet.gz", [gzip.compress(parquet[0])], plain, [gz]),
        "json lists": Reader(".json", [b"[[1, 2], [3]]"], _of_bytes(id_lists.read_json_lists)),
        "counted lists": Reader(".x", [b"2 7 3\n1 5"], _of_bytes(id_lists.read_counted_lists)),
        "id list": Reader(".x", [b"org_id remap_id\n9 1\n7 0\n"], _of_bytes(id_lists.read_id_list)),
        "ratings": Reader(".x", [b"196\t242\t3\t881250949\n1\t2\t4\t5\n"], _of_bytes(read_ratings)),
        "zip": Reader(".zip", [zip_of(members)], lambda path: read_member(path, "a/u.data"),
                      [spoil.spoil_zip]),
        "tar": Reader(".tar", [tar_of(members, "w:")], everything, [spoil.spoil_tar]),
        "tar.gz": Reader(".tar.gz", [tar_of(members)], everything, [spoil.spoil_tar]),
        "npy": Reader(".npy", [saved(lambda file: np.save(file, matrix))], _norm,
                      [spoil.spoil_npy]),
        "npz": Reader(".npz", arrays, _norm, [spoil.spoil_npz, spoil.spoil_zip]),
        "matrix market": Reader(".mtx", market, _norm),
        "safetensors": Reader(
            ".safetensors",
            [save_tensors({"U": matrix, "V": matrix}), save_tensors({"a": matrix})],
            _norm,
            [_tensors],
        ),
        "model npz": Reader(".npz", arrays[:2], _foreign("foreign:read_npz"),
                            [spoil.spoil_npz, spoil.spoil_zip]),
        "model npy": Reader(".npy", [saved(lambda file: np.save(file, matrix))],
                            _foreign("foreign:read_npy"), [spoil.spoil_npy]),
        "model safetensors": Reader(".safetensors", [save_tensors({"U": matrix, "V": matrix})],
                                    _foreign("foreign:read_safetensors"), [_tensors]),
        "model pth": Reader(".pth", _state(), _foreign("unpickling:read_torch"), [spoil.spoil_zip]),
        "model vectors": Reader(".parquet", _vectors(),
                                _foreign("parquet:read_vectors", _VECTORS), [spoil.spoil_parquet]),
        "images": Reader(".png", [_image("PNG"), _image("JPEG"), _image("GIF")], _of_a_folder),
        "images in npz": Reader(".npz", [images], load_images, [spoil.spoil_npz, spoil.spoil_zip]),
        "cifar": Reader(".tar.gz", [tar_of(cifar, "w:"), tar_of(cifar)], read_cifar_binary,
                        [spoil.spoil_tar]),
        "pickled cifar": Reader(".tar.gz", [tar_of(pickled, "w:")], read_cifar_pickle,
                                [spoil.spoil_tar]),
        "tiny imagenet": Reader(".zip", [zip_of(tiny)], read_tiny_imagenet, [spoil.spoil_zip]),
        "pickle": Reader(
            ".x",
            [batch, names_of_classes,
             pickle.dumps({"a": [1, 2.5, "x", b"y", None, (1, 2)]}, protocol=4)],
            _foreign("unpickling:read_images"),
        ),
        "manifest": Reader(".json", manifest, _of_bytes(parse_manifest), [_json]),
        "image manifest": Reader(".json", image_manifest, _of_bytes(parse_image_manifest), [_json]),
        "preset": Reader(".json", [json.dumps(preset).encode()], read_preset, [_json]),
        "search": Reader(".json", [json.dumps(trials).encode()], read_trials, [_json]),
        "configuration": Reader(".json", [config],
                                lambda path: RunConfig.from_json(path.read_bytes()), [_json]),
        "vision configuration": Reader(
            ".json", [vision], lambda path: VisionRunConfig.from_json(path.read_bytes()), [_json]
        ),
        "plan of a grid": Reader(".json", [plan], _plan, [_json]),
        "cache": Reader(".parsed", [_entry()], _cached),
        "prepared manifest": Reader(".json", _layout("manifest.json"),
                                    _prepared("manifest.json"), [_json]),
        "prepared shard": Reader(".arrow", _layout("train.1.arrow"), _prepared("train.1.arrow")),
        "prepared offsets": Reader(".arrow", _layout("test-places.arrow"),
                                   _prepared("test-places.arrow")),
        "prepared labels": Reader(".arrow", _layout("who.arrow"), _prepared("who.arrow")),
        "collection of text": Reader(".csv", csv, _collection),
        "collection of Parquet": Reader(".parquet", parquet, _collection, [spoil.spoil_parquet]),
        **_saved_readers(),
    }  # fmt: skip
