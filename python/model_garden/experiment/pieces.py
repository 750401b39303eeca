"""What a user gives: the pieces of a pipeline, as they are or as a function that makes them."""
import importlib
import os
import sys

# In the order in which data passes through them.
NAMES = ("dataset", "processor", "collator", "model", "loss", "optimizer", "callbacks")
SETTINGS = ("batch_size", "workers", "device")
SMALLEST_BATCH = 1


class PiecesError(ValueError):
    """The pieces cannot be used; the text says which and why, with a hint."""


class Pieces:
    """The pieces of a pipeline; what is not there is None.

    `dataset` gives examples by number (or by iteration), `processor` makes of each what the collator needs, `collator` makes a batch of several,
    `model` takes a batch, `loss` takes what the model gave and the batch, `optimizer` steps, `callbacks` are called after each batch.
    """

    def __init__(self, dataset=None, processor=None, collator=None, model=None, loss=None, optimizer=None, callbacks=None, batch_size=2, workers=0, device=None):
        self.dataset = dataset
        self.processor = processor
        self.collator = collator
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.batch_size = batch_size
        self.workers = workers
        self.device = device

    def present(self):
        """The names of the pieces that are there, in the order of the data."""
        return [name for name in NAMES if getattr(self, name) is not None]

    def kinds(self):
        """What each piece is: name -> the name of its class or function."""
        return {name: _kind(getattr(self, name)) for name in self.present()}

    @staticmethod
    def of(given):
        """Pieces from a dict, or from an object with attributes of these names; a bare sequence is a dataset."""
        if isinstance(given, Pieces):
            pieces = given
        elif isinstance(given, dict):
            pieces = Pieces(**_known(given))
        elif given is None:
            raise PiecesError("no pieces: got None\nhint: return a dict such as {'dataset': .., 'processor': .., 'collator': ..}")
        elif hasattr(given, "__getitem__") or hasattr(given, "__iter__"):
            pieces = Pieces(dataset=given)
        else:
            raise PiecesError(f"a {type(given).__name__} is neither a dataset nor a dict of pieces\nhint: return a dict such as {{'dataset': ..}}")
        pieces.check()
        return pieces

    def check(self):
        """Raises `PiecesError` if the pieces cannot be put together."""
        if self.dataset is None:
            raise PiecesError("the dataset is missing\nhint: pass `dataset=`: a list, a torch Dataset or any iterable")
        if not (hasattr(self.dataset, "__getitem__") or hasattr(self.dataset, "__iter__")):
            raise PiecesError(f"the dataset is a {type(self.dataset).__name__}, which supports neither indexing nor iteration")
        for name in ("processor", "collator", "model", "loss"):
            piece = getattr(self, name)
            if piece is not None and not callable(piece):
                raise PiecesError(f"the {name} is a {type(piece).__name__}, which is not callable")
        if self.optimizer is not None and not hasattr(self.optimizer, "step"):
            raise PiecesError(f"the optimizer is a {type(self.optimizer).__name__} without `step()`")
        for needed, by in (("model", "loss"), ("model", "optimizer")):
            if getattr(self, by) is not None and getattr(self, needed) is None:
                raise PiecesError(f"`{by}` needs a {needed}")
        if self.callbacks is not None and not isinstance(self.callbacks, (list, tuple)):
            self.callbacks = [self.callbacks]
        for callback in self.callbacks or ():
            if not callable(callback) and not hasattr(callback, "on_step_end"):
                raise PiecesError(f"a callback is a {type(callback).__name__}, which is not callable and has no `on_step_end`")
        self.batch_size = _whole(self.batch_size, "batch_size", SMALLEST_BATCH)
        self.workers = _whole(self.workers, "workers", 0)


def _known(given):
    known = dict(given)
    if "transform" in known:
        if "processor" in known:
            raise PiecesError("`transform` and `processor` are two names for the same piece: pass only one")
        known["processor"] = known.pop("transform")
    strange = [name for name in known if name not in NAMES + SETTINGS]
    if strange:
        raise PiecesError(f"unknown piece `{strange[0]}`\nhint: the pieces are {', '.join(NAMES)}; the settings {', '.join(SETTINGS)}")
    return known


def _whole(value, name, least):
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least or number != value:
        raise PiecesError(f"`{name}` is {value!r}; expected a whole number of at least {least}")
    return number


def _kind(piece):
    if isinstance(piece, (list, tuple)) and piece and not isinstance(piece[0], (str, bytes, int, float, dict)) and len(piece) <= 8:
        return ", ".join(_kind(one) for one in piece)
    named = piece if hasattr(piece, "__qualname__") else type(piece)
    module = getattr(named, "__module__", None)
    name = getattr(named, "__qualname__", str(named)).replace("<locals>.", "")
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def load(target):
    """The function that `module:function` names; modules of the present folder are found too."""
    module_name, colon, function_name = target.partition(":")
    if not colon or not module_name or not function_name:
        raise PiecesError(f"`{target}` is not of the form module:function\nhint: `model-garden bisect train:pieces` calls pieces() of train.py")
    if module_name.endswith(".py") or os.sep in module_name:
        folder, name = os.path.split(module_name[:-3] if module_name.endswith(".py") else module_name)
        sys.path.insert(0, os.path.abspath(folder or "."))
        module_name = name
    elif os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise  # it exists, and needs another one that does not
        raise PiecesError(f"there is no module `{module_name}`\nhint: run it from the folder of {module_name.partition('.')[0]}.py, or set PYTHONPATH") from None
    function = module
    for part in function_name.split("."):
        if not hasattr(function, part):
            functions = [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", None) == module.__name__]
            known = f"; it has {', '.join(functions[:8])}" if functions else ""
            raise PiecesError(f"module `{module_name}` has no `{function_name}`{known}")
        function = getattr(function, part)
    return function


def build(source):
    """The pieces from a function, a dict or the pieces themselves."""
    made = source
    # A dataset may be callable too; whatever has examples is one.
    if callable(source) and not isinstance(source, Pieces) and not hasattr(source, "__getitem__"):
        made = source()
    return Pieces.of(made)
