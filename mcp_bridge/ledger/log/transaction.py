"""One transaction of the file: statements, then entries, then the signature of the log's new head."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mcp_bridge.ledger.log.deduplication import capture
from mcp_bridge.ledger.log.log import INSERT_ENTRY, Posted
from mcp_bridge.ledger.storage.sealing import damaged
from mcp_bridge.ledger.storage.write_lock import take_turn
from mcp_bridge.telemetry import measurements

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.log.log import Log
    from mcp_bridge.ledger.storage.sealing import MasterKey

T = TypeVar("T")

Row: TypeAlias = "tuple[str, str, Sequence[Any]]"
"""A table, the condition of a row of it, and the condition's parameters."""

ROWS = (64, 32, 16, 8, 4, 2)
"""Most rows that one statement inserts.

Each statement releases the interpreter's lock, and waits for a busy event loop to get it back.
"""

_TOGETHER = 16 * ROWS[0]
"""Statements that are looked at together, for those that can be one."""

PART_BYTES = 1 << 20
"""Most bytes of payloads that are encrypted and inserted together."""


@dataclass(frozen=True, slots=True)
class Seal:
    """A parameter that is encrypted under its execution's data key; NULL once that execution is erased.

    Attributes:
        execution: The execution.
        data: The plaintext.
        label: The place that it is bound to: it can't be decrypted in another.
    """

    execution: str
    data: bytes
    label: bytes


@dataclass(frozen=True, slots=True)
class RowMac:
    """A parameter of a statement that inserts a row: the MAC of the parameters before it, the row's other columns.

    Attributes:
        table: The table.
    """

    table: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """A parameter that is the wrapped data key of a new execution.

    Attributes:
        execution: The execution.
    """

    execution: str


