# Prints the heap bytes taken by the modules that make a process a board: micropython stubs_heap.py FOLDER
import gc
import sys

gc.collect()
before = gc.mem_alloc()
sys.path[:] = [sys.argv[1]]
import board_boot  # noqa: E402 - it is to be measured

board_boot.load_stubs(sys.argv[1], None)
gc.collect()
print(gc.mem_alloc() - before)
