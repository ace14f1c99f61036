"""The recipe, a real learning test, the loop next to a plain one, resuming bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from robustcf._io import files
from robustcf.errors import DataError, InputError, TrainingError, UnfinishedError
from robustcf.vision import ImageSet, ImageSplit, VisionConfig, fit, jacobian_norms, load_images
from robustcf.vision.augment import NOTHING
from robustcf.vision.config import VisionRunConfig
from robustcf.vision.measures import accuracy
from robustcf.vision.runs import VisionRun, open_or_create
from robustcf.vision.training import batches, build

TINY = VisionConfig(depth=10, width=1, epochs=2, batch_size=16)


def toy(seed: int = 0, count: int = 48) -> ImageSplit:
    """Two classes told apart by where the light is: learnt in seconds."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    pixels = rng.integers(0, 90, size=(count, 1, 8, 8))
    pixels[labels == 1, :, :4] += 120
    pixels[labels == 0, :, 4:] += 120
    data = ImageSet(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(labels))
    half = count // 2
    return ImageSplit(
        "toy", data.take(slice(0, half)), data.take(slice(0, 0)), data.take(slice(half, count)),
        ("a", "b"), (0.5,), (0.5,),
    )  # fmt: skip


def test_the_defaults_are_the_papers_recipe():
    config = VisionConfig()
    assert (config.depth, config.width, config.batch_size) == (16, 10, 128)
    assert (config.momentum, config.weight_decay, config.epochs) == (0.9, 5e-5, 200)
    rates = [config.lr_at(epoch) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    expected = [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
    assert rates == pytest.approx(expected)
    assert VisionConfig(milestones=[1, 2], epochs=4).lr_at(3) == pytest.approx(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["none", "two_to_inf"])
def test_the_loop_does_what_a_plain_one_does(reg):
    """torch's own SGD and scheduler, written out, reach the same weights."""
    split = toy()
    config = TINY.replace(epochs=3, reg=reg, reg_weight=0.01, augment=False, milestones=(1, 2))
    fitted = fit(split, config)
    net = build(split, config)
    penalty = config.regularizer()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.1)
    net.train()
    for epoch in range(3):
        for x, y in batches(split.train, NOTHING, config, epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            if penalty is not None:
                loss = loss + 0.01 * penalty(net, x)
            loss.backward()
            optimizer.step()
        scheduler.step()
    for (name, ours), theirs in zip(
        fitted.model.state_dict().items(), net.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4, msg=name)


def test_batches_cover_every_image_once_and_are_seeded():
    split = toy(count=50)
    config = TINY.replace(batch_size=7)
    for epoch in (0, 1):
        seen = torch.cat([x for x, _ in batches(split.train, NOTHING, config, epoch)])
        assert torch.equal(
            seen.flatten(1).sum(dim=1).sort().values,
            (split.train.images.float() / 255).flatten(1).sum(dim=1).sort().values,
        )
    first = [y.tolist() for _, y in batches(split.train, NOTHING, config, 0)]
    assert first == [y.tolist() for _, y in batches(split.train, NOTHING, config, 0)]
    assert first != [y.tolist() for _, y in batches(split.train, NOTHING, config, 1)]
    other = config.replace(seed=1)
    assert first != [y.tolist() for _, y in batches(split.train, NOTHING, other, 0)]
    with pytest.raises(InputError, match="no training images"):
        list(batches(split.train.take(slice(0, 0)), NOTHING, config, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reg", "seed"),
    [*[("none", seed) for seed in range(3)], *[("two_to_inf", seed) for seed in range(3)],
     ("frobenius", 0), ("spectral", 1), ("infinity", 2)],
)  # fmt: skip
def test_it_learns_with_every_regularizer(reg, seed):
    weight = {"infinity": 1e-5}.get(reg, 1e-3)
    config = TINY.replace(epochs=6, reg=reg, reg_weight=weight, seed=seed, augment=False)
    split = toy(seed)
    fitted = fit(split, config)
    assert accuracy(fitted.model, split.test.images, split.test.labels) >= 0.9
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert not fitted.model.training
    assert (fitted.overhead > 0) == (reg != "none")


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["frobenius", "spectral", "infinity", "two_to_inf"])
def test_a_penalty_lowers_its_norm_at_equal_accuracy(reg):
    split = toy(1)
    plain = TINY.replace(epochs=8, augment=False)
    weight = {"infinity": 3e-4, "two_to_inf": 0.1}.get(reg, 3e-2)
    free = fit(split, plain).model
    held = fit(split, plain.replace(reg=reg, reg_weight=weight)).model
    images = split.test.images
    before, after = (jacobian_norms(net, images).means()[reg] for net in (free, held))
    assert after < 0.7 * before
    assert accuracy(held, images, split.test.labels) >= 0.9


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(TrainingError, match="epoch"):
        fit(toy(), TINY.replace(lr=1e30, augment=False))

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, 2))

        def forward(self, x):
            # Finite values, infinite slope at 0.
            return (x.flatten(1) @ self.weight).abs().sqrt()

    config = TINY.replace(reg="frobenius", reg_weight=1.0, augment=False)
    with pytest.raises(TrainingError, match="frobenius"):
        fit(toy(), config, model=Broken())


