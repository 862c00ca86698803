# Runs the tests of one portable file inside MicroPython, one at a time as they are asked for.
#
#   micropython both_runner.py MODULE FOLDER...     (folders: put first on sys.path)
#
# Protocol: a line on stdin is the name of a test; the answer is RECORD + one JSON object + newline on stdout,
# whatever the test printed before it. The first object answers the import of the module itself.
import gc
import io
import json
import sys

RECORD = "\x1e"  # ASCII record separator: does not occur in what a test prints


def answer(outcome, detail=""):
    print(RECORD + json.dumps({"outcome": outcome, "detail": detail}))


def traceback_of(error):
    text = io.StringIO()
    sys.print_exception(error, text)
    return text.getvalue()


def attempt(function, skip_error):
    try:
        function()
    except skip_error as reason:
        answer("skipped", str(reason))
    except MemoryError as error:
        # Release what the test held before a report is built in the same heap.
        text = "MemoryError: %s\n" % error
        error = None
        gc.collect()
        answer("failed", text)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: one test must not end the others
        answer("failed", traceback_of(error))
    else:
        answer("passed")


def main():
    module_name = sys.argv[1]
    sys.path[:0] = sys.argv[2:]
    from umqtt_testkit.portable import Skip

    modules = []
    attempt(lambda: modules.append(__import__(module_name)), Skip)
    while True:
        name = sys.stdin.readline().strip()
        if not name:
            return
        gc.collect()
        attempt(getattr(modules[0], name), Skip)


main()
