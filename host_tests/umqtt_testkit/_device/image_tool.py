# Reads and writes the files of a board's flash image while the board is off.
#
# micropython image_tool.py IMAGE PROGRAM_SIZE        (reads orders from stdin, one JSON list per line, and
# prints one JSON answer per line)
#
#   ["put", PATH, HOST_FILE]    copy a host file to PATH, making folders     -> null
#   ["get", PATH, HOST_FILE]    copy PATH to a host file                     -> null
#   ["list"]                    every file                                   -> [[PATH, SIZE], ...]
#   ["remove", PATH]                                                         -> null
# An order that fails is answered with {"error": TEXT}.
import json
import sys

from file_flash import open_filesystem

_CHUNK = 4096
_FOLDER = 0x4000


def make_folders(fs, path):
    parts = path.strip("/").split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        try:
            fs.mkdir("/" + "/".join(parts[:depth]))
        except OSError as error:
            if error.errno != 17:  # EEXIST
                raise


def copy(source, target):
    with source, target:
        while True:
            data = source.read(_CHUNK)
            if not data:
                return
            if target.write(data) != len(data):
                raise OSError("the flash is full")


def put(fs, path, host_file):
    make_folders(fs, path)
    copy(open(host_file, "rb"), fs.open(path, "wb"))


def get(fs, path, host_file):
    copy(fs.open(path, "rb"), open(host_file, "wb"))


def files(fs, folder=""):
    found = []
    for entry in fs.ilistdir(folder or "/"):
        path = folder + "/" + entry[0]
        if entry[1] == _FOLDER:
            found.extend(files(fs, path))
        else:
            found.append([path, entry[3]])
    return found


def main():
    fs = open_filesystem(sys.argv[1], int(sys.argv[2]))
    orders = {"put": put, "get": get, "list": files, "remove": lambda fs, path: fs.remove(path)}
    while True:
        line = sys.stdin.readline()
        if not line:
            return
        name, *arguments = json.loads(line)
        try:
            answer = orders[name](fs, *arguments)
        except OSError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer))


main()
