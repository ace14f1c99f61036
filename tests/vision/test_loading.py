"""Image sets: official archives in small, folders, npz, digits, and the files that are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import socket
import sys
import tarfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from robustcf._io.limits import raised_limits
from robustcf.cli.main import run
from robustcf.data.catalog import SourceFile
from robustcf.errors import DataError, DownloadError, InputError
from robustcf.vision import archives, augment, load_images, loading
from robustcf.vision.catalog import image_manifests
from robustcf.vision.images import ImageSet, ImageSplit, hold_out
from tests._io.test_unpickling import Calls

Image = pytest.importorskip("PIL.Image")


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def cifar(path, *, fine, kind, spoil=None):
    """A small CIFAR archive, and its (pixels, labels) of train and test."""
    rng = np.random.default_rng(0)
    train, test = (
        (rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, size=n))
        for n in (6, 3)
    )
    parts = {"train": train, "test": test}
    if not fine:
        parts = {f"data_batch_{n + 1}": [p[3 * n : 3 * n + 3] for p in train] for n in (0, 1)}
        parts["test_batch"] = test
    names = [f"c{n}" for n in range(10)]
    if kind == "binary":
        head = b"M" if fine else b""  # CIFAR-100 has a coarse label before the fine one
        members = {
            f"{name}.bin": b"".join(
                head + bytes([label]) + image.tobytes() for image, label in zip(*part, strict=True)
            )
            for name, part in parts.items()
        }
        meta = "fine_label_names.txt" if fine else "batches.meta.txt"
        members[meta] = "\n".join([*names, ""]).encode()
    else:
        key = "fine_labels" if fine else "labels"
        members = {"readme.html": b"<html>"}
        for name, (pixels, labels) in parts.items():
            value = {"data": pixels.reshape(len(labels), -1), key: labels.tolist(), "other": "x"}
            members[name] = pickle.dumps(value | (spoil or {}), protocol=2)
        meta = {"fine_label_names" if fine else "label_names": names}
        members["meta" if fine else "batches.meta"] = pickle.dumps(meta)
    return tar(path, {f"cifar/{name}": content for name, content in members.items()}), train, test


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("kind", ["binary", "pickle"])
def test_cifar(tmp_path, kind, fine):
    path, *expected = cifar(tmp_path / "a.tar.gz", fine=fine, kind=kind)
    *found, classes = archives.READERS[f"cifar-{kind}"](path)
    for part, (pixels, labels) in zip(found, expected, strict=True):
        assert np.array_equal(part.images.numpy(), pixels)
        assert np.array_equal(part.labels.numpy(), labels)
    assert classes == tuple(f"c{n}" for n in range(10))


def test_a_cifar_pickle_that_calls_a_function_is_refused(tmp_path):
    witness = tmp_path / "ran"
    evil = {"extra": Calls(exec, f"open({str(witness)!r}, 'w')")}
    path, *_ = cifar(tmp_path / "a.tar.gz", fine=True, kind="pickle", spoil=evil)
    with pytest.raises(DataError, match="refused"):
        archives.read_cifar_pickle(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "spoil",
    [
        {"data": [1, 2]},
        {"data": np.zeros((6, 5), np.uint8)},
        {"fine_labels": 3},
        {"fine_labels": [1, 2]},
    ],
)
def test_cifar_pickles_with_other_contents_are_refused(tmp_path, spoil):
    path, *_ = cifar(tmp_path / "a.tar.gz", fine=True, kind="pickle", spoil=spoil)
    with pytest.raises(DataError, match="expected uint8 pixels"):
        archives.read_cifar_pickle(path)


def test_damaged_archives(tmp_path):
    path, *_ = cifar(tmp_path / "a.tar.gz", fine=False, kind="binary")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[60] ^= 0xFF  # in the header of a member
    for content in (b"", whole[:100], whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(DataError, match="readable"):
            archives.read_cifar_binary(path)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"batches.meta.txt": b"a\nb\n", "data_batch_1.bin": bytes(3072)}, "ends within an image"),
        ({"batches.meta.txt": b"a"}, "holds no training images"),
        ({"data_batch_1.bin": bytes(3073)}, "has no member 'batches.meta.txt'"),
        ({"../../evil": b""}, "leads out of the archive"),
        ({"train": pickle.dumps({}), "meta": pickle.dumps({"fine_label_names": 1})}, "expected"),
    ],
)
def test_archives_with_other_members(tmp_path, members, reason):
    path = tar(tmp_path / "a.tar.gz", {f"x/{name}": content for name, content in members.items()})
    read = archives.read_cifar_pickle if "meta" in members else archives.read_cifar_binary
    with pytest.raises(DataError, match=reason):
        read(path)


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tiny_imagenet(path, *, size=64, **changes):
    rng = np.random.default_rng(0)
    pixels = {
        f"train/{name}/images/{name}_{n}.JPEG": rng.integers(0, 256, (size, size, 3), np.uint8)
        for name in ("n01", "n02")
        for n in range(2)
    }
    grey = rng.integers(0, 256, size=(size, size), dtype=np.uint8)
    # Lossless on purpose: the reader goes by content, not by name.
    members = {name: encoded(image) for name, image in pixels.items()}
    members["val/images/val_0.JPEG"] = encoded(grey)
    members["test/images/test_0.JPEG"] = b"no label, not read"
    members["wnids.txt"] = changes.get("wnids", b"n01\nn02")
    members["val/val_annotations.txt"] = changes.get("val", b"val_0.JPEG\tn02\t0\t0\t62\t62\n")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path, pixels, grey


def test_tiny_imagenet(tmp_path):
    path, pixels, grey = tiny_imagenet(tmp_path / "t.zip")
    train, test, classes = archives.read_tiny_imagenet(path)
    assert classes == ("n01", "n02")
    assert train.labels.tolist() == [0, 0, 1, 1]
    expected = np.stack([pixels[key] for key in sorted(pixels)]).transpose(0, 3, 1, 2)
    assert np.array_equal(train.images.numpy(), expected)
    assert test.labels.tolist() == [1]
    assert np.array_equal(test.images[0, 1].numpy(), grey)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 32}, "expected 64 x 64 x 3"),
        ({"wnids": b"n01"}, "wnids.txt does not list"),
        ({"wnids": b"n01\n\xff\xfe"}, "wnids.txt does not list"),
        ({"val": b"val_0.JPEG\n"}, "a line without a class"),
        ({"val": b"val_1.JPEG\tn02\n"}, "has no member"),
    ],
)
def test_damaged_tiny_imagenet(tmp_path, change, reason):
    with pytest.raises(DataError, match=reason):
        archives.read_tiny_imagenet(tiny_imagenet(tmp_path / "t.zip", **change)[0])


def test_the_catalogue():
    for name, manifest in image_manifests().items():
        assert manifest.name == name
        assert all(url.startswith("http") for file in manifest.files for url in file.urls)
        assert all(file.checksums and file.format in archives.READERS for file in manifest.files)
        assert {"classes", "train", "test"} == set(manifest.counts)
    assert image_manifests()["cifar100"].mean == (0.5, 0.5, 0.5)
    assert image_manifests()["tinyimagenet"].std == (0.229, 0.224, 0.225)


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """A cifar100 whose archive and counts are small, known by its checksum."""
    folder = tmp_path / "data" / "cifar100"
    folder.mkdir(parents=True)
    path, *_ = cifar(folder / "cifar-100-binary.tar.gz", fine=True, kind="binary")
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    known = image_manifests()["cifar100"]
    file = SourceFile("cifar-100-binary.tar.gz", "cifar-binary", (digest,))
    counts = {"classes": 10, "train": 6, "test": 3}
    changed = {"cifar100": dataclasses.replace(known, files=(file,), counts=counts)}
    for module in ("loading", "catalog"):
        monkeypatch.setattr(f"robustcf.vision.{module}.image_manifests", lambda: changed)
    return tmp_path / "data", changed


def test_a_named_set_is_found_checked_and_counted(small_cifar, capsys):
    folder, known = small_cifar
    split = load_images("CIFAR100", data_dir=folder)
    assert (len(split.train), len(split.test), len(split.classes)) == (6, 3, 10)
    assert list(split.sources) == ["cifar-100-binary.tar.gz"]
    assert run(["datasets", "fetch", "cifar100", "--data-dir", str(folder), "--json"]) == 0
    fetched = json.loads(capsys.readouterr().out)["fetched"]["cifar100"]
    assert fetched[0]["file"].endswith("cifar-100-binary.tar.gz")
    assert not fetched[0]["downloaded"]
    assert run(["datasets", "fetch", "cifar1000"]) == 1
    assert "or of images: cifar100" in capsys.readouterr().err
    counts = {"classes": 10, "train": 9, "test": 3}
    known["cifar100"] = dataclasses.replace(known["cifar100"], counts=counts)
    with pytest.raises(DataError, match="this is another set"):
        load_images("cifar100", data_dir=folder)
    archive = folder / "cifar100" / "cifar-100-binary.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(DownloadError, match="cifar100.*another checksum"):
        load_images("cifar100", data_dir=folder, download=False)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    split = load_images("digits")
    found = load_digits()
    assert len(split.train) + len(split.test) == len(found.images)
    both = torch.cat([split.train.images, split.test.images]).double().mul(16 / 255).round()
    ours = sorted(map(bytes, both.to(torch.uint8).numpy().reshape(-1, 64)))
    theirs = sorted(map(bytes, found.images.astype(np.uint8).reshape(-1, 64)))
    assert ours == theirs
    assert split.fingerprint == load_images("digits", seed=9).fingerprint


def npz(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def test_npz_of_both_kinds(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(20, 6, 5, 3), dtype=np.uint8)
    y = np.arange(20) % 2
    split = load_images(npz(tmp_path / "a.npz", x_train=x[:15], y_train=y[:15], x_test=x[15:],
                            y_test=y[15:], label_names=np.array(["cat", "dog"])))  # fmt: skip
    assert split.classes == ("cat", "dog")
    assert np.array_equal(split.train.images.numpy(), x[:15].transpose(0, 3, 1, 2))
    assert split.test.labels.tolist() == y[15:].tolist()
    path = npz(tmp_path / "b.npz", x=x[..., 0], y=y, z=np.zeros(4))
    one, again, other = (load_images(path, seed=seed, valid_share=0.25) for seed in (1, 1, 2))
    assert list(map(len, one.parts)) == [12, 4, 4]
    assert one.train.images.shape[1:] == (1, 6, 5)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    pixels = sorted(map(bytes, torch.cat([part.images for part in one.parts]).numpy()))
    assert pixels == sorted(map(bytes, x[..., 0]))


X, Y = np.zeros((10, 2, 2), np.uint8), np.arange(10) % 2
PARTS = {"x": None, "x_train": X, "y_train": Y, "x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": np.zeros((10, 2, 2))}, "expected uint8"),
        ({"x": np.zeros((10, 2), np.uint8)}, "expected uint8"),
        ({"x": np.zeros((10, 2, 2, 4), np.uint8)}, "1 or 3 channels"),
        ({"y": np.zeros(3, int)}, "10 integer labels"),
        ({"y": np.zeros(10)}, "10 integer labels"),
        ({"y": None}, "expected the arrays"),
        ({"y": np.array([0, 1, -1, 0] + 6 * [1])}, "labels must lie in 0 ..."),
        ({"label_names": np.array(["a"])}, "labels must lie in 0 ... 0, got"),
        ({"x": np.array([{}], dtype=object)}, "an array of objects|not a readable npz file"),
        ({**PARTS, "label_names": np.array("one")}, "label_names"),
        ({**PARTS, "x_test": X[:0], "y_test": Y[:0]}, "at least one image"),
        # Each class would take a name: a few bytes of labels, any number of names.
        ({**PARTS, "label_names": np.zeros(100_001, np.int8)}, "classes"),
        *(({**PARTS, "y_test": Y * n}, "classes") for n in (100_000, 10**12, 2**62)),
    ],
)
def test_npz_that_breaks_a_rule(tmp_path, change, reason):
    arrays = {"x": X, "y": Y} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(DataError, match=reason):
        load_images(npz(tmp_path / "a.npz", **arrays), valid_share=0.3)


def test_npz_files_that_are_rubbish_or_grow_without_bound(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="not a readable npz file"):
        load_images(path)
    npz(path, x=np.zeros((400, 32, 32, 3), np.uint8), y=np.arange(400) % 2)
    with raised_limits(small_bytes=1 << 20), pytest.raises(DataError, match="takes"):
        load_images(path)
    assert len(load_images(path).train) == 320


def folder_of(path, *, size=(5, 5), count=5):
    rng = np.random.default_rng(len(path.name))
    for name in ("ant", "bee"):
        (path / name).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 2, size=(*size, 3), dtype=np.uint8)
            (path / name / f"{n}.png").write_bytes(encoded(pixels))
    (path / "ant" / "notes.txt").write_text("not an image")
    return path


def test_folders(tmp_path):
    split = load_images(folder_of(tmp_path / "one"))
    assert split.classes == ("ant", "bee")
    assert (len(split.train), len(split.test)) == (8, 2)
    assert split.test.labels.tolist() == [0, 1]
    folder_of(tmp_path / "two" / "train")
    folder_of(tmp_path / "two" / "test", count=2)
    both = load_images(tmp_path / "two")
    assert (len(both.train), len(both.test)) == (10, 4)
    first = np.asarray(Image.open(tmp_path / "two" / "train" / "ant" / "0.png"))
    assert np.array_equal(both.train.images[0].permute(1, 2, 0).numpy(), first)
    (tmp_path / "two" / "test" / "cow").mkdir()
    with pytest.raises(DataError, match="classes"):
        load_images(tmp_path / "two")


def test_folders_that_break_a_rule(tmp_path):
    path = folder_of(tmp_path / "one")
    for content, reason in (
        (encoded(np.zeros((4, 4, 3), np.uint8)), "one size"),
        (b"rubbish", "readable"),
    ):
        (path / "bee" / "9.png").write_bytes(content)
        with pytest.raises(DataError, match=reason):
            load_images(path)
    for name, reason in (("a", "two classes"), ("b", "holds no .png")):
        (tmp_path / "empty" / name).mkdir(parents=True)
        with pytest.raises(DataError, match=reason):
            load_images(tmp_path / "empty")
    with pytest.raises(DataError, match="nothing"):
        load_images("nothing")


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    path = folder_of(tmp_path / "one")
    for module in ("PIL", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match="Pillow: pip install"):
        load_images(path)
    with pytest.raises(InputError, match="scikit-learn: pip install"):
        load_images("digits")


def test_resizing_averages(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(10, 8, 8), dtype=np.uint8)
    path = npz(tmp_path / "a.npz", x=x, y=Y)
    small, whole = load_images(path, size=4), load_images(path)
    expected = whole.test.images.double().reshape(-1, 1, 4, 2, 4, 2).mean(dim=(3, 5)).round()
    assert torch.equal(small.test.images.double(), expected)
    assert load_images(path, size=8).fingerprint == whole.fingerprint
    for size in (0, 9):
        with pytest.raises(InputError, match="size"):
            load_images(path, size=size)


def test_containers_check_themselves():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0])
    good = ImageSet(images, labels)
    wide = ImageSet(torch.zeros(1, 1, 2, 3, dtype=torch.uint8), torch.tensor([0]))
    empty, names, one = good.take(slice(0, 0)), ("a", "b"), (0.5,)
    for make, error, reason in (
        (lambda: ImageSet(images.float(), labels), DataError, "expected uint8 images"),
        (lambda: ImageSet(images, labels[:2]), DataError, "label"),
        (lambda: ImageSplit("x", good, good, wide, names, one, one), DataError, "shape"),
        (lambda: ImageSplit("x", empty, good, good, names, one, one), DataError, "image"),
        (lambda: ImageSplit("x", good, good, good, names, 2 * one, 2 * one), DataError, "channels"),
        (lambda: hold_out(good, 1.0, 0, "valid"), InputError, r"must lie in \[0, 1\)"),
    ):
        with pytest.raises(error, match=reason):
            make()


def test_recipes_of_the_sets():
    assert loading.augmentation_for("cifar100", 32) == augment.CIFAR
    assert loading.augmentation_for("tinyimagenet", 64) == augment.TINY_IMAGENET
    assert loading.augmentation_for("digits", 8) == augment.DIGITS
    assert loading.augmentation_for("mine", 16).padding == 2


@pytest.mark.realdata
def test_the_real_subsets(real_data):
    # The published channel means of the whole sets, which a fair subset is close to.
    for name, classes, train, published in (
        ("cifar10", 10, 4000, [0.4914, 0.4822, 0.4465]),
        ("cifar100", 100, 8000, [0.5071, 0.4865, 0.4409]),
    ):
        split = load_images(real_data / name / f"{name}_subset.npz")
        assert (len(split.train), len(split.classes)) == (train, classes)
        assert split.train.images.shape[1:] == (3, 32, 32)
        mean = split.train.images.double().mean(dim=(0, 2, 3)) / 255
        assert np.allclose(mean, published, atol=0.01)


# --- malicious files ------------------------------------------------------------------------


def png_of(width, height):
    """The head of a PNG file of any size; its pixels are never reached."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + check

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    pixels = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(30_000, 30_000), (1, 2**24 + 1), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels_is_refused(tmp_path, size):
    folder = folder_of(tmp_path / "set")
    (folder / "ant" / "large.png").write_bytes(png_of(*size))
    with pytest.raises(DataError, match="pixels") as refusal:
        load_images(folder)
    assert "ROBUSTCF_LIMITS=image_pixels=" in str(refusal.value)