@dataclass(slots=True)
class Statement:
    """A statement to be executed.

    Attributes:
        text, parameters: SQL and its parameters, some of which may be `Seal` or `NewKey`, and the last a
            `RowMac`.
        row: The row that it writes, if the table's rows have MACs.
        otherwise: Statements with their parameters, which run if this one changes nothing, and write the same row.
        changed: The number of rows that it changed, after its execution.
    """

    text: str
    parameters: Sequence[Any]
    row: Row | None = None
    otherwise: Sequence[tuple[str, Sequence[Any]]] = ()
    changed: int = 0

    @property
    def size(self) -> int:
        """The number of bytes to be sealed."""
        return sum(len(value.data) for value in self.parameters if type(value) is Seal)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, of which there may be very many: what is written of each is made on the writer's thread.

    Attributes:
        text: SQL that inserts one row.
        parameters: Makes the parameters of each row, as those of a `Statement`. Their texts are valid Unicode.
        size: The approximate number of bytes to be sealed.
    """

    text: str
    parameters: Callable[[], Iterator[Sequence[Any]]]
    size: int

    def statements(self) -> Iterator[Statement]:
        """A statement for each row."""
        return (Statement(self.text, parameters) for parameters in self.parameters())


@dataclass(slots=True)
class Append:
    """An entry to be appended.

    Attributes:
        posted: The entry.
        after: The statement that it reports. The entry is appended only if that statement changed something.
    """

    posted: Posted
    after: Statement | None = None

    @property
    def size(self) -> int:
        """The approximate size of its payload in bytes."""
        return self.posted.size


Item: TypeAlias = "Statement | Rows | Append"


class Transaction:
    """A write transaction for work that is more than a list of statements.

    Args:
        connection: The connection, in the transaction.
        log: The log, after `Log.begin`.
    """

    def __init__(self, connection: sqlite3.Connection, log: Log) -> None:
        self.connection = connection
        self.log = log

    def append(self, entry: Entry) -> None:
        """Append an entry."""
        _insert(self.connection, self.log, [posted(entry)])

    def authenticate(self, row: Row) -> None:
        """Renew the MAC of a row that was written."""
        authenticate(self.connection, self.log.master, row)


def posted(entry: Entry) -> Posted:
    """Capture an entry: later changes of its payload aren't recorded. A large payload is encoded later."""
    return Posted(entry, capture(entry.payload), time.time_ns() // 1000)


def commit(connection: sqlite3.Connection, log: Log, batch: Sequence[Item]) -> dict[str, int]:
    """Execute posted items in one transaction. Returns the number of bytes written for each execution.

    Raises:
        sqlite3.Error: As SQLite raises it. The transaction is rolled back.
        BridgeError: As `Log`. The transaction is rolled back.
        PositionError: The transaction is committed.
    """
    for item in batch:
        if isinstance(item, Append):
            # Encoded before the transaction, because other processes wait for its end.
            _ = item.posted.payload
    run(connection, log, lambda transaction: _do(transaction, batch))
    return dict(log.stored)


def run(connection: sqlite3.Connection, log: Log, work: Callable[[Transaction], T]) -> T:
    """Run work in one transaction.

    Raises:
        sqlite3.Error, BridgeError: As `commit`, and as the work. The transaction is rolled back.
        PositionError: The transaction is committed.
    """
    take_turn(connection)
    try:
        log.begin(connection)
        result = work(Transaction(connection, log))
        log.finish(connection)
        began = time.perf_counter()
        connection.execute("COMMIT")
        measurements.committed(time.perf_counter() - began)
    except BaseException:
        log.forget()
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    log.committed()
    return result


def row_mac(master: MasterKey, table: str, values: Sequence[Any]) -> bytes:
    """The MAC of a row.

    Args:
        master: The master key.
        table: The row's table.
        values: The row's columns, except the last, which is the MAC.
    """
    return master.mac(table, *values)


def check_row(master: MasterKey, table: str, row: Sequence[Any]) -> None:
    """Check a row against its MAC, its last column.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    if row_mac(master, table, row[:-1]) != row[-1]:
        raise damaged(f"a row of {table} was changed: {row[0]!r:.60}")


def authenticate(connection: sqlite3.Connection, master: MasterKey, row: Row) -> None:
    """Renew the MACs of rows that were written. Rows of `data_keys` are inserted with their MACs and never changed."""
    table, condition, parameters = row
    # Table names and conditions are constants of this project.
    found = connection.execute(f"SELECT rowid, * FROM {table} WHERE {condition}", parameters).fetchall()  # noqa: S608
    for rowid, *values in found:
        mac = row_mac(master, table, values[:-1])
        connection.execute(f"UPDATE {table} SET mac = ? WHERE rowid = ?", (mac, rowid))  # noqa: S608


def _do(transaction: Transaction, batch: Sequence[Item]) -> None:
    connection, log = transaction.connection, transaction.log
    for items in _together(batch):
        _execute(transaction, items)
    _insert(
        connection,
        log,
        [item.posted for item in batch if isinstance(item, Append) and (item.after is None or item.after.changed)],
    )


def _together(batch: Sequence[Item]) -> Iterator[Sequence[Statement]]:
    """The statements of a batch in their order, some at a time: those of `Rows` aren't all made at once."""
    statements = itertools.chain.from_iterable(
        [item] if isinstance(item, Statement) else item.statements() if isinstance(item, Rows) else () for item in batch
    )
    while part := list(itertools.islice(statements, _TOGETHER)):
        yield part


def _execute(transaction: Transaction, statements: Sequence[Statement]) -> None:
    connection, log = transaction.connection, transaction.log
    at = 0
    while at < len(statements):
        count = _alike(statements, at)
        rows = statements[at : at + count]
        values = [value for row in rows for value in _values(connection, log, row.parameters)]
        cursor = connection.execute(rows[0].text if count == 1 else _of_rows(rows[0].text, count), values)
        rows[0].changed = cursor.rowcount
        # A value may be as large as a script's whole output; the next statement has its own copy.
        del values
        if count == 1 and not rows[0].changed:
            for text, parameters in rows[0].otherwise:
                connection.execute(text, parameters)
        if count == 1 and rows[0].row is not None and (rows[0].changed or rows[0].otherwise):
            transaction.authenticate(rows[0].row)
        at += count


def _values(connection: sqlite3.Connection, log: Log, parameters: Sequence[Any]) -> list[Any]:
    values: list[Any] = []
    for value in parameters:
        if type(value) is Seal:
            values.append(log.seal(connection, value.execution, value.data, value.label))
        elif type(value) is NewKey:
            values.append(log.first_key(value.execution))
        elif type(value) is RowMac:
            values.append(row_mac(log.master, value.table, values))
        else:
            values.append(value)
    return values


def _insert(connection: sqlite3.Connection, log: Log, entries: Sequence[Posted]) -> None:
    for part in _parts(entries):
        rows = log.append(connection, part)
        at = 0
        while at < len(rows):
            count = next((count for count in ROWS if count <= len(rows) - at), 1)
            values = [value for row in rows[at : at + count] for value in row]
            connection.execute(_of_rows(INSERT_ENTRY, count), values)
            at += count


def _parts(entries: Sequence[Posted]) -> Iterator[Sequence[Posted]]:
    """Entries in batches small enough to be encrypted and inserted in little memory."""
    begin = size = 0
    for at, entry in enumerate(entries):
        if at > begin and (size + entry.bytes > PART_BYTES or at - begin == ROWS[0]):
            yield entries[begin:at]
            begin, size = at, 0
        size += entry.bytes
    if begin < len(entries):
        yield entries[begin:]


def _alike(statements: Sequence[Statement], at: int) -> int:
    """The number of statements from `at` on that can be executed as one."""
    text = statements[at].text
    if not text.endswith(")") or " VALUES " not in text or statements[at].row is not None:
        return 1
    for count in ROWS:
        rows = statements[at : at + count]
        if len(rows) == count and all(row.text == text and row.row is None for row in rows):
            return count
    return 1


@functools.cache
def _of_rows(insert: str, count: int) -> str:
    head, _, values = insert.partition(" VALUES ")
    return f"{head} VALUES {', '.join([values] * count)}"
