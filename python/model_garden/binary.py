"""Where the `model-garden` binary is."""
import os
import sys

ENVIRONMENT = "MODEL_GARDEN_BINARY"
NAME = "model-garden"


class BinaryNotFound(FileNotFoundError):
    """There is no `model-garden` binary; the text says where it was looked for and what to do."""

    def __str__(self):
        return str(self.args[0]) if self.args else "the `model-garden` binary was not found"


def find_binary():
    """The path of the `model-garden` binary.

    Looked for in this order: the environment variable MODEL_GARDEN_BINARY, the scripts folder of this Python environment, that of
    the user (`pip install --user`), the PATH. Raises `BinaryNotFound` if there is none.
    """
    named = os.environ.get(ENVIRONMENT)
    if named:
        if _is_program(named):
            return os.path.abspath(named)
        raise BinaryNotFound(f"{ENVIRONMENT} names `{named}`, which is not a program\nhint: fix it, or unset it to use the installed one")
    folders = _script_folders()
    for folder in folders:
        path = os.path.join(folder, NAME)
        if _is_program(path):
            return path
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        # An empty entry means the present folder, where anybody may have put a program of that name.
        path = os.path.join(folder, NAME)
        if folder and _is_program(path):
            return os.path.abspath(path)
    raise BinaryNotFound(_explanation(folders))


def _is_program(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _script_folders():
    # `sysconfig` takes milliseconds to import, and here is only needed once.
    import sysconfig

    folders = [sysconfig.get_path("scripts")]
    # `pip install --prefix` or `--target` put scripts beside the package instead.
    package = os.path.dirname(os.path.abspath(__file__))
    folders.append(os.path.join(os.path.dirname(package), "bin"))
    user = {"posix": "posix_user", "nt": "nt_user"}.get(os.name)
    try:
        folders.append(sysconfig.get_path("scripts", scheme=user))
    except KeyError:
        pass
    return [folder for folder in folders if folder]


def _explanation(folders):
    where = ", ".join(folders + ["the PATH"])
    system = {"win32": "Windows", "cygwin": "Windows", "darwin": "macOS"}.get(sys.platform)
    if system:
        return (
            f"the `{NAME}` binary is not available for {system}: it reads memory from Linux's /proc\n"
            "hint: train in WSL 2, a Linux container or on a Linux machine; LazyImages works everywhere"
        )
    return (
        f"the `{NAME}` binary was not found; looked in {where}\n"
        f"hint: `pip install model-garden`, or build it with `make build` and set {ENVIRONMENT} to its path"
    )