def test_limits_of_images_can_be_raised(tmp_path):
    folder = folder_of(tmp_path / "set", size=(20, 20))
    with raised_limits(image_pixels=399), pytest.raises(DataError, match="pixels"):
        load_images(folder)
    with raised_limits(image_pixels=400):
        assert load_images(folder).train.images.shape[2:] == (20, 20)
    folder = tmp_path / "large"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for n in range(6):
            (folder / name / f"{n}.png").write_bytes(encoded(np.zeros((300, 300, 3), np.uint8)))
    with raised_limits(small_bytes=1 << 20):
        with pytest.raises(DataError, match="images"):
            load_images(folder)
        with raised_limits(expansion=2000):
            assert len(load_images(folder).train) == 10


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "dangling"])
def test_special_files_among_the_images_are_refused_without_waiting(tmp_path, kind, monkeypatch):
    folder = folder_of(tmp_path / "set")
    monkeypatch.chdir(folder)
    odd = Path("ant") / "odd.png"
    with socket.socket(socket.AF_UNIX) as listening:
        {
            "pipe": lambda: os.mkfifo(odd),
            "device": lambda: odd.symlink_to("/dev/zero"),
            "folder": odd.mkdir,
            "socket": lambda: listening.bind(str(odd)),
            "dangling": lambda: odd.symlink_to("nowhere"),
        }[kind]()
        with pytest.raises(DataError, match="odd.png: (expected a regular|cannot be opened)"):
            load_images(folder)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_images_are_decoded_or_refused(tmp_path, seed):
    rng = np.random.default_rng(seed)
    for kind in ("PNG", "JPEG"):
        whole = encoded(rng.integers(0, 256, size=(8, 8, 3), dtype=np.uint8), kind)
        for _ in range(60):
            broken = bytearray(whole)
            for place in rng.integers(len(broken), size=3):
                broken[place] = rng.integers(256)
            broken = broken[: rng.integers(1, len(broken) + 1)]
            with suppress(DataError):  # no other error, and no warning
                archives.decode(bytes(broken), "it")
