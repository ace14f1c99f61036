"""Named sets of toy files: search order, checksums, counts, cache, download."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robustcf._io.fetching import Policy, data_dirs, locate, obtain
from robustcf.data import catalog, load
from robustcf.data.catalog import SourceFile
from robustcf.data.interactions import Interactions
from robustcf.errors import DataError, DownloadError
from tests._io.faulty_server import Plan, serve
from tests.conftest import ROOT
from tests.data.toy import TEST, TRAIN, sha256, toy_manifest

QUICK = Policy(attempts=2, backoff=0.0, connect_timeout=1, read_timeout=0.5)


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the toy set."""
    (folder / "toy").mkdir(parents=True, exist_ok=True)
    (folder / "toy" / name).write_bytes(content)


def test_a_published_split_is_read_and_valid_is_carved(toy):
    split = load("toy", toy, seed=3)
    assert split.valid_source == "carved"
    assert split.train_full == Interactions(
        np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 1, 3]), 2, 4
    )
    assert split.valid.user_degrees.tolist() == [1, 1]
    assert split.sources["train.txt"] == sha256(TRAIN).removeprefix("sha256:")
    assert load("Plaything", toy, seed=3).fingerprint == split.fingerprint
    assert {load("toy", toy, seed=s).fingerprint for s in range(8)} != {split.fingerprint}


def test_search_order(toy, tmp_path, monkeypatch):
    given, named, here = tmp_path / "given", tmp_path / "named", tmp_path / "cwd"
    (here / "datasets").mkdir(parents=True)
    monkeypatch.setenv("ROBUSTCF_DATA", str(named))
    monkeypatch.chdir(here)
    order = data_dirs(given)
    assert ROOT / "datasets" in order, "the checkout's own folder"
    assert order[:3] == [given, named, here / "datasets"]
    assert order[-1].name == "datasets"
    manifest, files = catalog.get("toy"), catalog.get("toy").parts["train"]
    for folder in (order[-1], here / "datasets", named, given):  # from the last to the first
        put(folder, "train.txt", TRAIN)
        assert locate(manifest, files, given).path.parent == folder / "toy"
    put(given, "train.txt", b"0 1\n")
    assert locate(manifest, files, given).path.parent == named / "toy", "a wrong file is passed by"


def test_missing_files_are_named_with_the_folder(tmp_path, register):
    register(toy_manifest())
    with pytest.raises(DownloadError) as failure:
        load("toy", tmp_path / "d", download=False)
    assert "train.txt" in str(failure.value)
    assert str(tmp_path / "d" / "toy") in str(failure.value)
    with pytest.raises(DownloadError, match="public"):
        load("toy", tmp_path / "d")
    put(tmp_path / "d", "train.txt", b"0 1\n")
    with pytest.raises(DownloadError, match="checksum"):
        load("toy", tmp_path / "d", download=False)


def test_a_missing_file_is_downloaded_once(tmp_path, register):
    with serve(Plan(TRAIN)) as train, serve(Plan(TEST)) as test:
        files = {"train": (TRAIN, train.url), "test": (TEST, test.url)}
        parts = {
            part: (SourceFile(f"{part}.txt", "adjacency", (sha256(content),), (url,)),)
            for part, (content, url) in files.items()
        }
        register(toy_manifest(parts=parts))
        for _ in range(2):
            split = load("toy", tmp_path, policy=QUICK)
    assert len(split.train_full) == 5
    assert len(train.seen) == len(test.seen) == 1


def test_the_next_alternative_is_used_and_gives_the_same_split(tmp_path, register, toy):
    lists = json.dumps([[2, 0, 1], [3, 1]]).encode()
    md5 = "md5:" + hashlib.md5(lists).hexdigest()
    with serve(Plan(b"", ["404"])) as gone, serve(Plan(lists)) as there:
        train = (
            SourceFile("train.txt", "adjacency", (sha256(TRAIN),), (gone.url,)),
            SourceFile("train.json", "json-lists", (md5,), (there.url,)),
        )
        register(toy_manifest(parts={**toy_manifest().parts, "train": train}))
        put(tmp_path / "other", "test.txt", TEST)
        from_json = load("toy", tmp_path / "other", policy=QUICK)
        from_text = load("toy", toy, policy=QUICK)
    assert "train.json" in from_json.sources
    assert from_json.fingerprint == from_text.fingerprint


def test_all_alternatives_failing_names_every_url(tmp_path, register):
    with serve(Plan(b"", ["404"])) as one, serve(Plan(b"wrong")) as two:
        files = (
            SourceFile("a.txt", "adjacency", (sha256(TRAIN),), (one.url,)),
            SourceFile("b.txt", "adjacency", (sha256(TRAIN),), (two.url,)),
        )
        manifest = register(toy_manifest(parts={"train": files}))
        with pytest.raises(DownloadError) as failure:
            obtain(manifest, files, tmp_path, policy=QUICK)
    message = str(failure.value)
    assert f"{one.url}: HTTP 404" in message
    assert f"{two.url}: wrong checksum: expected sha256 {sha256(TRAIN)[7:]}, got" in message
    assert str(tmp_path / "toy") in message


