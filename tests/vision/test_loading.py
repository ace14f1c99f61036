"""Image sets: official archives in small, folders, npz, digits, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import socket
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


def pictures(seed, count, classes):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, size=(count, 3, 32, 32), dtype=np.uint8)
    return pixels, rng.integers(0, classes, size=count)


def cifar10_binary(path):
    members, parts = {}, []
    for n in range(1, 7):
        pixels, labels = pictures(n, 4, 10)
        parts.append((pixels, labels))
        rows = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(4, -1)], axis=1)
        name = f"data_batch_{n}.bin" if n < 6 else "test_batch.bin"
        members[f"cifar-10-batches-bin/{name}"] = rows.tobytes()
    names = "\n".join(f"class{n}" for n in range(10)) + "\n\n"
    members["cifar-10-batches-bin/batches.meta.txt"] = names.encode()
    return tar(path, members), parts


def cifar100_binary(path):
    train, test = pictures(0, 5, 100), pictures(1, 3, 100)
    members = {"cifar-100-binary/fine_label_names.txt": b"\n".join(b"c%d" % n for n in range(100))}
    for name, (pixels, labels) in (("train", train), ("test", test)):
        rows = np.concatenate(
            [np.full((len(labels), 1), 77, np.uint8), labels[:, None].astype(np.uint8),
             pixels.reshape(len(labels), -1)], axis=1,
        )  # fmt: skip
        members[f"cifar-100-binary/{name}.bin"] = rows.tobytes()
    return tar(path, members), train, test


def cifar_python(path, fine, *, spoil=None):
    train, test = pictures(0, 6, 10), pictures(1, 3, 10)
    key = "fine_labels" if fine else "labels"

    def batch(pixels, labels):
        value = {"data": pixels.reshape(len(labels), -1), key: labels.tolist(), "batch_label": "x"}
        if spoil is not None:
            value |= spoil
        return pickle.dumps(value, protocol=2)

    if fine:
        folder = "cifar-100-python"
        members = {"train": batch(*train), "test": batch(*test)}
        members["meta"] = pickle.dumps({"fine_label_names": [f"c{n}" for n in range(10)]})
    else:
        folder = "cifar-10-batches-py"
        halves = [(train[0][:2], train[1][:2]), (train[0][2:], train[1][2:])]
        members = {f"data_batch_{n + 1}": batch(*half) for n, half in enumerate(halves)}
        members |= {"test_batch": batch(*test), "readme.html": b"<html>"}
        members["batches.meta"] = pickle.dumps({"label_names": [f"c{n}" for n in range(10)]})
    return tar(path, {f"{folder}/{n}": c for n, c in members.items()}), train, test


def test_cifar_10_binary(tmp_path):
    path, parts = cifar10_binary(tmp_path / "a.tar.gz")
    train, test, classes = archives.read_cifar_binary(path)
    assert len(train) == 20
    assert classes == tuple(f"class{n}" for n in range(10))
    assert np.array_equal(train.images.numpy(), np.concatenate([p for p, _ in parts[:5]]))
    assert np.array_equal(train.labels.numpy(), np.concatenate([y for _, y in parts[:5]]))
    assert np.array_equal(test.images.numpy(), parts[5][0])


def test_cifar_100_binary_takes_the_fine_labels(tmp_path):
    path, train, test = cifar100_binary(tmp_path / "a.tar.gz")
    found, held, classes = archives.read_cifar_binary(path)
    assert np.array_equal(found.images.numpy(), train[0])
    assert np.array_equal(found.labels.numpy(), train[1])
    assert np.array_equal(held.labels.numpy(), test[1])
    assert len(classes) == 100


@pytest.mark.parametrize("fine", [False, True])
def test_cifar_python(tmp_path, fine):
    path, train, test = cifar_python(tmp_path / "a.tar.gz", fine)
    found, held, classes = archives.read_cifar_pickle(path)
    assert np.array_equal(found.images.numpy(), train[0])
    assert np.array_equal(found.labels.numpy(), train[1])
    assert np.array_equal(held.images.numpy(), test[0])
    assert classes == tuple(f"c{n}" for n in range(10))


def test_a_cifar_pickle_that_calls_a_function_is_refused(tmp_path):
    witness = tmp_path / "ran"
    evil = {"extra": Calls(exec, f"open({str(witness)!r}, 'w')")}
    path, _, _ = cifar_python(tmp_path / "a.tar.gz", True, spoil=evil)
    with pytest.raises(DataError, match="refused"):
        archives.read_cifar_pickle(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "spoil", [{"data": [1, 2]}, {"data": np.zeros((6, 5), np.uint8)}, {"fine_labels": 3}]
)
def test_cifar_pickles_with_other_contents_are_refused(tmp_path, spoil):
    path, _, _ = cifar_python(tmp_path / "a.tar.gz", True, spoil=spoil)
    with pytest.raises(DataError, match="expected uint8 pixels"):
        archives.read_cifar_pickle(path)


def test_damaged_archives(tmp_path):
    path, _ = cifar10_binary(tmp_path / "a.tar.gz")
    whole = path.read_bytes()
    for end in (0, 100, len(whole) // 2):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:end])
        with pytest.raises(DataError, match="readable"):
            archives.read_cifar_binary(tmp_path / "cut.tar.gz")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    (tmp_path / "flip.tar.gz").write_bytes(bytes(flipped))
    with pytest.raises(DataError):
        archives.read_cifar_binary(tmp_path / "flip.tar.gz")
    short = tar(
        tmp_path / "short.tar.gz",
        {"x/batches.meta.txt": b"a\nb\n", "x/data_batch_1.bin": bytes(3072)},
    )
    with pytest.raises(DataError, match="within"):
        archives.read_cifar_binary(short)
    for members, reason in (
        ({"x/batches.meta.txt": b"a"}, "holds no training images"),
        ({"x/data_batch_1.bin": bytes(3073)}, "has no member 'batches.meta.txt'"),
        ({"../evil": b""}, "leads out of the archive"),
    ):
        with pytest.raises(DataError, match=reason):
            archives.read_cifar_binary(tar(tmp_path / "b.tar.gz", members))
    unnamed = {"x/train": pickle.dumps({}), "x/meta": pickle.dumps({"fine_label_names": 1})}
    with pytest.raises(DataError):
        archives.read_cifar_pickle(tar(tmp_path / "c.tar.gz", unnamed))


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tiny_imagenet(path, *, size=64, classes=("n01", "n02")):
    rng = np.random.default_rng(0)
    members = {"wnids.txt": "\n".join(classes).encode()}
    pixels = {}
    for name in ("n01", "n02"):
        for n in range(2):
            key = f"train/{name}/images/{name}_{n}.JPEG"
            pixels[key] = rng.integers(0, 256, size=(size, size, 3), dtype=np.uint8)
            # Lossless on purpose: the reader goes by content, not by name.
            members[key] = encoded(pixels[key])
    grey = rng.integers(0, 256, size=(size, size), dtype=np.uint8)
    members["val/images/val_0.JPEG"] = encoded(grey)
    members["val/val_annotations.txt"] = b"val_0.JPEG\tn02\t0\t0\t62\t62\n"
    members["test/images/test_0.JPEG"] = b"no label, not read"
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
    with pytest.raises(DataError, match="expected 64 x 64 x 3"):
        archives.read_tiny_imagenet(tiny_imagenet(tmp_path / "u.zip", size=32)[0])
    with pytest.raises(DataError, match="wnids"):
        archives.read_tiny_imagenet(tiny_imagenet(tmp_path / "v.zip", classes=("n01",))[0])


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
    path, train, test = cifar100_binary(folder / "cifar-100-binary.tar.gz")
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    known = image_manifests()["cifar100"]
    file = SourceFile("cifar-100-binary.tar.gz", "cifar-binary", (digest,))
    counts = {"classes": 100, "train": 5, "test": 3}
    changed = dataclasses.replace(known, files=(file,), counts=counts)
    monkeypatch.setattr(loading, "image_manifests", lambda: {"cifar100": changed})
    return tmp_path / "data"


def test_a_named_set_is_found_checked_and_counted(small_cifar, monkeypatch):
    split = load_images("CIFAR100", data_dir=small_cifar)
    assert (len(split.train), len(split.test), len(split.classes)) == (5, 3, 100)
    assert list(split.sources) == ["cifar-100-binary.tar.gz"]
    archive = small_cifar / "cifar100" / "cifar-100-binary.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(DownloadError, match="cifar100.*another checksum"):
        load_images("cifar100", data_dir=small_cifar, download=False)


def test_fetching_by_name(small_cifar, monkeypatch, capsys):
    known = loading.image_manifests()
    monkeypatch.setattr("robustcf.vision.catalog.image_manifests", lambda: known)
    assert run(["datasets", "fetch", "cifar100", "--data-dir", str(small_cifar), "--json"]) == 0
    fetched = json.loads(capsys.readouterr().out)["fetched"]["cifar100"]
    assert fetched[0]["file"].endswith("cifar-100-binary.tar.gz")
    assert not fetched[0]["downloaded"]
    assert run(["datasets", "fetch", "cifar1000"]) == 1
    assert "or of images: cifar100" in capsys.readouterr().err


def test_another_count_is_another_set(small_cifar, monkeypatch):
    changed = dataclasses.replace(
        loading.image_manifests()["cifar100"], counts={"classes": 100, "train": 9, "test": 3}
    )
    monkeypatch.setattr(loading, "image_manifests", lambda: {"cifar100": changed})
    with pytest.raises(DataError, match="this is another set"):
        load_images("cifar100", data_dir=small_cifar)


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
    np.savez(path, **arrays)
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
    one = load_images(npz(tmp_path / "b.npz", x=x[..., 0], y=y), seed=1, valid_share=0.25)
    assert (len(one.train), len(one.valid), len(one.test)) == (12, 4, 4)
    assert one.train.images.shape[1:] == (1, 6, 5)
    again = load_images(tmp_path / "b.npz", seed=1, valid_share=0.25)
    other = load_images(tmp_path / "b.npz", seed=2, valid_share=0.25)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    pixels = sorted(
        map(bytes, torch.cat([p.images for p in (one.train, one.valid, one.test)]).numpy())
    )
    assert pixels == sorted(map(bytes, x[..., 0]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": np.zeros((10, 2, 2))}, "expected uint8"),
        ({"x": np.zeros((10, 2), np.uint8)}, "expected uint8"),
        ({"x": np.zeros((10, 2, 2, 4), np.uint8)}, "1 or 3 channels"),
        ({"y": np.zeros(3, int)}, "10 integer labels"),
        ({"y": np.zeros(10)}, "10 integer labels"),
        ({"z": np.zeros(4)}, None),
        ({"y": np.array([0, 1, -1, 0] + 6 * [1])}, "labels must lie in 0 ..."),
        ({"label_names": np.array(["a"])}, "labels must lie in 0 ... 0, got"),
    ],
)
def test_npz_that_breaks_a_rule(tmp_path, change, reason):
    arrays = {"x": np.zeros((10, 2, 2), np.uint8), "y": np.arange(10) % 2} | change
    path = npz(tmp_path / "a.npz", **arrays)
    if reason is None:
        assert load_images(path).name == "a"
        path = npz(tmp_path / "a.npz", x=arrays["x"])
        reason = "expected the arrays"
    with pytest.raises(DataError, match=reason):
        load_images(path, valid_share=0.3)


def test_npz_with_objects_or_rubbish(tmp_path):
    path = npz(tmp_path / "a.npz", x=np.array([{}], dtype=object), y=np.array([0]))
    with pytest.raises(DataError, match="an array of objects|not a readable npz file"):
        load_images(path)
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="an array of objects|not a readable npz file"):
        load_images(path)


def folder_of(path, shape=(5, 5, 3), count=5):
    rng = np.random.default_rng(len(path.name))
    for name in ("ant", "bee"):
        (path / name).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 256, size=shape, dtype=np.uint8)
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
    (path / "bee" / "9.png").write_bytes(encoded(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(DataError, match="images"):
        load_images(path)
    (path / "bee" / "9.png").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="readable"):
        load_images(path)
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="classes"):
        load_images(tmp_path / "empty")
    (tmp_path / "empty" / "b").mkdir()
    with pytest.raises(DataError, match="holds"):
        load_images(tmp_path / "empty")
    with pytest.raises(DataError, match="nothing"):
        load_images("nothing")


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **kwargs):
        if name.startswith(("PIL", "sklearn")):
            raise ImportError(name)
        return real(name, *rest, **kwargs)

    path = folder_of(tmp_path / "one")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="install"):
        load_images(path)
    with pytest.raises(InputError, match="scikit-learn: pip install"):
        load_images("digits")


def test_resizing_averages(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(10, 8, 8), dtype=np.uint8)
    path = npz(tmp_path / "a.npz", x=x, y=np.arange(10) % 2)
    small = load_images(path, size=4)
    whole = load_images(path)
    expected = whole.test.images.double().reshape(-1, 1, 4, 2, 4, 2).mean(dim=(3, 5)).round()
    assert torch.equal(small.test.images.double(), expected)
    assert load_images(path, size=8).fingerprint == whole.fingerprint
    for size in (0, 9):
        with pytest.raises(InputError, match="size"):
            load_images(path, size=size)


def test_containers_check_themselves():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0])
    with pytest.raises(DataError, match="expected uint8 images"):
        ImageSet(images.float(), labels)
    with pytest.raises(DataError, match="label"):
        ImageSet(images, labels[:2])
    good = ImageSet(images, labels)
    wide = ImageSet(torch.zeros(1, 1, 2, 3, dtype=torch.uint8), torch.tensor([0]))
    names = ("a", "b")
    with pytest.raises(DataError, match="shape"):
        ImageSplit("x", good, good, wide, names, (0.5,), (0.5,))
    with pytest.raises(DataError, match="image"):
        ImageSplit("x", good.take(slice(0, 0)), good, good, names, (0.5,), (0.5,))
    with pytest.raises(DataError, match="channels"):
        ImageSplit("x", good, good, good, names, (0.5, 0.5), (0.5, 0.5))
    with pytest.raises(InputError, match=r"must lie in \[0, 1\)"):
        hold_out(good, 1.0, 0, "valid")


def test_recipes_of_the_sets():
    assert loading.augmentation_for("cifar100", 32) == augment.CIFAR
    assert loading.augmentation_for("tinyimagenet", 64) == augment.TINY_IMAGENET
    assert loading.augmentation_for("digits", 8) == augment.DIGITS
    assert loading.augmentation_for("mine", 16).padding == 2


@pytest.mark.realdata
def test_the_real_subsets(real_data):
    for name, classes, train in (("cifar10", 10, 4000), ("cifar100", 100, 8000)):
        split = load_images(real_data / name / f"{name}_subset.npz")
        assert (len(split.train), len(split.classes)) == (train, classes)
        assert split.train.images.shape[1:] == (3, 32, 32)
        # The published channel means of the whole sets, which a fair subset is close to.
        mean = split.train.images.double().mean(dim=(0, 2, 3)) / 255
        published = {"cifar10": [0.4914, 0.4822, 0.4465], "cifar100": [0.5071, 0.4865, 0.4409]}
        assert np.allclose(mean, published[name], atol=0.01)


# --- files that mean harm -------------------------------------------------------------------


def png_of(width, height):
    """The head of a PNG file of any size; its pixels are never reached."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + check

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    pixels = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def image_folder(path, *, size=(8, 8), count=3):
    for name in ("a", "b"):
        (path / name).mkdir(parents=True)
        for n in range(count):
            (path / name / f"{n}.png").write_bytes(encoded(np.zeros((*size, 3), np.uint8)))
    return path


