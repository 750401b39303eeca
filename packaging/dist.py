"""Packs a release into dist/: the archive with the binary, the wheel, the bill of materials, and their checksums.

`make dist` runs it, after `make wheel`. The binary is taken out of the wheel, so there is one build, and both need the same glibc. Times in the archive are those
of the commit. The archive gets completions and manual pages if the binary can write them.
"""

import argparse
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import sbom

ROOT = sbom.ROOT
# What `model-garden completions SHELL` knows, and how each shell wants the file to be called.
COMPLETIONS = {"bash": "model-garden.bash", "zsh": "_model-garden", "fish": "model-garden.fish"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    version, machine = re.fullmatch(r"model_garden-([^-]+)-py3-none-.*linux.*?_(x86_64|aarch64)\.whl", arguments.wheel.name).groups()
    output, name = arguments.output, f"model-garden-{version}-{machine}-linux"
    output.mkdir(exist_ok=True)
    # What an earlier version left would be taken for a part of this one.
    for old in [*output.glob("model-garden-*"), *output.glob("model_garden-*"), output / "SHA256SUMS"]:
        if old.is_file():
            old.unlink()

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        gather(folder, arguments.wheel)
        (folder / "LICENSES-OF-DEPENDENCIES.txt").write_text(sbom.licences(f"{machine}-unknown-linux-gnu"), encoding="utf-8")
        archive = output / f"{name}.tar.gz"
        archive.write_bytes(packed(folder))
    shutil.copyfile(arguments.wheel, output / arguments.wheel.name)
    bill = output / f"model-garden-{version}.cdx.json"
    subprocess.run([sys.executable, ROOT / "packaging" / "sbom.py", "--target", f"{machine}-unknown-linux-gnu", "-o", bill], check=True)

    files = sorted([archive, output / arguments.wheel.name, bill])
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (output / "SHA256SUMS").write_text(sums)
    for file in [*files, output / "SHA256SUMS"]:
        print(f"{file.stat().st_size / 1e6:7.2f} MB  {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")


def gather(folder, wheel):
    """Puts everything that the archive holds into a folder."""
    folder.mkdir()
    binary = folder / "model-garden"
    with zipfile.ZipFile(wheel) as package:
        script = next(each for each in package.namelist() if each.endswith(".data/scripts/model-garden"))
        binary.write_bytes(package.read(script))
    binary.chmod(0o755)
    for file in ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "packaging/model-garden.service", "packaging/model-garden.sysusers"]:
        shutil.copy(ROOT / file, folder)
    # The README leads to these.
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=lambda _, names: [each for each in names if not each.endswith((".md", ".png", ".svg"))])

    (folder / "completions").mkdir()
    for shell, file in COMPLETIONS.items():
        told = subprocess.run([binary, "completions", shell], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if told.returncode == 0:
            (folder / "completions" / file).write_bytes(told.stdout)
    (folder / "man").mkdir()
    subprocess.run([binary, "man", folder / "man"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for part in ["completions", "man"]:
        if not any((folder / part).iterdir()):
            (folder / part).rmdir()
            print(f"without {part}/: this binary writes none")


def packed(folder):
    """A tar.gz of this folder: the same bytes for the same files, whoever packs them and when."""
    moment = int(sbom.moment().timestamp())

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = moment
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            archive.add(path, arcname=path.relative_to(folder.parent).as_posix(), recursive=False, filter=plain)
    return gzip.compress(tar.getvalue(), compresslevel=9, mtime=moment)


if __name__ == "__main__":
    main()
