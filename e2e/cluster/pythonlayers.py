"""Layers that carry this project's Python: the interpreter with the libraries below, the source above."""

from __future__ import annotations

import importlib.util
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from e2e.cluster.archive import Entry
from e2e.cluster.cache import digest_of

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "operator"
PACKAGES = ("holdfast", "holdfast_engine")
HOME = "opt/python"
CODE = "opt/holdfast"
USER = 65532

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = f"{HOME}/lib/{_VERSION}"
LIBRARIES = f"{_LIBRARY}/site-packages"
SITE_SCRIPT = f"{_LIBRARY}/sitecustomize.py"
_PROGRAMS = ("sh", "sleep", "cat", "env", "ls", "id", "tail", "kill", "rm", "mkdir")
_RECIPE = "1"
_UNUSED_STANDARD = {
    "test",
    "idlelib",
    "ensurepip",
    "tkinter",
    "lib2to3",
    "distutils",
    "site-packages",
    "turtledemo",
    "sitecustomize.py",
    "pydoc_data",
    "__pycache__",
}
_UNUSED_PARTS = {"__pycache__", "tests", "testing"}
_ENTRY_SCRIPT = """\
#!/opt/python/bin/python3
import sys

from holdfast.cli.main import main

sys.exit(main())
"""


def runtime_distributions() -> list[metadata.Distribution]:
    """The project's requirements and theirs, without extras, as installed here."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(line) for line in project["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(requirement.name)
        waiting += [Requirement(line) for line in found[name].requires or ()]
    return [found[name] for name in sorted(found)]


def libraries_digest() -> str:
    """Changes when the interpreter, a library's version or the way of packing does."""
    versions = [f"{found.metadata['Name']}=={found.version}" for found in runtime_distributions()]
    return digest_of([Path(__file__)], _RECIPE, sys.version, sys.base_prefix, *versions)


def source_digest() -> str:
    """Changes with any file of the project's own packages."""
    files = _source_files()
    return digest_of(files, *(str(path.relative_to(SOURCE)) for path in files), _ENTRY_SCRIPT)


def _source_files() -> list[Path]:
    found = (path for package in PACKAGES for path in (SOURCE / package).rglob("*"))
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def library_entries(scratch: Path) -> list[Entry]:
    """Everything but the project itself: interpreter, standard library, libraries, C libraries, a shell."""
    python = Path(sys.base_prefix) / "bin" / _VERSION
    python_files = dict(_standard_library()) | dict(_distribution_files())
    programs = {name: found for name in _PROGRAMS if (found := shutil.which(name))}
    binaries = [python, *(Path(path).resolve() for path in programs.values())]
    binaries += [path for path in python_files.values() if ".so" in path.name]
    entries = [Entry(path, file=file, mode=_mode(file)) for path, file in python_files.items()]
    entries += [Entry(path, file=file, mode=0o644) for path, file in _compiled(python_files, scratch).items()]
    entries += [Entry(path, file=file) for path, file in _shared_libraries(binaries).items()]
    entries += [Entry(f"bin/{name}", file=Path(path).resolve()) for name, path in programs.items()]
    entries.append(Entry(f"{HOME}/bin/{_VERSION}", file=python.resolve()))
    entries.append(Entry(SITE_SCRIPT, text=site_script(f"/{LIBRARIES}"), mode=0o644))
    entries.append(Entry(f"{LIBRARIES}/holdfast-source.pth", text=f"/{CODE}\n", mode=0o644))
    for link in (f"{HOME}/bin/python3", f"{HOME}/bin/python", "usr/bin/python3"):
        entries.append(Entry(link, link=f"/{HOME}/bin/{_VERSION}"))
    return entries + _system_entries()


def site_script(folder: str) -> str:
    """Makes a Python read its libraries from this folder: Debian's, for one, does not look into site-packages."""
    return f"import site\n\nsite.addsitedir({folder!r})\n"


def source_entries(scratch: Path) -> list[Entry]:
    """The project's packages, their metadata and their command."""
    files = {f"{CODE}/{path.relative_to(SOURCE)}": path for path in _source_files()}
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    about = f"Metadata-Version: 2.1\nName: holdfast\nVersion: {version}\n"
    entries = [Entry(path, file=file, mode=0o644) for path, file in files.items()]
    entries += [Entry(path, file=file, mode=0o644) for path, file in _compiled(files, scratch).items()]
    entries.append(Entry(f"{CODE}/holdfast-{version}.dist-info/METADATA", text=about, mode=0o644))
    entries += [Entry(f"usr/local/bin/{name}", text=_ENTRY_SCRIPT) for name in ("holdfast", "kubectl-holdfast")]
    return entries


