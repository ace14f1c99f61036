"""Downloads against a real server with faults: what arrives is right, or nothing arrives."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
from pathlib import Path

import pytest

from robustcf._io.fetching import Policy, fetch, locate, obtain
from robustcf._io.limits import raised_limits
from robustcf._io.temporary import alone_in
from robustcf.data.catalog import manifests
from robustcf.errors import DownloadError
from robustcf.vision.catalog import image_manifests
from tests._io.faulty_server import MOST_SENT, Plan, fetch_from, serve

BODY = random.Random(0).randbytes(1 << 18)  # half of it is a whole number of chunks
QUICK = Policy(attempts=3, backoff=0.0, connect_timeout=2, read_timeout=0.3, lock_timeout=20)


def check(path: Path) -> str | None:
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    return None if got == hashlib.sha256(BODY).hexdigest() else "wrong checksum"


def files_in(folder: Path) -> list[str]:
    """What a download leaves, but for the lock that guards the folder."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".fetch.lock")


def get(plan: Plan, target: Path, **options) -> Path:
    return fetch([plan.url], target, check, policy=options.pop("policy", QUICK), **options)


@pytest.mark.parametrize(
    ("steps", "requests"),
    [
        (["ok"], 1),
        (["chunked"], 1),
        (["500", "500", "ok"], 3),
        (["drop", "ok"], 2),
        (["hang", "ok"], 2),
        (["cut", "ok"], 2),
        (["cut", "no-range"], 2),
        (["cut", "bad-range", "ok"], 3),
        (["cut", "416", "ok"], 3),
        (["cut", "cut", "ok"], 3),
        (["early-end", "ok"], 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_faults_that_pass_are_survived(tmp_path, steps, requests):
    with serve(Plan(BODY, list(steps))) as plan:
        target = get(plan, tmp_path / "sub" / "file.bin")
    assert target.read_bytes() == BODY
    assert len(plan.seen) == requests
    assert files_in(target.parent) == ["file.bin"]


def test_a_broken_transfer_is_resumed_where_it_broke(tmp_path):
    with serve(Plan(BODY, ["cut", "ok"])) as plan:
        get(plan, tmp_path / "file.bin")
    assert "Range" not in plan.seen[0]
    assert plan.seen[1]["Range"] == f"bytes={len(BODY) // 2}-"
    # Lengths and ranges speak of the bytes that are stored only if nothing is compressed.
    assert {headers["Accept-Encoding"] for headers in plan.seen} == {"identity"}
    assert plan.seen[0]["User-Agent"].startswith("robustcf/")


def test_a_later_process_resumes_too(tmp_path):
    target = tmp_path / "file.bin"
    with serve(Plan(BODY, ["cut", "404"])) as plan, pytest.raises(DownloadError):
        get(plan, target)
    assert files_in(tmp_path) == [".file.bin.part"]
    with serve(Plan(BODY)) as plan:
        get(plan, target)
    assert plan.seen[0]["Range"] == f"bytes={len(BODY) // 2}-"
    assert target.read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "content", "ranges", "left"),
    [
        (".file.bin.part", BODY, [], []),
        (".file.bin.part", b"rubbish", ["bytes=7-", None], []),
        (".file.bin.part", BODY + b"x", [None], []),
        ("file.bin", BODY, [], []),
        ("file.bin", b"edits", [None], ["file.bin.wrong-checksum"]),
    ],
)
def test_files_and_parts_of_earlier_times(tmp_path, name, content, ranges, left):
    (tmp_path / name).write_bytes(content)
    with serve(Plan(BODY)) as plan:
        get(plan, tmp_path / "file.bin", most_bytes=len(BODY))
    assert [headers.get("Range") for headers in plan.seen] == ranges
    assert files_in(tmp_path) == ["file.bin", *left]
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert all((tmp_path / other).read_bytes() == content for other in left)


def test_wrong_bytes_are_refused_and_leave_nothing(tmp_path):
    with (
        serve(Plan(BODY, ["wrong"])) as plan,
        pytest.raises(DownloadError, match="checksum"),
    ):
        get(plan, tmp_path / "file.bin")
    assert len(plan.seen) == 1, "the same wrong bytes are not asked for twice"
    assert files_in(tmp_path) == []


def test_the_next_mirror_is_tried_and_the_error_names_them_all(tmp_path):
    with (
        serve(Plan(BODY, ["404"])) as gone,
        serve(Plan(BODY, ["wrong"])) as wrong,
        serve(Plan(BODY, ["500"])) as broken,
        serve(Plan(BODY)) as good,
    ):
        urls = [gone.url, wrong.url, broken.url]
        with pytest.raises(DownloadError) as failure:
            fetch(urls, tmp_path / "file.bin", check, policy=QUICK)
        fetch([*urls, good.url], tmp_path / "file.bin", check, policy=QUICK)
    message = str(failure.value)
    assert f"{gone.url}: HTTP 404" in message
    assert f"{wrong.url}: wrong checksum" in message
    assert f"{broken.url}: HTTP 500 (3 tries)" in message
    assert str(tmp_path) in message
    assert "\n" not in message
    assert len(gone.seen) == 2, "a file that is not there is not asked for again"
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.slow
def test_offline_and_hanging_servers_end_in_a_reason(tmp_path):
    with serve(Plan(BODY)) as plan:
        dead = plan.url
    with serve(Plan(BODY, ["hang"])) as hanging, pytest.raises(DownloadError) as failure:
        fetch([dead, hanging.url], tmp_path / "file.bin", check, policy=QUICK)
    assert f"{dead}: connection failed" in str(failure.value)
    assert f"{hanging.url}: no answer within 0.3 s (3 tries)" in str(failure.value)
    assert files_in(tmp_path) == []
    with pytest.raises(DownloadError, match="public"):
        fetch([], tmp_path / "file.bin", check, policy=QUICK)
    with pytest.raises(DownloadError, match="nonsense"):
        fetch(["nonsense://x/y"], tmp_path / "file.bin", check, policy=QUICK)


def test_waits_grow_and_respect_what_the_server_asks(tmp_path):
    waits: list[float] = []
    patient = Policy(attempts=4, backoff=1.0, longest_wait=5.0)
    with serve(Plan(BODY, ["500", "500", "503-retry-after", "ok"])) as plan:
        get(plan, tmp_path / "file.bin", policy=patient, sleep=waits.append)
    assert waits == [1.0, 2.0, 5.0]  # the server asked for 7 and the longest wait is 5


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    real_open = Path.open

    def small_disk(self, mode="r", *args, **kwargs):
        if not self.name.endswith(".part") or "r" in mode:
            return real_open(self, mode, *args, **kwargs)
        self.touch()
        return real_open(Path("/dev/full"), mode, buffering=0)

    monkeypatch.setattr(Path, "open", small_disk)
    with serve(Plan(BODY)) as plan, pytest.raises(DownloadError) as failure:
        get(plan, tmp_path / "file.bin")
    for words in ("No space left on device", str(tmp_path), "--data-dir"):
        assert words in str(failure.value)
    assert files_in(tmp_path) == []
    assert len(plan.seen) == 1, "a full disk does not get better by asking again"


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    folder = tmp_path / "readonly"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere: let the system call say no

        def refuse(*args, **kwargs):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        serve(Plan(BODY)) as plan,
        pytest.raises(DownloadError, match="Permission denied") as failure,
    ):
        get(plan, folder / "sub" / "file.bin")
    assert "ROBUSTCF_DATA" in str(failure.value)
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)


