"""A workload for the simulation itself: SQLite without any of ours, and a file that is replaced.

python plain.py DIRECTORY sqlite SYNCHRONOUS ROWS
python plain.py DIRECTORY file   HOW         VERSIONS
"""

import os
import sqlite3
import sys
from pathlib import Path


def sqlite(directory, acknowledge, synchronous, rows):
    connection = sqlite3.connect(directory / "database", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 20")
    connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, text TEXT)")
    for number in range(rows):
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, f"{number} " * (number * 37 % 500)))
        acknowledge(number)
    connection.close()


def file(directory, acknowledge, how, versions):
    for number in range(versions):
        fresh = directory / f"fresh{number}"
        with fresh.open("wb") as opened:
            opened.write(f"{number}:".encode() + b"x" * 5000)
            opened.flush()
            if "file" in how:
                os.fsync(opened.fileno())
        fresh.replace(directory / "file")
        if "directory" in how:
            of_directory = os.open(directory, os.O_RDONLY)
            os.fsync(of_directory)
            os.close(of_directory)
        acknowledge(number)


def main():
    directory = Path(sys.argv[1])
    with (directory / "acknowledged").open("w", buffering=1) as told:
        work = {"sqlite": sqlite, "file": file}[sys.argv[2]]
        work(directory, lambda number: told.write(f"{number}\n"), sys.argv[3], int(sys.argv[4]))


if __name__ == "__main__":
    main()
