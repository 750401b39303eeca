"""Memory of this process and of those that it started, as the kernel and the C library count it.

`held` is what nobody else can take back: anonymous pages, swapped ones, and this process's share of shared memory. Pages of files are apart.
"""
import ctypes
import fcntl
import os
import re
import signal
import stat
import sys

PR_SET_PDEATHSIG = 1
MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+) *(.*)$")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def _library():
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


_LIBRARY = _library()


def why_not():
    """Why memory cannot be read on this system, with a hint; None where it can."""
    if not sys.platform.startswith("linux"):
        system = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
        return f"memory is read from Linux's /proc, which {system} does not have\nhint: run it in WSL 2, a Linux container or on a Linux machine"
    if not os.path.exists("/proc/self/status"):
        return "memory is read from /proc, which is missing\nhint: mount it, or run outside this sandbox"
    return None


def end_with_parent(parent):
    """Has the kernel kill this process when the one that started it, whose id is given, ends, however that happens."""
    try:
        _LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, ValueError):
        return  # it ends when its pipe breaks
    if os.getppid() != parent:
        # It has ended already, and nobody will tell.
        os._exit(1)


def own_files():
    """Gives a forked process positions of its own in the files that it inherited open: what one process reads would move all the others on.

    Call it before anything is read. Files that may not be opened again keep the position that is shared, and so do those that are only written to.
    """
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        try:
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            if number <= 2 or not stat.S_ISREG(os.fstat(number).st_mode) or flags & os.O_ACCMODE == os.O_WRONLY:
                continue
            place = os.lseek(number, 0, os.SEEK_CUR)
            own = os.open(f"/proc/self/fd/{number}", flags & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK))
        except OSError:
            continue  # the one of the listing itself, for one
        os.lseek(own, place, os.SEEK_SET)
        os.dup2(own, number, inheritable=os.get_inheritable(number))
        os.close(own)


def trim():
    """Asks the C library to give freed memory back to the system; False where it cannot."""
    try:
        _LIBRARY.malloc_trim(0)
        return True
    except AttributeError:
        return False


def allocated():
    """Bytes that `malloc` has given out and not got back, or None where the C library does not tell."""
    try:
        ask = _LIBRARY.mallinfo2
    except AttributeError:
        return None
    ask.restype = _Mallinfo2
    told = ask()
    return told.uordblks + told.hblkhd


def quick():
    """`held` and `file` from the kernel's running counters: cheap, and off by some hundred KiB."""
    fields = _fields("/proc/self/status", (b"RssAnon", b"RssShmem", b"VmSwap", b"RssFile"))
    return {
        "held": fields.get(b"RssAnon", 0) + fields.get(b"RssShmem", 0) + fields.get(b"VmSwap", 0),
        "file": fields.get(b"RssFile", 0),
    }


def exact(process="self"):
    """`held`, `file` and `private` as a walk through the page tables finds them."""
    fields = _fields(f"/proc/{process}/smaps_rollup", (b"Rss", b"Anonymous", b"Swap", b"Pss_Shmem", b"Private_Clean", b"Private_Dirty", b"Pss_File"))
    if b"Rss" not in fields:
        # Before Linux 4.14, and in some sandboxes.
        fields = _fields(f"/proc/{process}/status", (b"RssAnon", b"RssShmem", b"VmSwap", b"RssFile"))
        held = fields.get(b"RssAnon", 0) + fields.get(b"RssShmem", 0) + fields.get(b"VmSwap", 0)
        return {"held": held, "file": fields.get(b"RssFile", 0), "private": held}
    shared = fields.get(b"Pss_Shmem", 0)
    return {
        "held": fields.get(b"Anonymous", 0) + fields.get(b"Swap", 0) + shared,
        "file": max(0, fields[b"Rss"] - fields.get(b"Anonymous", 0) - shared),
        "private": fields.get(b"Private_Clean", 0) + fields.get(b"Private_Dirty", 0) + fields.get(b"Swap", 0),
    }


def _fields(path, wanted):
    found = {}
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read(1 << 16)
    except OSError:
        return found
    for line in text.splitlines():
        name, colon, rest = line.partition(b":")
        if colon and name in wanted and rest.endswith(b"kB"):
            found[name] = int(rest[:-2]) << 10
    return found


def workers(pids):
    """What worker processes hold: `held` (each with the pages that it shares with its parent) and `private` (its own)."""
    total = {"held": 0, "private": 0, "processes": 0}
    for pid in pids:
        one = exact(pid)
        if one["held"]:
            total["held"] += one["held"]
            total["private"] += one["private"]
            total["processes"] += 1
    return total


