"""The pieces at work: one batch of examples through as many of them as a run wants."""
import gc
import os
import pickle
import struct
import sys
from types import SimpleNamespace

from ..processes import settle_after_fork
from .counters import own_files, trim

# Which pieces can be fed from another process: what the others get cannot be sent (a graph), or is not there at all.
FED = ("processor", "collator", "model")
# Instead of a batch: a worker is to give free memory back, or to collect its garbage first.
TRIM = "trim"
COLLECT = "collect"
LENGTH = struct.Struct("<q")


class StageError(Exception):
    """A piece raised; `stage` and `example` say which one and where."""

    def __init__(self, stage, examples, error):
        super().__init__(str(error))
        self.stage = stage
        self.examples = list(examples)
        self.error = error


class Told(Exception):
    """What went wrong in another process, in its words."""

    @staticmethod
    def of(error):
        """The words of an error; those of a piece's own one if a piece raised it."""
        cause = error.error if isinstance(error, StageError) else error
        return Told(f"{type(cause).__name__}: {cause}")


class Chain:
    """The pieces up to and including the last one wanted; `visit` takes a batch of examples through them and keeps nothing."""

    def __init__(self, pieces, names):
        self.pieces = pieces
        self.names = list(names)
        self.step = 0
        # Whether examples of one batch were different objects; None until a batch had several.
        self.are_different = None
        self._rows = None

    def visit(self, numbers):
        """Takes these examples through the chain. What came out is dropped, unless it is wanted by a feeder."""
        self._through(numbers)

    def produce(self, numbers):
        """What comes out of the chain: for a process that is fed by this one."""
        if numbers in (TRIM, COLLECT):
            if numbers == COLLECT:
                gc.collect()
            trim()
            return None
        return self._through(numbers)

    def _through(self, numbers):
        at, examples = "dataset", numbers
        try:
            value = []
            for number in numbers:
                examples = [number]
                value.append(self._example(number))
            if len(value) > 1 and not self.are_different:
                self.are_different = any(example is not value[0] for example in value)
            for at in self.names[1:]:
                examples = numbers
                if at == "processor":
                    made = []
                    for number, example in zip(numbers, value):
                        examples = [number]
                        made.append(self.pieces.processor(example))
                    value = made
                else:
                    value = self._apply(at, value)
            return value
        except Exception as error:
            raise StageError(at, examples, error) from error

    def _example(self, number):
        dataset = self.pieces.dataset
        if hasattr(dataset, "__getitem__"):
            return dataset[number]
        return self._iterated(number)

    def _iterated(self, number):
        # An iterable dataset begins anew in every pass, which is when the numbers begin anew.
        if self._rows is None or number <= self._rows[0]:
            self._rows = [-1, iter(self.pieces.dataset)]
        while True:
            try:
                row = next(self._rows[1])
            except StopIteration:
                raise self._ended() from None
            self._rows[0] += 1
            if self._rows[0] == number:
                return row

    def _ended(self):
        """Why there is no further example."""
        if self._rows[1] is self.pieces.dataset:
            return TypeError(f"a {type(self.pieces.dataset).__name__} can be iterated only once, but each pass starts over: pass a list, or an object whose __iter__ returns a new iterator")
        return IndexError(f"it ended after {self._rows[0] + 1} examples")

    def iterator(self):
        """What goes through an iterable dataset at the moment."""
        return self._rows and self._rows[1]

    def _apply(self, name, value):
        if name == "collator":
            return self.pieces.collator(value)
        if name == "model":
            batch = value
            return SimpleNamespace(batch=batch, outputs=call_model(self.pieces, batch), loss=None)
        if name == "loss":
            return self._backward(value)
        if name == "optimizer":
            return self._update(value)
        return call_callbacks(self.pieces.callbacks, self._next_step(), self.pieces, value)

    def _backward(self, value):
        if value.loss is None:
            value.loss = self.pieces.loss(value.outputs, value.batch)
            if hasattr(value.loss, "backward"):
                value.loss.backward()
        return value

    def _update(self, value):
        if value.loss is None:
            loss = getattr(value.outputs, "loss", None)
            if loss is None and isinstance(value.outputs, dict):
                loss = value.outputs.get("loss")
            if hasattr(loss, "backward"):
                loss.backward()
        self.pieces.optimizer.step()
        if hasattr(self.pieces.optimizer, "zero_grad"):
            self.pieces.optimizer.zero_grad()
        return value

    def _next_step(self):
        self.step += 1
        return self.step