def test_a_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DownloadError, match="cannot write"):
        fetch(["http://127.0.0.1:1/x"], tmp_path / "file" / "x.bin", check, policy=QUICK)


def test_an_interrupt_keeps_the_part_for_the_next_time(tmp_path, monkeypatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with serve(Plan(BODY, ["cut"])) as plan, pytest.raises(KeyboardInterrupt):
        get(plan, tmp_path / "file.bin", sleep=interrupt)
    assert files_in(tmp_path) == [".file.bin.part"]


@pytest.mark.parametrize("most", [len(BODY), 3 * len(BODY) + 7])
@pytest.mark.parametrize("step", ["endless", "endless-chunks", "announces-much", "odd-length"])
def test_a_server_that_never_stops_is_stopped_and_leaves_nothing(tmp_path, step, most):
    with serve(Plan(BODY, [step])) as plan, pytest.raises(DownloadError) as failure:
        get(plan, tmp_path / "file.bin", most_bytes=most)
    assert f"{plan.url}: expected at most {most:,} bytes, got" in str(failure.value)
    assert len(plan.seen) == 1, "it is not asked again"
    assert plan.sent < MOST_SENT
    assert files_in(tmp_path) == []


def test_a_length_that_is_announced_is_checked_before_a_byte_is_written(tmp_path, monkeypatch):
    def refuse(self, mode="r", *args, **kwargs):
        raise AssertionError(f"{self} was opened")

    monkeypatch.setattr(Path, "open", refuse)
    with serve(Plan(BODY)) as plan, pytest.raises(DownloadError, match="262,144 announced"):
        get(plan, tmp_path / "file.bin", most_bytes=len(BODY) - 1)
    assert files_in(tmp_path) == []


def test_a_file_of_exactly_its_size_is_taken(tmp_path):
    for step in ("ok", "chunked"):
        with serve(Plan(BODY, [step])) as plan:
            get(plan, tmp_path / step, most_bytes=len(BODY))
        assert (tmp_path / step).read_bytes() == BODY


def test_a_resumed_transfer_may_not_go_on_for_ever(tmp_path):
    steps = ["cut", "endless"]
    with serve(Plan(BODY, steps)) as plan, pytest.raises(DownloadError, match="got more"):
        get(plan, tmp_path / "file.bin", most_bytes=2 * len(BODY))
    assert plan.seen[1]["Range"] == f"bytes={len(BODY) // 2}-"
    assert files_in(tmp_path) == []


def test_after_a_server_that_never_stops_the_next_is_tried(tmp_path):
    with serve(Plan(BODY, ["endless"])) as bad, serve(Plan(BODY)) as good:
        urls = [bad.url, good.url]
        fetch(urls, tmp_path / "file.bin", check, policy=QUICK, most_bytes=len(BODY))
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize("step", ["endless", "announces-much"])
def test_a_limit_holds_where_no_size_is_known_and_can_be_raised(tmp_path, step):
    with (
        raised_limits(download_bytes=len(BODY)),
        serve(Plan(BODY, [step])) as plan,
        pytest.raises(DownloadError, match="ROBUSTCF_LIMITS=download_bytes=") as failure,
    ):
        get(plan, tmp_path / "file.bin")
    assert f"expected at most {len(BODY):,} bytes" in str(failure.value)
    with raised_limits(download_bytes=len(BODY) - 1), serve(Plan(BODY)) as plan:
        with pytest.raises(DownloadError, match="expected at most"):
            get(plan, tmp_path / "file.bin")
        with raised_limits(download_bytes=len(BODY)):
            get(plan, tmp_path / "file.bin")
    assert files_in(tmp_path) == ["file.bin"]


def test_what_a_server_announces_falsely_is_no_file(tmp_path):
    with serve(Plan(BODY, ["announces-little"])) as plan, pytest.raises(DownloadError) as failure:
        get(plan, tmp_path / "file.bin", most_bytes=len(BODY))
    assert "wrong checksum" in str(failure.value)
    with (
        serve(Plan(BODY, ["packed"])) as plan,
        pytest.raises(DownloadError, match="sends it packed"),
    ):
        get(plan, tmp_path / "file.bin", most_bytes=len(BODY))
    assert files_in(tmp_path) == []


def test_every_file_that_can_be_fetched_has_a_size():
    sources = [
        source
        for manifest in manifests().values()
        for files in manifest.parts.values()
        for source in files
    ]
    sources += [source for manifest in image_manifests().values() for source in manifest.files]
    for source in sources:
        assert source.most_bytes, source.path


def test_a_file_that_is_too_large_is_not_read_to_know_that_it_is_wrong(tmp_path, monkeypatch):
    manifest = manifests()["yelp2018"]
    (tmp_path / "yelp2018").mkdir()
    with (tmp_path / "yelp2018" / "test.txt").open("wb") as handle:
        handle.truncate(1 << 40)  # sparse: no byte of it is on the disk
    assert locate(manifest, manifest.parts["test"], tmp_path) is None
    with pytest.raises(DownloadError, match="checksum"):
        obtain(manifest, manifest.parts["test"], tmp_path, download=False)


@pytest.mark.slow
def test_two_processes_fetch_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    with serve(Plan(BODY, delay=0.3)) as plan:
        arguments = (plan.url, str(tmp_path / "file.bin"), hashlib.sha256(BODY).hexdigest())
        workers = [context.Process(target=fetch_from, args=arguments) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(plan.seen) == 1
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_lock_that_is_never_released_ends_in_a_reason(tmp_path):
    with (
        alone_in(tmp_path, "x", file=".fetch.lock"),
        pytest.raises(DownloadError, match="another process"),
    ):
        fetch(["http://127.0.0.1:1/x"], tmp_path / "x", check, policy=Policy(lock_timeout=0.05))


def test_tls_failures_are_final_for_their_url(tmp_path, monkeypatch):
    import requests

    calls = []

    def expired(url, **options):
        calls.append(url)
        raise requests.exceptions.SSLError("certificate has expired")

    monkeypatch.setattr(requests, "get", expired)
    with pytest.raises(DownloadError, match="certificate"):
        fetch(["https://127.0.0.1/x"], tmp_path / "x", check, policy=QUICK)
    assert len(calls) == 1


def test_no_bar_where_there_is_no_terminal(tmp_path, capsys):
    with serve(Plan(BODY)) as plan:
        get(plan, tmp_path / "file.bin")
    assert capsys.readouterr() == ("", "")