def mappings():
    """Resident memory by the kind of its mapping: heap, anonymous, stack, shared memory, libraries and files."""
    by_kind = {}
    kind = None
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                begin = MAPPING.match(line)
                if begin:
                    kind = _kind_of_mapping(begin.group(3).strip(), begin.group(1))
                elif line.startswith(b"Rss:"):
                    by_kind[kind] = by_kind.get(kind, 0) + (int(line.split()[1]) << 10)
    except OSError:
        pass
    return by_kind


def _kind_of_mapping(name, permissions):
    if name == b"[heap]":
        return "heap"
    if name.startswith(b"[stack"):
        return "stack"
    if not name or name.startswith(b"[anon"):
        return "anonymous"
    if name.startswith((b"/dev/shm", b"/memfd:", b"/SYSV", b"/dev/zero")) or permissions.endswith(b"s"):
        return "shared memory" if not name.startswith(b"/") or name.startswith((b"/dev/", b"/memfd:", b"/SYSV")) else "files"
    if b".so" in name:
        return "libraries"
    return "special" if name.startswith(b"[") else "files"


def available():
    """Bytes that can still be taken before the machine or a control group of this process runs out, or None."""
    fields = _fields("/proc/meminfo", (b"MemAvailable",))
    left = [fields[b"MemAvailable"]] if b"MemAvailable" in fields else []
    left += [room for room in map(room_in, control_groups()) if room is not None]
    return min(left) if left else None


def control_groups(listing="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """The folders of the control groups that may limit this process's memory: its own and those around it."""
    folders = [root, os.path.join(root, "memory")]
    try:
        with open(listing) as file:
            lines = file.read().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = os.path.join(root, controllers)
        while path.strip("/"):
            folders.append(os.path.join(top, path.strip("/")))
            path = os.path.dirname(path.rstrip("/"))
    return folders


def room_in(folder):
    """What a control group leaves, or None without a limit. Pages of files that were not used lately are given up before anything is refused."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            with open(os.path.join(folder, limit)) as file:
                most = int(file.read())
            with open(os.path.join(folder, used)) as file:
                taken = int(file.read())
            with open(os.path.join(folder, "memory.stat")) as file:
                stat = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue  # no such group, or no limit in it
        reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        return max(0, most - taken + reclaimable)
    return None


# What `tree` adds up, from page tables and from running counters.
ROLLUP = (b"Rss", b"Anonymous", b"Swap", b"Pss_Shmem", b"Private_Clean", b"Private_Dirty")
STATUS = (b"VmRSS", b"RssAnon", b"RssShmem", b"VmSwap")


def tree():
    """What this process and all that it started hold, in bytes, as a trace calls it."""
    own = _fields("/proc/self/smaps_rollup", ROLLUP)
    if b"Rss" not in own:
        return _tree_by_counters()
    sums = {"rss": own[b"Rss"], "anon": own.get(b"Anonymous", 0), "shmem": own.get(b"Pss_Shmem", 0), "swap": own.get(b"Swap", 0)}
    for pid in descendants():
        one = _fields(f"/proc/{pid}/smaps_rollup", ROLLUP)
        private = one.get(b"Private_Clean", 0) + one.get(b"Private_Dirty", 0)
        sums["rss"] += private + one.get(b"Pss_Shmem", 0)
        # Pages that it shares with whom it was forked from are counted there.
        sums["anon"] += min(private, one.get(b"Anonymous", 0))
        sums["shmem"] += one.get(b"Pss_Shmem", 0)
        sums["swap"] += one.get(b"Swap", 0)
    return sums


def _tree_by_counters():
    """The same where the kernel does not sum up page tables; off by some hundred KiB, and shared pages count in each process."""
    sums = {"rss": 0, "anon": 0, "shmem": 0, "swap": 0}
    for pid in ["self", *descendants()]:
        one = _fields(f"/proc/{pid}/status", STATUS)
        for name, field in zip(sums, STATUS):
            sums[name] += one.get(field, 0)
    return sums


def descendants():
    """The processes that this one started, and those that they started."""
    found = []
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        for child in _children(pid):
            found.append(child)
            waiting.append(child)
    return found


def _children(pid):
    children = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                children += map(int, file.read(1 << 16).split())
    except FileNotFoundError:
        if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return _children_by_parent(pid)  # a kernel without these lists
    except OSError:
        pass  # it has ended meanwhile
    return children


def _children_by_parent(pid):
    children = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                # The name in brackets may hold anything.
                parent = int(file.read(1024).rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid:
            children.append(int(name))
    return children
