"""Writes a software bill of materials (CycloneDX 1.6, JSON): every crate that is compiled into the binary, with version, licence, checksum and dependencies.

It asks `cargo metadata` and Cargo.lock, so it lists what the lock file pins, for one target. Tests' dependencies are left out; what only builds something (build
scripts, macros) is listed with the scope `excluded`. Two runs on the same commit write the same bytes, and no folder of the machine is named.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BINARY = "model-garden"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    parser.add_argument("-o", "--output", type=Path, help="file to write; standard output if there is none")
    arguments = parser.parse_args()
    text = json.dumps(bill(arguments.target), indent=1, ensure_ascii=False) + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def graph(target):
    """All packages, what they need, and the one that is the binary."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    return packages, nodes, next(package for package in packages.values() if package["name"] == BINARY)


def licences(target):
    """The licences of others' code in the binary, each text once with the crates that it is for: most of them ask for it to go with the binary."""
    packages, nodes, root = graph(target)
    others = [packages[name] for name in reachable(nodes, packages, root["id"], {None}) if packages[name]["source"]]
    texts, named = {}, []
    for package in sorted(others, key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']} ({package['license']})"
        files = sorted(file for file in Path(package["manifest_path"]).parent.iterdir() if file.is_file() and re.match(r"(?i)(licen[sc]e|copying|notice|unlicense)", file.name))
        for file in files:
            texts.setdefault(file.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        if not files:
            named.append(name)
    parts = [f"{', '.join(names)}\n\n{text}\n" for text, names in texts.items()]
    if named:
        parts.append("These bring no text of their licence:\n\n" + "".join(f"{name}\n" for name in named))
    return ("\n" + "=" * 80 + "\n").join(parts)


def bill(target):
    """The whole document."""
    packages, nodes, root = graph(target)
    running = reachable(nodes, packages, root["id"], {None})
    built_with = reachable(nodes, packages, root["id"], {None, "build"})
    checksums = locked_checksums()

    components, dependencies = [], []
    for name in sorted(built_with, key=lambda name: (packages[name]["name"], packages[name]["version"])):
        package = packages[name]
        if name != root["id"]:
            components.append(component(package, "required" if name in running else "excluded", checksums))
        needs = {reference(packages[other]) for other in edges(nodes[name], {None, "build"}) if other in built_with}
        if package["name"] == "libsqlite3-sys":
            components.append(sqlite(package))
            needs.add(components[-1]["bom-ref"])
            dependencies.append({"ref": components[-1]["bom-ref"], "dependsOn": []})
        dependencies.append({"ref": reference(package), "dependsOn": sorted(needs)})

    program = {"type": "application", **described(root)}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same for the same lock file: a name by content.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, target + (ROOT / 'Cargo.lock').read_text(encoding='utf-8'))}",
        "version": 1,
        "metadata": {"timestamp": moment().strftime("%Y-%m-%dT%H:%M:%SZ"), "component": program},
        "components": components,
        "dependencies": dependencies,
    }


def edges(node, kinds):
    """Packages that this one needs, by the kinds of dependency that count."""
    return {need["pkg"] for need in node["deps"] if any(kind["kind"] in kinds for kind in need["dep_kinds"])}


def reachable(nodes, packages, start, kinds):
    """Packages that are needed from `start` on. A macro runs while its user is compiled, so it and what it needs count as building only."""
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        is_macro = any("proc-macro" in each["kind"] for each in packages[name]["targets"])
        if name in found or (is_macro and "build" not in kinds):
            continue
        found.add(name)
        waiting.extend(edges(nodes[name], kinds))
    return found


def component(package, scope, checksums):
    made = {"type": "library", **described(package), "scope": scope}
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return made


def described(package):
    # Old manifests separate licences by a slash.
    licence = (package["license"] or "NOASSERTION").replace("/", " OR ")
    made = {"bom-ref": reference(package), "name": package["name"], "version": package["version"]}
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    made["licenses"] = [{"expression": licence}]
    # Our own crates are published nowhere.
    if package["source"]:
        made["purl"] = reference(package)
    return made


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def sqlite(package):
    """SQLite itself, whose C source is in the crate that binds it: vulnerabilities are published by its version, not the crate's."""
    header = Path(package["manifest_path"]).parent / "sqlite3" / "sqlite3.h"
    version = re.search(r'#define SQLITE_VERSION\s+"([0-9.]+)"', header.read_text(encoding="utf-8")).group(1)
    return {
        "type": "library",
        "bom-ref": f"pkg:generic/sqlite@{version}",
        "name": "sqlite",
        "version": version,
        "scope": "required",
        "licenses": [{"expression": "blessing"}],
        "cpe": f"cpe:2.3:a:sqlite:sqlite:{version}:*:*:*:*:*:*:*",
        "purl": f"pkg:generic/sqlite@{version}",
    }


def locked_checksums():
    # Read by hand, since Python 3.9 and 3.10 have no TOML.
    entry = r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"'
    found = re.findall(entry, (ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    return {(name, version): checksum for name, version, checksum in found}


def moment():
    """When the sources were last changed: SOURCE_DATE_EPOCH, or the time of the commit."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout
    return datetime.fromtimestamp(int(seconds or 0), timezone.utc)


if __name__ == "__main__":
    main()