def run_of(path, config, split=None, **data):
    split = split or load_images("digits", **data)
    return VisionRun.create(path, VisionRunConfig("digits", data, config), split), split


@pytest.fixture(scope="module")
def digits():
    whole = load_images("digits")
    return ImageSplit(
        "digits", whole.train.take(slice(0, 64)), whole.valid, whole.test.take(slice(0, 32)),
        whole.classes, whole.mean, whole.std,
    )  # fmt: skip


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_resumed_run_ends_as_an_undisturbed_one(tmp_path, monkeypatch, digits, when):
    """Die at the when-th checkpoint, half-way through writing it."""
    config = TINY.replace(epochs=3, reg="two_to_inf", reg_weight=1e-3, reg_every=2)
    whole, _ = run_of(tmp_path / "whole", config, digits)
    whole.execute(digits, every=0.0)
    broken, _ = run_of(tmp_path / "broken", config, digits)
    write, calls = files.write_parts, []

    def dying(path, parts):
        content = b"".join(parts)
        calls.append(path)
        if len(calls) == when:
            (path.parent / f".{path.name}.half").write_bytes(content[: len(content) // 2])
            raise Killed
        write(path, parts)

    monkeypatch.setattr(files, "write_parts", dying)
    with pytest.raises(Killed):
        broken.execute(digits, every=0.0)
    monkeypatch.setattr(files, "write_parts", write)
    assert not broken.complete
    again = VisionRun(broken.path)
    again.execute(digits, every=0.0)
    left, right = (files.read_tensors(run.path / "model.safetensors")[0] for run in (whole, again))
    assert set(left) == set(right)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert whole.metrics()["test"] == again.metrics()["test"]
    assert not list(again.path.glob("checkpoint*"))


def test_interrupted_runs_go_on(tmp_path, monkeypatch, digits):
    config = TINY.replace(epochs=3)
    whole, _ = run_of(tmp_path / "whole", config, digits)
    whole.execute(digits)
    run, _ = run_of(tmp_path / "run", config, digits)
    from robustcf.vision import training

    original, count = training._epoch, []

    def stopped(*arguments):
        count.append(1)
        if len(count) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(training, "_epoch", stopped)
    assert run.execute(digits, every=0.0).interrupted
    assert VisionRun(run.path, allow_unfinished=True).metrics()["epochs"] == 1
    assert not run.complete
    for refused in (run.metrics, lambda: run.model(digits)):
        with pytest.raises(UnfinishedError, match="interrupted"):
            refused()
    monkeypatch.setattr(training, "_epoch", original)
    run.execute(digits, every=0.0)
    assert run.complete
    assert run.metrics()["test"] == whole.metrics()["test"]


def test_a_run_is_opened_again(tmp_path, digits):
    run, _ = run_of(tmp_path / "run", TINY, digits)
    with pytest.raises(InputError, match="result"):
        run.metrics()
    with pytest.raises(InputError, match="safetensors"):
        run.model(digits)
    fitted = run.execute(digits)
    opened = VisionRun(run.path)
    assert opened.config == run.config
    x = digits.test.images.float() / 255
    with torch.no_grad():
        torch.testing.assert_close(opened.model(digits)(x), fitted.model(x))
    header = (run.path / "history.csv").read_text().splitlines()[0]
    assert header.startswith("epoch,lr,loss")
    facts = json.loads((run.path / "data.json").read_text())
    assert facts["fingerprint"] == digits.fingerprint
    with pytest.raises(DataError, match="made"):
        opened.check(toy())
    with pytest.raises(DataError, match="made"):
        opened.split()  # the whole digits, of which the run saw a part


def test_open_or_create(tmp_path, digits):
    config = VisionRunConfig("digits", {}, TINY)
    first = open_or_create(tmp_path / "run", config, digits)
    stamp = (first.path / "metrics.json").stat().st_mtime_ns
    assert open_or_create(tmp_path / "run", config, digits).complete
    assert (first.path / "metrics.json").stat().st_mtime_ns == stamp
    other = VisionRunConfig("digits", {}, TINY.replace(seed=1))
    with pytest.raises(InputError, match="configuration"):
        open_or_create(tmp_path / "run", other, digits)


def test_bad_configurations(tmp_path):
    for change, reason in (
        ({"reg": "l1"}, "reg must be one of none, frobenius"),
        ({"lr": 0}, "lr must be .* positive"),
        ({"lr": -1.0}, "lr must be a finite number and not negative"),
        ({"reg_weight": float("nan")}, "reg_weight must be a finite number"),
        ({"momentum": 1.0}, "momentum must lie between 0 and 1"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"augment": 1}, "augment must be true or false"),
        ({"widht": 1}, "did you mean 'width'"),
        ({"reg": "two_to_inf", "estimator": "guess"}, "estimator must be one of"),
    ):
        with pytest.raises(InputError, match=reason):
            VisionConfig.from_dict(change)
    with pytest.raises(InputError, match="must be JSON"):
        VisionRunConfig.from_json("{")
    with pytest.raises(InputError, match="object"):
        VisionRunConfig.from_json("[]")
    with pytest.raises(InputError, match="dataset"):
        VisionRunConfig.from_json("{}")
    with pytest.raises(InputError, match="directory"):
        VisionRun(tmp_path)
    (tmp_path / "config.json").write_text('{"dataset": "demo", "preset": null}')
    with pytest.raises(InputError, match="unknown"):
        VisionRun(tmp_path)  # the run of a recommender
    with pytest.raises(InputError, match="exists already"):
        VisionRun.create(tmp_path, VisionRunConfig("digits"), toy())


@pytest.mark.parametrize("lr", [1e9, 1e30])
def test_a_training_that_diverged_is_said(tmp_path, digits, lr):
    run, _ = run_of(tmp_path / "run", TINY.replace(lr=lr), digits)
    with pytest.raises(TrainingError, match="not finite"):
        run.execute(digits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 2**31 - 1}, "width 2147483647 at depth 10 needs about .* GB of memory"),
        ({"depth": 11}, "depth must be 10"),
    ],
)
def test_what_can_be_known_is_said_before_the_folder_is_made(tmp_path, digits, change, message):
    with pytest.raises(InputError, match=message):
        run_of(tmp_path / "run", TINY.replace(**change), digits)
    with pytest.raises(InputError, match="device"):
        VisionRun.create(
            tmp_path / "run", VisionRunConfig("digits", train=TINY, device="meta"), digits
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if "bn" not in k}, "tensors must be those of this"),
        (lambda t: {**t, "more": torch.zeros(1)}, "tensors must be those of this network"),
        (lambda t: {k: v * float("nan") for k, v in t.items()}, "must have finite real numbers"),
        (lambda t: {k: v * (1 + 1j) for k, v in t.items()}, "must have finite real numbers"),
    ],
)
def test_damaged_networks_and_checkpoints(tmp_path, digits, monkeypatch, change, message):
    run, _ = run_of(tmp_path / "run", TINY.replace(epochs=1), digits)
    monkeypatch.setattr(files.CheckpointFiles, "clear", lambda self: None)
    run.execute(digits, every=0.0)
    tensors, facts = files.read_tensors(run.path / "model.safetensors")
    files.write_tensors(run.path / "model.safetensors", change(tensors), facts)
    with pytest.raises(InputError, match=f"model.safetensors: .*{message}"):
        VisionRun(run.path).model(digits)
    file = run.path / "checkpoint.vision.safetensors"
    tensors, facts = files.read_tensors(file)
    own = {k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")}
    rest = {k: v for k, v in tensors.items() if not k.startswith("net.")}
    files.write_tensors(file, {f"net.{k}": v for k, v in change(own).items()} | rest, facts)
    with pytest.raises(InputError, match=f"checkpoint.vision.safetensors: .*{message}"):
        VisionRun(run.path).execute(digits)
    momentum = {k: v * 1j for k, v in tensors.items() if k.startswith("momentum.")}
    files.write_tensors(file, tensors | momentum, facts)
    with pytest.raises(InputError, match="momentum.*finite real"):
        VisionRun(run.path).execute(digits)
    files.write_tensors(file, tensors, {"state": '{"history": [{"epoch": 1}]}'})
    with pytest.raises(InputError, match="history"):
        VisionRun(run.path).execute(digits)
