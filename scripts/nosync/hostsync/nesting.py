"""Changes that blocks share: made when the first block opens, undone when the last one closes.

Blocks of asyncio tasks may close in another order than they opened, so what a block changes must not be a stack.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Install = Callable[[], Callable[[], None]]
"""Makes a change and returns what undoes it."""


class PerThread(threading.local):
    """Context managers that are entered once per thread.

    Args:
        contexts: Makes the context managers, in the order in which they are entered.
    """

    def __init__(self, contexts: Callable[[], Sequence[contextlib.AbstractContextManager[Any]]]) -> None:
        self._contexts = contexts
        self._stack = contextlib.ExitStack()
        self.depth = 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Have the context managers entered in this thread."""
        if self.depth == 0:
            for context in self._contexts():
                self._stack.enter_context(context)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self._stack.close()


class PerProcess:
    """Process-wide changes that are made once.

    Args:
        installs: Make the changes; undone in the opposite order.
    """

    def __init__(self, *installs: Install) -> None:
        self._installs = installs
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._users = 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Have the changes in place."""
        with self._lock:
            if self._users == 0:
                self._undo.extend(install() for install in self._installs)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                while self._users == 0 and self._undo:
                    self._undo.pop()()