def call_model(pieces, batch):
    """What the model makes of a batch: by name if the batch is a mapping, as transformers' models want it."""
    batch = _moved(batch, pieces.device)
    is_mapping = hasattr(batch, "keys") and hasattr(batch, "__getitem__")
    return pieces.model(**batch) if is_mapping else pieces.model(batch)


def _moved(batch, device):
    if device is None:
        return batch
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_moved(value, device) for value in batch)
    return batch


def call_callbacks(callbacks, step, pieces, value):
    """Calls callbacks as a trainer does after a step; plain functions get the step's number."""
    state = SimpleNamespace(global_step=step, epoch=0.0, max_steps=0, log_history=[], is_world_process_zero=True, is_local_process_zero=True)
    control = SimpleNamespace(should_save=False, should_log=False, should_evaluate=False, should_training_stop=False, should_epoch_stop=False)
    for callback in callbacks:
        if hasattr(callback, "on_step_end"):
            callback.on_step_end(SimpleNamespace(output_dir=None), state, control, model=pieces.model, optimizer=pieces.optimizer)
        else:
            callback(step)
    return value


class Alone:
    """One piece by itself. What it gets is made by the pieces before it in another process, and comes as a copy that nobody else has.

    So what grows here is kept by this piece, and not by the dataset whose example it was given.
    """

    def __init__(self, pieces, name, batches):
        before = pieces.present()[: pieces.present().index(name)]
        self.pieces = pieces
        self.name = name
        self._step = 0
        self._feeder = Feeder(Chain(pieces, before), batches) if name in FED else None

    def visit(self, numbers):
        """Takes the next batch from the other process through the piece, and drops what comes out."""
        if self._feeder is None:
            self._step += 1
            call_callbacks(self.pieces.callbacks, self._step, self.pieces, None)
            return
        value = self._feeder.take()
        try:
            if self.name == "processor":
                for example in value:
                    self.pieces.processor(example)
            elif self.name == "collator":
                self.pieces.collator(value)
            else:
                call_model(self.pieces, value)
        except Exception as error:
            raise StageError(self.name, numbers, error) from error

    def close(self):
        """Ends the other process."""
        if self._feeder is not None:
            self._feeder.close()


class FeederError(Exception):
    """Another process could not make what a piece needs, or could not send it."""


class Feeder:
    """A forked process that makes batches and sends them as pickles, one ahead of their use."""

    def __init__(self, chain, batches):
        reading, writing = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            code = 1
            try:
                settle_after_fork(parent)
                own_files()
                with os.fdopen(writing, "wb") as stream:
                    self._feed(chain, batches, stream)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._stream = os.fdopen(reading, "rb")

    @staticmethod
    def _feed(chain, batches, stream):
        for numbers in batches:
            try:
                made = pickle.dumps(chain.produce(numbers), protocol=pickle.HIGHEST_PROTOCOL)
                stream.write(LENGTH.pack(len(made)) + made)
            except BrokenPipeError:
                return
            except Exception as error:
                reason = str(Told.of(error)).encode("utf-8", "replace")[:4000]
                stream.write(LENGTH.pack(-len(reason)) + reason)
                return
            stream.flush()

    def take(self):
        """The next batch."""
        head = self._stream.read(LENGTH.size)
        if len(head) < LENGTH.size:
            raise FeederError("the process that makes the examples ended early")
        length = LENGTH.unpack(head)[0]
        data = self._stream.read(abs(length))
        if length < 0:
            raise FeederError(data.decode("utf-8", "replace"))
        return pickle.loads(data)

    def close(self):
        """Ends the process and waits for it."""
        import signal

        self._stream.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


