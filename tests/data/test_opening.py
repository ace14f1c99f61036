"""Prepared sets: read as the guide describes them, and refused where they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from robustcf.cli.main import run as command_line
from robustcf.data import Interactions, Split, load
from robustcf.data.large import mapped
from robustcf.data.large.opening import check_prepared
from robustcf.errors import DataError
from tests.data.layout import N_ITEMS, N_USERS, PAIRS, arrow, replace_file, write_layout
from tests.data.toy import rows


def by_hand() -> Split:
    """The same set in memory."""
    labels = dict(
        user_labels=np.array([f"u{n}" for n in range(N_USERS)]), item_labels=np.arange(N_ITEMS) * 10
    )

    def part(pairs: list[tuple[int, int]]) -> Interactions:
        users, items = (np.array([pair[n] for pair in pairs]) for n in (0, 1))
        return Interactions(
            users, items, N_USERS, N_ITEMS,
            timestamps=users * 10 + items, weights=items / 2, **labels,
        )  # fmt: skip

    return Split("by hand", *(part(PAIRS[name]) for name in ("train", "valid", "test")))


@pytest.mark.parametrize("edges", [(0, 5), (0, 2, 5), (0, 1, 1, 4, 5)])
@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("small", [0, 1 << 20])
def test_any_engine_can_write_the_layout(edges, batches, small, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_SMALL_BYTES", small)
    file = write_layout(tmp_path / "set", edges, batches)
    expected = by_hand()
    for found in (load(file.parent), load(file), check_prepared(file)):
        for part in ("train", "valid", "test"):
            assert getattr(found, part) == getattr(expected, part)
        assert found.train_full == expected.train_full
        assert found.fingerprint == expected.fingerprint
        assert (found.name, found.valid_source) == ("by hand", "carved")
        assert found.protocol == expected.protocol
        assert found.sources == {"manifest.json": hashlib.sha256(file.read_bytes()).hexdigest()}


def test_labels_are_optional_and_may_have_other_keys(tmp_path):
    file = write_layout(tmp_path)
    changed(file, setting("labels", "others", to=[[]]))
    assert load(tmp_path).user_labels is not None
    changed(file, without("labels"))
    found = load(tmp_path)
    assert found.user_labels is None
    assert found.item_labels is None


def test_sets_without_valid_pairs_mask_train_alone(tmp_path):
    file = write_layout(tmp_path)
    none = np.zeros(0, dtype=np.int32)
    for name, columns in (
        ("valid.0.arrow", {"user": none, "item": none}),
        ("valid-places.arrow", {"offset": np.zeros(6, dtype=np.int64)}),
    ):
        arrow(tmp_path / "other", columns)
        replace_file(file, name, (tmp_path / "other").read_bytes())
    changed(file, setting("parts", "valid", "pairs", to=0))
    changed(file, setting("columns", to=["user", "item"]))
    found = check_prepared(file)
    assert (len(found.valid), found.valid_source) == (0, "none")
    assert found.masked("test") == ("train",)
    assert found.train.timestamps is None
    assert found.train.weights is None


def test_options_of_a_table_and_other_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="robustcf datasets prepare"):
        load(tmp_path)
    write_layout(tmp_path)
    with pytest.raises(DataError, match="k_core"):
        load(tmp_path, k_core=2, test_ratio=0.2)


# --- damaged manifests ----------------------------------------------------------------------


def changed(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))


def setting(*keys: Any, to: Any) -> Callable[[Any], None]:
    return lambda facts: reduce(getitem, keys[:-1], facts).update({keys[-1]: to})


def without(*keys: Any) -> Callable[[Any], None]:
    return lambda facts: reduce(getitem, keys[:-1], facts).pop(keys[-1])


TRAIN = ("parts", "train")
PLAIN = "plain name of a file"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (setting("format", to="spark"), "format must be .*got 'spark'"),
        (setting("version", to=2), "version must be 1, got 2"),
        (without("version"), "version must be 1, got None"),
        (setting("n_users", to=0), "n_users"),
        (setting("n_users", to=2**40), "n_users"),
        (setting("n_users", to=4), "shards must be users from 0 to 4"),
        (setting("n_items", to=3), "below 3, got 3"),
        (setting("columns", to=[]), "columns"),
        (setting("columns", to=["user", "user"]), "each once"),
        (setting("columns", to=["user", "item", "x"]), "columns.2."),
        (setting("shards", to=[0, 3]), "shards must be users from 0 to 5"),
        (setting("shards", to=[0, 4, 2, 5]), "ascending"),
        (setting("shards", to=[0, 2, 5]), "parts.train.shards must be 2 names"),
        (setting(*TRAIN, "pairs", to=0), "train.pairs"),
        (setting(*TRAIN, "pairs", to=8), "0 to the 8 pairs"),
        (without("parts", "test"), "parts.test"),
        (setting(*TRAIN, "shards", to=["../secret"]), PLAIN),
        (setting("labels", "users", to="/etc/passwd"), PLAIN),
        (setting("labels", "users", to=".x"), PLAIN),
        (setting("parts", "test", "offsets", to="..\\x"), PLAIN),
        (setting("files", "../secret", to={"bytes": 10}), PLAIN),
        (setting("files", "/etc/passwd", to={"bytes": 1}), PLAIN),
        (setting("labels", "users", to="train.0.arrow"), "names of files must be different"),
        (setting("labels", "users", to="manifest.json"), "names of files must be different"),
        (without("files", "who.arrow"), "how long 'who.arrow' is"),
        (setting("files", "who.arrow", "bytes", to=7), "expected 7 bytes"),
        (setting("files", "who.arrow", to={}), "bytes"),
        (setting("files", "train.0.arrow", "sha256", to="0" * 64), "altered or damaged"),
        (setting("files", "who.arrow", "sha256", to="x"), "64 hexadecimal digits"),
        (setting("fingerprint", to="a" * 64), "fingerprint"),
        (setting("notes", to=[1]), "notes.0."),
        (setting("eval_users", to=0), "eval_users"),
        (setting("files", "gone.arrow", to={"bytes": 1}), "gone.arrow is not there"),
    ],
    ids=range(33),
)
def test_a_damaged_manifest_is_refused(change, word, tmp_path):
    file = write_layout(tmp_path / "set")
    changed(file, change)
    (tmp_path / "secret").write_text("root:x:0:0")
    with pytest.raises(DataError, match=word) as caught:
        check_prepared(file)
    assert "root:x" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_not_a_json_object_is_refused(content, tmp_path):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match="manifest.json"):
        load(tmp_path)


def test_missing_and_cut_files_and_links_are_refused_at_once(tmp_path):
    file = write_layout(tmp_path / "set", (0, 2, 5))
    shard, outside = tmp_path / "set" / "train.1.arrow", tmp_path / "shard"
    os.rename(shard, outside)
    with pytest.raises(DataError, match="train.1.arrow is not there"):
        load(file)
    shard.symlink_to(outside)
    with pytest.raises(DataError, match="is a link"):
        load(file)
    shard.unlink()
    shard.write_bytes(outside.read_bytes()[:-8])
    with pytest.raises(DataError, match="train.1.arrow: expected .* bytes"):
        load(file)


# --- damaged files --------------------------------------------------------------------------

GOOD = {
    "user": np.array([0, 0, 1, 3, 3, 3, 4], dtype=np.int32),
    "item": np.array([0, 2, 1, 0, 1, 3, 2], dtype=np.int32),
    "time": np.zeros(7, dtype=np.int64),
    "weight": np.zeros(7, dtype=np.float32),
}


def column(name: str, place: int, value: float) -> dict[str, Any]:
    changed_column = GOOD[name].copy()
    changed_column[place] = value
    return {**GOOD, name: changed_column}


def spoilt(
    folder: Path, name: str, columns: dict[str, Any], edges: tuple[int, ...] = (0, 5)
) -> Any:
    """The split of a set with another content of one file."""
    file = write_layout(folder / "set", edges)
    arrow(folder / "bad", columns)
    replace_file(file, name, (folder / "bad").read_bytes())
    return load(file)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({k: v for k, v in GOOD.items() if k != "item"}, "one column 'item'"),
        ({**GOOD, "item": GOOD["item"].astype(np.int64)}, "must be int32, got int64"),
        ({**GOOD, "user": list("abcdefg")}, "'user' must be int32, got string"),
        ({**GOOD, "item": pa.array([None, 2, 1, 0, 1, 3, 2], pa.int32())}, "no nulls"),
        ({k: v[:6] for k, v in GOOD.items()}, "must have 7 rows.*got 6"),
        (column("user", 2, 0), "'user' must ascend"),
        (column("item", 0, -1), "below 4, got -1"),
        (column("item", 1, 4), "below 4, got 4"),
        (column("item", 1, 0), "must ascend within each user"),
        (column("weight", 3, np.nan), "'weight' must be finite"),
        (column("item", 1, 3), "1 pairs are in both train and test.*user 0, item 3"),
    ],
    ids=range(11),
)
def test_a_damaged_shard_is_refused_on_use(columns, word, tmp_path):
    split = spoilt(tmp_path, "train.0.arrow", columns)
    with pytest.raises(DataError, match=word):
        split.train.items_of(0)


def test_a_pair_in_two_parts_of_a_later_shard_is_named_by_its_user(tmp_path):
    columns = {name: values[3:].copy() for name, values in GOOD.items()}
    columns["item"][-1] = 3  # user 4, who has it in test
    split = spoilt(tmp_path, "train.1.arrow", columns, (0, 2, 5))
    with pytest.raises(DataError, match="user"):
        split.train.items_of(4)


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1\0\0" + b"x" * 100, b"no arrow" * 9])
@pytest.mark.parametrize("name", ["train.0.arrow", "train-places.arrow", "who.arrow"])
def test_a_file_that_is_not_arrow_is_refused(content, name, tmp_path):
    file = write_layout(tmp_path)
    replace_file(file, name, content)
    with pytest.raises(DataError, match=f"{name}: (no readable|expected an) Arrow file"):
        check_prepared(file)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"label": ["a", "b", "c", "d"]}, "n_users = 5, got 4"),
        ({"label": ["a", "b", "c", "d", "a"]}, "must differ"),
        ({"label": ["a", "b", "c", "d", None]}, "no nulls"),
        ({"label": [0.5, 1, 2, 3, 4]}, "got double"),
        ({"name": list("abcde")}, "one column 'label'"),
        ({"label": ["a", "b", "c", "d", "x" * 2000]}, "5 labels takes at least"),
    ],
)
def test_damaged_labels_are_refused_on_use(columns, word, tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTCF_LIMITS", "small_bytes=1000 expansion=2")
    split = spoilt(tmp_path, "who.arrow", columns)
    assert len(split.train.items) == 7
    with pytest.raises(DataError, match=word):
        split.user_labels  # noqa: B018


def test_offsets_must_ascend(tmp_path):
    with pytest.raises(DataError, match="offsets must ascend"):
        spoilt(tmp_path, "train-places.arrow", {"offset": np.array([0, 2, 1, 3, 6, 7])})


# --- commands -------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows(0, 2000).to_csv("mine.csv", index=False)
    return tmp_path / "mine.csv"


def told(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert command_line([*words.split(), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_a_prepared_set_is_trained_on_like_its_table(table, capsys):
    pytest.importorskip("duckdb")
    options = "--k-core 2 --min-rating 2"
    made = told(f"datasets prepare mine.csv --out set --shards 2 --memory 2GB {options}", capsys)
    info = told("datasets info set", capsys)
    plain = told(f"datasets info mine.csv {options}", capsys)
    assert made["fingerprint"] == info["fingerprint"] == plain["fingerprint"]
    assert (made["train"], made["shards"], made["path"]) == (plain["train"], 2, "set")
    how = "--model softmax-mf --factors 4 --epochs 2 --set sampled_items=20 --threads 1"
    one = told(f"train --dataset set --out one {how}", capsys)
    two = told(f"train --dataset mine.csv --out two {options} {how}", capsys)
    assert one["learnt_from"] == "train and valid"  # refit on the merged parts
    assert one["test"] == two["test"]
    left, right = (Path(run, "factors.safetensors").read_bytes() for run in ("one", "two"))
    assert left[-1000:] == right[-1000:]
    for words in ("evaluate RUN", "recommend RUN --user ü7 U-5 -k 3", "recommend RUN --items 1 a"):
        left, right = (told(words.replace("RUN", run), capsys) for run in ("one", "two"))
        assert {**left, "run": ""} == {**right, "run": ""}


def test_a_run_opens_its_prepared_set_by_its_manifest_alone(table, capsys):
    pytest.importorskip("duckdb")
    told("datasets prepare mine.csv --out set --memory 2GB", capsys)
    told("train --dataset set --out run --model popularity --threads 1", capsys)
    config = json.loads(Path("run/config.json").read_text())
    assert config["dataset"].endswith("set/manifest.json")
    assert told("evaluate run", capsys)["test"]
    os.rename("set", "moved")
    assert command_line(["evaluate", "run"]) == 1
    assert "--dataset PATH" in capsys.readouterr().err
    assert told("evaluate run --dataset moved", capsys)["test"]
    manifest = Path("moved/manifest.json")
    manifest.write_text(manifest.read_text().replace('"name": "mine.csv"', '"name": "yours"'))
    os.rename("moved", "set")
    assert command_line(["evaluate", "run"]) == 1
    assert "another than the run read" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--memory lots", "--memory 1GB", "--shards 0", "--k-core 0"])
def test_bad_options_are_refused(words, table, capsys):
    assert command_line(["datasets", "prepare", "mine.csv", "--out", "set", *words.split()]) > 0
    assert not Path("set").exists()


@pytest.mark.parametrize(
    ("words", "size"),
    [("4GB", 4 << 30), ("1500MB", 1500 << 20), ("2.5g", 5 << 29), ("123", 123), ("1 TiB", 1 << 40)],
)
def test_memory_has_units(words, size):
    from robustcf.cli.kinds import Bytes

    assert Bytes().convert(words, None, None) == size