def test_an_archive_member_serves_as_a_part(tmp_path, register):
    path = tmp_path / "toy" / "toy.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/all.dat", "3 0 1 2\n2 1 3")
    file = SourceFile("toy.zip", "counted-lists", (sha256(path.read_bytes()),), (), "toy/all.dat")
    counts = {"users": 2, "items": 4, "pairs": 5}
    register(toy_manifest(layout="pairs", parts={"pairs": (file,)}, counts=counts))
    assert load("toy", tmp_path).n_interactions == 5


def test_counts_that_differ_from_the_manifest_are_an_error(toy, register):
    register(toy_manifest(counts={"users": 2, "items": 4, "train": 6, "test": 2}))
    with pytest.raises(DataError, match="counts"):
        load("toy", toy)
    register(toy_manifest())
    load("toy", toy)
    for what in ("users", "items", "test"):
        register(toy_manifest(counts={**toy_manifest().counts, what: 9}))
        with pytest.raises(DataError, match=f"{what}: expected 9"):  # from the cache as well
            load("toy", toy)


def test_users_below_the_least_and_unused_items_are_dropped_and_said(tmp_path, register):
    data = b"3 0 5 2\n2 1 5\n4 0 2 5 7\n"
    put(tmp_path, "users.dat", data)
    parts = {"pairs": (SourceFile("users.dat", "counted-lists", (sha256(data),)),)}
    counts = {"users": 2, "items": 4, "pairs": 7}
    register(toy_manifest(layout="pairs", least_per_user=3, parts=parts, counts=counts))
    split = load("toy", tmp_path)
    assert split.user_labels.tolist() == [0, 2]
    assert split.item_labels.tolist() == [0, 2, 5, 7]
    assert split.notes == (
        "1 user with fewer than 3 items dropped",
        "4 of 8 item ids never occur and were dropped; the original ids are kept as labels",
    )


def test_repeats_in_a_file_are_counted(tmp_path, register, toy):
    data = b"0 0 1 1 2\n1 1 3\n"
    put(toy, "train.txt", data)
    train = (SourceFile("train.txt", "adjacency", (sha256(data),)),)
    register(toy_manifest(parts={**toy_manifest().parts, "train": train}))
    split = load("toy", toy)
    assert split.notes == ("train.txt: 1 repeated pair dropped",)
    assert load("toy", toy).notes == split.notes, "the cache remembers what was said"


def test_labels_are_read_where_they_are(toy, register):
    names = b"org_id remap_id\nx 0\ny 1\n"
    register(toy_manifest(labels={"users": (SourceFile("u.txt", "id-list", (sha256(names),)),)}))
    assert load("toy", toy).user_labels is None
    put(toy, "u.txt", names)
    assert load("toy", toy).user_labels.tolist() == ["x", "y"]


def test_options_of_own_data_are_refused_for_named_sets(toy):
    with pytest.raises(DataError, match="k_core"):
        load("toy", toy, k_core=5, split="random")


def test_a_named_set_of_ratings_takes_the_options_of_a_split(tmp_path, register):
    content = b"".join(b"%d\t%d\t%d\t%d\n" % (n % 4, n % 9, n % 5, n // 2) for n in range(36))
    file = SourceFile("u.data", "ratings-tsv", (sha256(content),))
    counts = {"users": 4, "items": 9, "pairs": 36}
    register(toy_manifest(layout="pairs", parts={"pairs": (file,)}, counts=counts))
    put(tmp_path, "u.data", content)
    split = load("toy", tmp_path, split="time", test_from=15, valid_ratio=0.2, min_rating=1)
    assert split.test.timestamps.min() == 15
    assert split.train.timestamps.max() < split.valid.timestamps.min()
    assert len(load("toy", tmp_path, split="leave-one-out").test) == 4
    assert len(load("toy", tmp_path, test_ratio=0.5).test) == 20
    with pytest.raises(DataError, match="k_core"):
        load("toy", tmp_path, k_core=2, split="time")


def test_unknown_names_suggest_known_ones(tmp_path):
    with pytest.raises(DataError, match="folder"):
        load(tmp_path)
    with pytest.raises(DataError, match="mean"):
        load("yelp-2018")
    with pytest.raises(DataError, match="citeulike"):
        catalog.get("zzz")


# --- the catalogue itself -------------------------------------------------------------------


@pytest.mark.parametrize("name", list(catalog.manifests()))
def test_every_manifest_is_complete(name):
    manifest = catalog.get(name)
    assert manifest.title
    assert manifest.licence
    assert manifest.citation
    assert {"users", "items"} < set(manifest.counts)
    for part, alternatives in manifest.parts.items():
        assert part in manifest.counts
        assert any(file.urls for file in alternatives), f"{part} can be had from nowhere"
        urls = [url for file in alternatives for url in file.urls]
        assert len(urls) >= 2, f"{part} has no second source"
        assert all(url.startswith(("https://", "http://")) for url in urls)
    for alternatives in (*manifest.parts.values(), *manifest.labels.values()):
        for file in alternatives:
            for checksum in file.checksums:
                algorithm, _, digest = checksum.partition(":")
                assert len(bytes.fromhex(digest)) == {"sha256": 32, "md5": 16}[algorithm]


def test_all_promised_names_are_known():
    for name in "demo ml-1m yelp2018 citeulike-a citeulike-t gowalla ml-100k".split():
        assert catalog.get(name).name == name
    assert catalog.get("citeulike").name == "citeulike-t"