class Workers:
    """Loader workers: the dataset, processor and collator in forked processes that live as long as the run, as `persistent_workers` has them.

    torch's own DataLoader where torch is in use, otherwise forked processes of the same kind.
    """

    def __init__(self, pieces):
        names = [name for name in pieces.present() if name in ("dataset", "processor", "collator")]
        self._chain = Chain(pieces, names)
        self._batches = []
        self._number = pieces.workers
        self._loader = self._of_torch(pieces.workers) if "torch" in sys.modules else None
        self._pipes = [] if self._loader else [self._start() for _ in range(pieces.workers)]

    def _of_torch(self, number):
        from torch.utils.data import DataLoader

        made = _Batches(self._chain, self._batches)
        sampler = _Order(self._batches)
        return DataLoader(made, batch_size=None, sampler=sampler, num_workers=number, persistent_workers=True, collate_fn=_same, worker_init_fn=_settle_worker)

    def _start(self):
        import multiprocessing

        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(there, here, self._chain), daemon=True)
        process.start()
        there.close()
        return process, here

    def visit_all(self, batches, after):
        """Has the workers make all these batches; `after(index)` is called when each of them has come."""
        if self._loader is not None:
            self._batches[:] = batches
            for index, made in enumerate(self._loader):
                if isinstance(made, Told):
                    raise StageError("workers", batches[index], made)
                after(index)
            return
        waiting = []
        for index, numbers in enumerate(batches):
            process, pipe = self._pipes[index % len(self._pipes)]
            try:
                pipe.send(numbers)
            except ConnectionError:
                raise StageError("workers", numbers, Told("the worker ended")) from None
            waiting.append((index, pipe, numbers))
            if len(waiting) >= 2 * len(self._pipes):
                self._receive(waiting.pop(0), after)
        for one in waiting:
            self._receive(one, after)

    def trim(self):
        """Has every worker give free memory back: otherwise its heap, which settles after some hundred batches, would look like growth."""
        # They are served in turn, so each gets one.
        self.visit_all([TRIM] * 2 * self._number, lambda index: None)

    def collect(self):
        """Has every worker collect its garbage. The first collection copies much of the parent's memory, whatever the examples are."""
        self.visit_all([COLLECT] * 2 * self._number, lambda index: None)

    @staticmethod
    def _receive(one, after):
        index, pipe, numbers = one
        try:
            made = pipe.recv()
        except (EOFError, ConnectionError):
            made = Told("the worker ended")
        if isinstance(made, Told):
            raise StageError("workers", numbers, made)
        after(index)

    def pids(self):
        """The worker processes."""
        if self._loader is not None:
            return [worker.pid for worker in getattr(self._loader._iterator, "_workers", [])]
        return [process.pid for process, _ in self._pipes]

    def close(self):
        """Ends the workers."""
        if self._loader is not None:
            iterator = self._loader._iterator
            if iterator is not None:
                iterator._shutdown_workers()
        for process, pipe in self._pipes:
            pipe.close()
            process.terminate()
            process.join(5)


def _serve(pipe, parents_end, chain):
    parents_end.close()
    _settle_worker()
    while True:
        try:
            numbers = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(chain.produce(numbers))
        except Exception as error:
            pipe.send(Told.of(error))


class _Batches:
    """A dataset whose items are whole batches."""

    def __init__(self, chain, batches):
        self.chain = chain
        self.batches = batches

    def __getitem__(self, numbers):
        # Raised, it would come out of the loader as a page of torch's own words.
        try:
            return self.chain.produce(numbers)
        except Exception as error:
            return Told.of(error)

    def __len__(self):
        return len(self.batches)


class _Order:
    """A sampler that gives the batches of the pass that is on."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(list(self.batches))

    def __len__(self):
        return len(self.batches)


def _same(value):
    return value


def _settle_worker(number=0):
    import multiprocessing

    settle_after_fork(multiprocessing.parent_process().pid)
