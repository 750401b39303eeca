"""Twenty programs that fork, each of its own kind, for what a watcher says of memory that processes share.

usage: forking.py NAME [SCALE]
       forking.py --list

Each program takes memory, forks, and does something with it in parent and children, then holds still until its input ends.
It prints `begun`, and `quiet` once nothing moves any more; from then on the sum of Pss_Anon over all of its processes is the truth. SCALE divides all
sizes and pauses, for quick tests. Children die with their parent.
"""
import ctypes
import mmap
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
MADV_HUGEPAGE = 14
PAGE = mmap.PAGESIZE

libc = ctypes.CDLL(None, use_errno=True)
scale = 1.0


def rest(seconds):
    time.sleep(seconds / scale)


def block(mib, huge=False):
    """Takes memory and writes to every page of it."""
    size = max(int((mib << 20) / scale), PAGE)
    taken = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        taken.madvise(MADV_HUGEPAGE)
    touch(taken)
    return taken


def touch(taken, share=1.0, begin=0.0, pause=0.0):
    """Writes to a part of the pages, in sixteen pieces with a pause after each."""
    first, last = int(len(taken) * begin) // PAGE, int(len(taken) * (begin + share)) // PAGE
    for piece in range(16):
        for page in range(first + (last - first) * piece // 16, first + (last - first) * (piece + 1) // 16):
            taken[page * PAGE] = 1
        if pause:
            rest(pause)


def look(taken):
    """Reads every page."""
    return sum(taken[place] for place in range(0, len(taken), PAGE))


def fork(work=None, pause=0.0):
    """Forks a child that works, says so and holds still; gives a file that tells when it has worked."""
    inbox, outbox = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        os.close(inbox)
        if work:
            work()
        os.write(outbox, b"x")
        while True:
            time.sleep(3600)
    os.close(outbox)
    rest(pause)
    return inbox


def wait(inboxes):
    for inbox in inboxes:
        os.read(inbox, 1)
        os.close(inbox)


def brief(work=None):
    """Forks a child that works and ends, and waits for it."""
    pid = os.fork()
    if pid == 0:
        if work:
            work()
        os._exit(0)
    os.waitpid(pid, 0)


# Each program leaves what it holds in `kept`.
kept = []


def idle_children():
    """16 idle children, 0.12 s apart, of a parent that waited."""
    kept.append(block(1000))
    rest(2)
    wait([fork(pause=0.12) for _ in range(15)])


def one_idle_child():
    kept.append(block(100))
    rest(1)
    wait([fork()])


def large_parent():
    kept.append(block(2000))
    rest(1)
    wait([fork(pause=0.3) for _ in range(15)])


def children_copy_a_part():
    kept.append(block(400))
    wait([fork(lambda: touch(kept[0], 0.1), 0.2) for _ in range(15)])


def one_child_copies_all():
    kept.append(block(500))
    wait([fork(), fork(lambda: touch(kept[0], pause=0.2)), fork()])


def parent_copies_all():
    kept.append(block(500))
    children = [fork() for _ in range(4)]
    rest(1)
    touch(kept[0], pause=0.2)
    wait(children)


def both_write_the_same():
    """Whoever writes last writes to pages that nobody shares any more: faults without a copy."""
    kept.append(block(300))
    child = fork(lambda: touch(kept[0]))
    wait([child])
    touch(kept[0], pause=0.1)
    touch(kept[0])


def children_only_read():
    kept.append(block(600))
    wait([fork(lambda: look(kept[0]), 0.1) for _ in range(8)])


def parent_grows_after_the_fork():
    kept.append(block(200))
    children = [fork() for _ in range(6)]
    for _ in range(6):
        kept.append(block(100))
        rest(0.3)
    wait(children)


def parent_gives_back():
    kept.append(block(800))
    children = [fork() for _ in range(3)]
    rest(1)
    kept.pop().close()
    wait(children)


def parent_gives_back_at_once():
    """Forks and gives back between two samples."""
    kept.append(block(600))
    rest(1)
    children = [fork() for _ in range(2)]
    kept.pop().close()
    wait(children)


def children_grow():
    kept.append(block(300))
    wait([fork(lambda: kept.append(block(60)), 0.1) for _ in range(12)])


def children_give_back():
    kept.append(block(500))
    wait([fork(lambda: kept.pop().close(), 0.1) for _ in range(10)])


def children_come_and_go():
    kept.append(block(700))
    for _ in range(20):
        brief(lambda: touch(kept[0], 0.05))
        rest(0.1)
    wait([fork() for _ in range(5)])


def a_child_that_copied_goes():
    kept.append(block(400))
    children = [fork() for _ in range(6)]
    pid = os.fork()
    if pid == 0:
        touch(kept[0], 0.8)
        rest(1)
        os._exit(0)
    os.waitpid(pid, 0)
    wait(children)


def grandchildren():
    """Each one copies a piece, forks, and the next goes on: eight generations."""
    kept.append(block(320))

    def generation(number):
        touch(kept[0], 1 / 16, number / 16)
        if number < 8:
            wait([fork(lambda: generation(number + 1))])

    generation(0)


def orphans():
    """A child makes memory, forks a grandchild and ends: nobody has seen who made what the grandchild holds."""
    kept.append(block(300))
    inbox, outbox = os.pipe()

    def daemon():
        kept.append(block(200))
        root = os.getppid()
        if os.fork() == 0:
            os.write(outbox, b"x")
            # Ends with the program, which is no longer its parent.
            while os.path.exists(f"/proc/{root}"):
                time.sleep(0.2)
            os._exit(0)

    rest(1)
    brief(daemon)
    os.close(outbox)
    wait([fork(), inbox])


def other_programs():
    """Children that become other programs, beside forks."""
    kept.append(block(500))
    children = [fork() for _ in range(3)]
    for _ in range(3):
        inbox, outbox = os.pipe()
        os.set_inheritable(outbox, True)
        program = f"import os, time; held = bytearray(b'x') * {int((80 << 20) / scale)}; os.write({outbox}, b'x'); time.sleep(3600)"
        if os.fork() == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            rest(0.3)
            os.execv(sys.executable, [sys.executable, "-c", program])
        os.close(outbox)
        children.append(inbox)
    wait(children)


def huge_pages():
    kept.append(block(1024, huge=True))
    children = [fork(lambda: touch(kept[0], 0.05), 0.1) for _ in range(6)]
    wait(children)
    kept.append(block(256, huge=True))


def threads_write_and_fork():
    """Threads of the parent write and take memory while it forks."""
    kept.extend([block(400), block(200)])

    def churn():
        # Not the same pages twice, so that this ends somewhere.
        for piece in range(40):
            touch(kept[0], 1 / 40, piece / 40)
            taken = block(20)
            taken.close()
            rest(0.05)

    workers = [threading.Thread(target=churn) for _ in range(2)]
    for worker in workers:
        worker.start()
    children = [fork(pause=0.25) for _ in range(8)]
    wait(children)
    for worker in workers:
        worker.join()


PROGRAMS = [
    idle_children, one_idle_child, large_parent, children_copy_a_part, one_child_copies_all, parent_copies_all,
    both_write_the_same, children_only_read, parent_grows_after_the_fork, parent_gives_back, parent_gives_back_at_once,
    children_grow, children_give_back, children_come_and_go, a_child_that_copied_goes, grandchildren, orphans,
    other_programs, huge_pages, threads_write_and_fork,
]

if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(program.__name__ for program in PROGRAMS))
        sys.exit()
    scale = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    print("begun", flush=True)
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
    print("quiet", flush=True)
    sys.stdin.read()