def image_environment() -> dict[str, str]:
    """Environment of containers made from these layers."""
    return {
        "PATH": f"/usr/local/bin:/{HOME}/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        "PYTHONUNBUFFERED": "1",
        # The layers carry compiled files, and the root file system is read-only anyway.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _standard_library() -> Iterator[tuple[str, Path]]:
    folder = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        unused = parts[0] in _UNUSED_STANDARD or parts[0].startswith("config-") or "__pycache__" in parts
        if path.is_file() and not unused and "test" not in parts:
            yield f"{_LIBRARY}/{'/'.join(parts)}", path


def _distribution_files() -> Iterator[tuple[str, Path]]:
    for distribution in runtime_distributions():
        for file in distribution.files or ():
            path = Path(str(file.locate()))
            if ".." in file.parts or _UNUSED_PARTS.intersection(file.parts) or not path.is_file():
                continue
            yield f"{LIBRARIES}/{file}", path


def _compiled(files: dict[str, Path], scratch: Path) -> dict[str, Path]:
    """Compiled counterparts that stay valid whatever the time stamps in the image are."""
    jobs = []
    for number, (path, file) in enumerate(files.items()):
        if file.suffix == ".py":
            jobs.append((file, scratch / f"{number}.pyc", f"/{path}", importlib.util.cache_from_source(path)))
    with ProcessPoolExecutor() as pool:
        done = list(pool.map(_compile, *zip(*((job[:3]) for job in jobs), strict=True), chunksize=50))
    return {job[3]: job[1] for job, compiled in zip(jobs, done, strict=True) if compiled}


def _compile(source: Path, target: Path, shown: str) -> bool:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        return py_compile.compile(str(source), str(target), shown, doraise=True, invalidation_mode=mode) is not None
    except (py_compile.PyCompileError, UnicodeDecodeError):
        # A few libraries ship templates or code of other versions; they are not imported either.
        return False


def _shared_libraries(binaries: list[Path]) -> dict[str, Path]:
    """The C libraries that these files load, by the path where the image's loader finds them."""
    listing = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    libraries: dict[str, Path] = {}
    for line in listing.splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found is None or "site-packages" in found.group(1):
            continue
        path = Path(found.group(1))
        # The loader is looked up by its full path, every other library by its name.
        target = str(path) if path.name.startswith("ld-linux") else f"lib64/{path.name}"
        libraries[target.lstrip("/")] = path.resolve()
    resolvers = (folder / name for folder in _folders(libraries) for name in ("libnss_dns.so.2", "libresolv.so.2"))
    libraries.update({f"lib64/{path.name}": path.resolve() for path in resolvers if path.exists()})
    return libraries


def _folders(libraries: dict[str, Path]) -> set[Path]:
    return {path.parent for path in libraries.values()}


def _system_entries() -> list[Entry]:
    links = {"lib": "lib64", "usr/lib": "../lib64", "usr/lib64": "../lib64"}
    entries = [Entry(name, link=target) for name, target in links.items()]
    entries += [Entry("tmp", mode=0o1777), Entry("proc"), Entry("sys"), Entry("dev"), Entry("run")]
    passwd = f"root:x:0:0::/:/bin/sh\nnonroot:x:{USER}:{USER}::/tmp:/bin/sh\n"
    entries.append(Entry("etc/passwd", text=passwd, mode=0o644))
    entries.append(Entry("etc/group", text=f"root:x:0:\nnonroot:x:{USER}:\n", mode=0o644))
    entries.append(Entry("etc/nsswitch.conf", text="passwd: files\nhosts: files dns\n", mode=0o644))
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        entries.append(Entry("etc/ssl/certs/ca-certificates.crt", file=certificates.resolve(), mode=0o644))
        entries.append(Entry("etc/ssl/cert.pem", link="certs/ca-certificates.crt"))
    return entries


def _mode(file: Path) -> int:
    return 0o755 if file.stat().st_mode & 0o111 else 0o644