@pytest.mark.parametrize("size", [(30_000, 30_000), (1, 2**24 + 1), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels_is_refused(tmp_path, size):
    folder = image_folder(tmp_path / "set")
    (folder / "a" / "large.png").write_bytes(png_of(*size))
    with pytest.raises(DataError, match="pixels") as refusal:
        load_images(folder)
    assert "ROBUSTCF_LIMITS=image_pixels=" in str(refusal.value)


def test_the_limit_of_pixels_can_be_raised(tmp_path):
    folder = image_folder(tmp_path / "set", size=(20, 20))
    with raised_limits(image_pixels=399), pytest.raises(DataError, match="pixels"):
        load_images(folder)
    with raised_limits(image_pixels=400):
        assert load_images(folder).train.images.shape[2:] == (20, 20)


def test_images_that_grow_without_bound_together_are_refused(tmp_path):
    folder = image_folder(tmp_path / "set", size=(300, 300), count=6)
    with raised_limits(small_bytes=1 << 20):
        with pytest.raises(DataError, match="images"):
            load_images(folder)
        with raised_limits(expansion=2000):
            assert len(load_images(folder).train) == 10


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "dangling"])
def test_what_is_no_file_among_the_images_is_named_and_not_waited_for(tmp_path, kind, monkeypatch):
    folder = image_folder(tmp_path / "set")
    monkeypatch.chdir(folder)
    odd = Path("a") / "odd.png"
    listening = socket.socket(socket.AF_UNIX)
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    elif kind == "folder":
        odd.mkdir()
    elif kind == "socket":
        listening.bind(str(odd))
    else:
        odd.symlink_to("nowhere")
    with (
        listening,
        pytest.raises(DataError, match="odd.png: (expected a regular|cannot be opened)"),
    ):
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
            with suppress(DataError):  # nothing else, and no warning
                archives.decode(bytes(broken), "it")


