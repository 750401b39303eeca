"""`python -m model_garden.experiment module:function ...`: runs the experiment and writes down what was measured. `model-garden bisect` starts it."""
import argparse
import os
import sys
import tempfile


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        from .children import child_main

        child_main(int(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m model_garden.experiment", description="Measures the stages of a pipeline; `model-garden bisect` judges it.")
    parser.add_argument("target", help="module:function that returns the pieces")
    parser.add_argument("--record", default=None, help="output file for the measurements")
    parser.add_argument("--examples", type=int, default=None)
    parser.add_argument("--passes", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--start", default="auto", help="auto, fork or spawn")
    parser.add_argument("--parent", type=int, default=None, help="end together with this process")
    parser.add_argument("--then", nargs=argparse.REMAINDER, help="command that judges the record, whose path is inserted after the first two words")
    arguments = parser.parse_args()

    from ..processes import Terminated, write_json
    from .conduct import BisectError, conduct
    from .counters import end_with_parent

    if arguments.parent is not None:
        end_with_parent(arguments.parent)
    # The pieces may change the folder, and the names of files were meant for this one.
    folder = os.getcwd()
    options = {name: getattr(arguments, name) for name in ("examples", "passes", "seconds", "start") if getattr(arguments, name) is not None}
    record = arguments.record or os.path.join(tempfile.gettempdir(), f"model-garden-bisect-{os.getpid()}.json")
    try:
        document = conduct(arguments.target, **options)
        os.chdir(folder)
        write_json(document, record)
    except BisectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Terminated) as error:
        print("error: interrupted; the measured processes were stopped", file=sys.stderr)
        return error.code if isinstance(error, Terminated) else 130
    if not arguments.then:
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    forget = [] if arguments.record else ["--forget"]
    os.execv(arguments.then[0], [*arguments.then[:2], record, *forget, *arguments.then[2:]])


if __name__ == "__main__":
    code = main()
    from model_garden.processes import leave

    leave(code)
