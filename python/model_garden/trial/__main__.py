"""`python -m model_garden.trial module:function ...`: makes the runs and prints what came of them. `model-garden audit` starts it."""
import argparse
import os
import shutil
import sys
import tempfile


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        from .run import child_main

        child_main(int(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m model_garden.trial", description="Tries workarounds on a loop; `model-garden audit` starts it.")
    parser.add_argument("loop", help="module:function, a generator function; each yield ends a step")
    parser.add_argument("--workaround", action="append", default=[], help="workaround to try, such as gc.collect; repeatable")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="loop setting for all runs")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=None)
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--record", default=None, help="output folder for the traces")
    parser.add_argument("--then", nargs=argparse.REMAINDER, help="command that judges the record, whose path is inserted after the first two words")
    arguments = parser.parse_args()

    from ..audit import AuditError
    from ..processes import Terminated
    from .conduct import record
    from .workarounds import setting

    folder = arguments.record or tempfile.mkdtemp(prefix="model-garden-audit-")
    is_done = False
    try:
        settings = dict(setting(text) for text in arguments.setting)
        record(arguments.loop, arguments.workaround, arguments.steps, arguments.rounds, arguments.warm_up, settings, "fresh", arguments.patience, folder)
        is_done = True
    except AuditError as error:
        what, _, hint = str(error).partition("\nhint: ")
        print(f"error: {what}" + (f"\n\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Terminated) as error:
        print("error: interrupted; the measured processes were stopped", file=sys.stderr)
        return error.code if isinstance(error, Terminated) else 130
    finally:
        if not is_done and arguments.record is None:
            shutil.rmtree(folder, ignore_errors=True)
    if not arguments.then:
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    forget = [] if arguments.record else ["--forget"]
    os.execv(arguments.then[0], [*arguments.then[:2], folder, *forget, *arguments.then[2:]])


if __name__ == "__main__":
    code = main()
    from model_garden.processes import leave

    leave(code)