def test_npz_images_that_grow_without_bound_are_refused(tmp_path):
    pixels = np.zeros((400, 32, 32, 3), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=pixels, y=np.arange(400) % 2)
    with raised_limits(small_bytes=1 << 20), pytest.raises(DataError, match="takes"):
        load_images(tmp_path / "a.npz")
    assert len(load_images(tmp_path / "a.npz").train) == 320


def test_npz_with_odd_names_or_no_images(tmp_path):
    x, y = np.zeros((4, 2, 2), np.uint8), np.arange(4) % 2
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "a.npz", **parts, label_names=np.array("one"))
    with pytest.raises(DataError, match="label_names"):
        load_images(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **parts | {"x_test": x[:0], "y_test": y[:0]})
    with pytest.raises(DataError, match="image"):
        load_images(tmp_path / "a.npz")


def test_tiny_imagenet_with_damaged_lists(tmp_path):
    path, _, _ = tiny_imagenet(tmp_path / "t.zip")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, content, reason in (
        ("val/val_annotations.txt", b"val_0.JPEG\n", "a line without a class"),
        ("wnids.txt", b"n01\n\xff\xfe", "wnids.txt does not list"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for other, kept in (members | {f"tiny-imagenet-200/{name}": content}).items():
                archive.writestr(other, kept)
        with pytest.raises(DataError, match=reason):
            archives.read_tiny_imagenet(path)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("largest", [100_000, 10**12, 2**62])
def test_absurdly_many_classes_are_refused(tmp_path, named, largest):
    """Each would take a name: a few bytes of labels, any number of names."""
    arrays = {f"x_{part}": np.zeros((4, 2, 2), np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.array([0, 1, 2, largest]) for part in ("train", "test")}
    if named:
        arrays["label_names"] = np.zeros(100_001, np.int8)
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match="classes"):
        load_images(tmp_path / "a.npz")
