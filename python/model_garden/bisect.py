"""`bisect`: which piece of a pipeline makes memory grow, and whether that ever ends.

The pieces are run alone and together, over the same different examples several times, in processes of their own. What grows in the first pass
only is a cache, what grows in every pass a leak. `experiment/` measures; the binary judges and reports.
"""
import os

# What is kept of what another process said.
TAIL = 4000


def bisect(
    pieces=None,
    *,
    dataset=None,
    processor=None,
    collator=None,
    model=None,
    loss=None,
    optimizer=None,
    callbacks=None,
    batch_size=2,
    workers=0,
    device=None,
    examples=50,
    passes=None,
    seconds=60.0,
    start="auto",
    record=None,
    report=None,
    memory_limit=None,
    quiet=False,
):
    """Finds out which piece makes memory grow; prints the answer and returns it.

        model_garden.bisect(dataset=rows, processor=processor, collator=collator)
        model_garden.bisect("train:pieces")            # calls pieces() of train.py in a fresh process: best for CUDA

    `dataset` gives examples by number, `processor` takes one of them, `collator` a list of what the processor gave, `model` a batch, `loss` what
    the model gave and the batch, `callbacks` are called after each batch. `workers` also tries that many loader workers. At least `examples + 8`
    different examples should be there. A dict of these, or a function that makes it, may be given instead.

    Without `passes` there are as many as `seconds` allow, from two to 24: small leaks need more of them. `record` keeps what was measured, `report` is a file for
    the page with charts. Raises `BisectError` if it cannot be done.
    """
    from .binary import find_binary
    from .experiment.conduct import BisectError, conduct
    from .experiment.pieces import Pieces

    if pieces is None:
        pieces = Pieces(dataset, processor, collator, model, loss, optimizer, callbacks, batch_size, workers, device)
    elif any(piece is not None for piece in (dataset, processor, collator, model, loss, optimizer, callbacks)):
        raise BisectError("pieces were passed twice: in one argument and by name")
    # Before the work, so that nobody waits a minute for it in vain; and the pieces may change the folder.
    binary = find_binary()
    record, report = (path and os.path.abspath(path) for path in (record, report))
    say = (lambda text: None) if quiet else None
    if isinstance(pieces, str):
        document = _elsewhere(pieces, examples, passes, seconds, start, quiet)
    else:
        document = conduct(pieces, examples, passes, seconds, start, say=say)
    return Bisection.of(binary, document, record, report, memory_limit, quiet)


class Bisection:
    """The answer: its `text`, and as `data` what docs/bisect.md describes (`verdict`, `summary`, `growths`, `stages`, ...)."""

    def __init__(self, text, data, record):
        self.text = text
        self.data = data
        self.record = record

    @property
    def verdict(self):
        """`leak`, `cache`, `full_cache`, `garbage`, `copies`, `warm_up`, `file_pages`, `undecided`, `flat` or `failed`."""
        return self.data["verdict"]

    @property
    def summary(self):
        """The answer in a sentence or two."""
        return self.data["summary"]

    @property
    def growth(self):
        """The gravest growth as a dict (`kind`, `cause`, `keeper`, `held_at`, `bytes_per_example`, ...), or None."""
        return self.data["growths"][0] if self.data["growths"] else None

    def __repr__(self):
        return f"<Bisection: {self.verdict}: {self.summary}>"

    @staticmethod
    def of(binary, document, record, report, memory_limit, quiet):
        """Has the binary judge what was measured."""
        import json
        import tempfile

        from .processes import write_json

        with tempfile.TemporaryDirectory(prefix="model-garden-") as folder:
            path = record if record else os.path.join(folder, "record.json")
            write_json(document, path)
            limit = [] if memory_limit is None else ["--memory-limit", str(memory_limit)]
            text = _judge(binary, path, "text", limit)
            data = json.loads(_judge(binary, path, "json", limit))
            if report:
                _judge(binary, path, "html", [*limit, "-o", report])
        if not quiet:
            print(text, end="", flush=True)
        return Bisection(text, data, path if record else None)


def _judge(binary, path, form, more):
    import subprocess

    from .experiment.conduct import BisectError

    done = subprocess.run([binary, "bisect", path, "--format", form, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The code tells the verdict; a failure of the program itself leaves nothing on its standard output.
    if done.stderr:
        raise BisectError(f"cannot judge the measurements: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout.decode("utf-8")


def _elsewhere(target, examples, passes, seconds, start, quiet):
    """Runs the experiment in a fresh process, which does not have what this one has made."""
    import json
    import subprocess
    import sys
    import tempfile

    from .experiment.conduct import BisectError
    from .processes import environment_with_us

    with tempfile.TemporaryDirectory(prefix="model-garden-") as folder:
        path = os.path.join(folder, "record.json")
        command = [sys.executable, "-m", "model_garden.experiment", target, "--record", path, "--parent", str(os.getpid())]
        command += ["--examples", str(examples), "--seconds", str(seconds), "--start", str(start)]
        command += [] if passes is None else ["--passes", str(passes)]
        said = b""
        with subprocess.Popen(command, env=environment_with_us(), stderr=subprocess.PIPE) as process:
            try:
                for line in process.stderr:
                    said = (said + line)[-TAIL:]
                    if not quiet:
                        sys.stderr.write(line.decode("utf-8", "replace"))
                        sys.stderr.flush()
            except BaseException:
                # It ends the measured processes when it is asked to end.
                process.terminate()
                raise
        if process.returncode or not os.path.exists(path):
            text = ("\n" + said.decode("utf-8", "replace")).rpartition("\nerror: ")[2].strip()
            raise BisectError(text or f"the experiment with `{target}` exited with code {process.returncode}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)
