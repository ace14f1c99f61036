"""``robustcf datasets``: lists, facts and downloads."""

from __future__ import annotations

import hashlib

import pytest

from tests._io.faulty_server import Plan, serve


def test_datasets_lists_every_set(call, found, tmp_path):
    entries = {entry["name"]: entry for entry in found("datasets")["datasets"]}
    assert entries["yelp2018"]["interactions"] == 1_561_406
    assert (entries["demo"]["present"], entries["demo"]["where"]) == (True, "generated")
    assert "citeulike-t (citeulike)" in call("datasets")[1]
    absent = found("datasets", "--data-dir", tmp_path)["datasets"]
    assert {(e["present"], e["where"]) for e in absent if e["name"] == "ml-1m"} == {(False, None)}


def test_info_as_text_and_json(call, found):
    facts = found("datasets", "info", "demo")
    counts = {key: facts[key] for key in ("n_users", "n_items", "train", "valid", "test")}
    assert counts == dict(n_users=2000, n_items=1500, train=80_846, valid=9_067, test=10_087)
    code, out, err = call("datasets", "info", "demo")
    assert (code, err) == (0, "")
    assert "80,846" in out
    assert "synthetic" in out
    other = found("datasets", "info", "demo", "--seed", 1)
    assert other["fingerprint"] != facts["fingerprint"]


def test_info_on_own_file_with_options(found, tmp_path):
    mine, many = tmp_path / "my.csv", tmp_path / "many.csv"
    mine.write_text("who,what,stars\na,x,5\na,y,5\nb,x,1\nb,y,4\n")
    columns = ["--user-col", "who", "--item-col", "what", "--min-rating", "4"]
    facts = found("datasets", "info", mine, *columns)
    assert (facts["n_users"], facts["train"], facts["test"]) == (2, 2, 1)
    assert facts["notes"][0] == "my.csv: 1 pair rated below 4 dropped"
    assert facts["labels"] == {"users": True, "items": True}
    many.write_text("user,item\n" + "".join(f"a,{n}\n" for n in range(10)))
    assert found("datasets", "info", many, "--test-ratio", "0.35")["test"] == 4


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml-1m", dict(n_users=6022, n_items=3043, train=796_244, valid=99_455, test=99_455)),
        ("yelp2018", dict(n_users=31_668, n_items=38_048, test=324_147)),
        ("gowalla", dict(n_users=29_858, n_items=40_981, test=217_242)),
        ("citeulike-a", dict(n_users=5551, n_items=16_980)),
        ("citeulike-t", dict(n_users=7947, n_items=25_584)),
        ("ml-100k", dict(n_users=943, n_items=1682)),
    ],
)
def test_info_on_the_real_sets(found, real_data, name, expected):
    facts = found("datasets", "info", name, "--data-dir", real_data)
    assert {key: facts[key] for key in expected} == expected
    if name == "yelp2018":
        assert facts["train"] + facts["valid"] == 1_237_259


@pytest.mark.realdata
def test_fetch_leaves_what_is_there_alone(found, real_data):
    fetched = found("datasets", "fetch", "ml-1m", "demo", "--data-dir", real_data)["fetched"]
    assert [entry["downloaded"] for entry in fetched["ml-1m"]] == [False, False, False]
    assert fetched["demo"] == []


def test_fetch_downloads_what_it_can_and_says_what_it_could_not(call, found, tmp_path, monkeypatch):
    from robustcf.data import catalog
    from robustcf.data.catalog import Manifest, SourceFile

    body = b"0 1 2\n"
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    with serve(Plan(body)) as good, serve(Plan(body, ["404"])) as gone:
        facts = dict(title="t", layout="split", counts={}, labels={}, homepage="")
        facts |= dict(licence="", citation="")
        parts = {
            "train": (SourceFile("train.txt", "adjacency", (digest,), (good.url,)),),
            "test": (SourceFile("test.txt", "adjacency", (digest,), (gone.url,)),),
        }
        toys = {
            "whole": Manifest("whole", parts={"train": parts["train"]}, **facts),
            "half": Manifest("half", parts=parts, **facts),
        }
        monkeypatch.setattr(catalog, "manifests", lambda: toys)
        folder = ["--data-dir", tmp_path]
        first = found("datasets", "fetch", "whole", *folder)["fetched"]["whole"]
        assert first[0]["downloaded"] is True
        assert "already there" in call("datasets", "fetch", "whole", *folder)[1]
        code, _, err = call("datasets", "fetch", "half", "whole", *folder)
    assert code == 1
    assert "2 files are there, 1 failed" in err
    assert f"{gone.url}: HTTP 404" in err
    assert (tmp_path / "half" / "train.txt").read_bytes() == body


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["info"], 2, "NAME"),
        (["info", "demo", "--seed", "x"], 2, "--seed"),
        (["info", "demo", "--seed", "-1"], 2, "range"),
        (["info", "x.csv", "--test-ratio", "1.5"], 2, "range"),
        (["info", "x.csv", "--k-core", "0"], 2, "range"),
        (["--json", "info", "demo"], 2, "behind the subcommand"),
        (["--data-dir", "x", "info", "demo"], 2, "behind the subcommand"),
        (["info", "nothing-like-it"], 1, "no data set or file is called 'nothing-like-it'"),
        (["info", "ml-1m", "--data-dir", "TMP", "--no-download"], 1, "downloading is off"),
        (["fetch", "ml-1m", "--data-dir", "TMP/blocked"], 1, "--data-dir"),
    ],
)
def test_refusals(call, tmp_path, words, code, reason):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    got, _, err = call("datasets", *(word.replace("TMP", str(tmp_path)) for word in words))
    assert (got, err.count("\n")) == (code, 1)
    assert reason in err
