"""What events told about nodes: who trains, who is away, which ways are closed. Every word has an end.

Nothing here is needed for correctness: without it a sync tries a node that does not answer, and fails.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ringrift.data.sync.picture import NodeNews
from ringrift.process import process_scope
from ringrift.runtime import Runtime

AWAY_S = 900.0  # then the node is tried again, whatever was said
TRAINING_S = 6 * 3600.0
CLOSED_S = 300.0
NODES_MAX = 1000
TRANSPORTS = ("http", "rsync", "base64")


class _Words:
    """Words with an end, the oldest of which give way."""

    def __init__(self) -> None:
        self._until: OrderedDict[Any, float] = OrderedDict()

    def say(self, word: Any, until_s: float) -> None:
        self._until[word] = until_s
        self._until.move_to_end(word)
        while len(self._until) > NODES_MAX:
            self._until.popitem(last=False)

    def unsay(self, word: Any) -> None:
        self._until.pop(word, None)

    def clear(self) -> None:
        self._until.clear()

    def __bool__(self) -> bool:
        return bool(self._until)

    def valid(self, now_s: float) -> dict[Any, float]:
        return {word: until for word, until in self._until.items() if until > now_s}


class NewsDesk:
    """Collects what events say; the time is the wall clock's, as in the picture."""

    def __init__(self) -> None:
        self._training, self._away, self._closed = _Words(), _Words(), _Words()
        self._failed: dict[tuple[str, str], list[str]] = {}
        self.leader = ""

    @property
    def was_told(self) -> bool:
        """Whether any event of this process told it something."""
        return bool(self.leader or self._failed or self._training or self._away or self._closed)

    def news(self, runtime: Runtime) -> NodeNews:
        now_s = runtime.now_s()
        return NodeNews(
            training=frozenset(self._training.valid(now_s)),
            away=frozenset(self._away.valid(now_s)),
            closed=self._closed.valid(now_s),
            leader=self.leader,
        )

    def training_began(self, node: str, now_s: float) -> None:
        self._training.say(node, now_s + TRAINING_S)

    def training_ended(self, node: str) -> None:
        self._training.unsay(node)

    def replace_training(self, nodes: frozenset[str], now_s: float) -> None:
        """These train, and no others."""
        self._training.clear()
        for node in sorted(nodes):
            self.training_began(node, now_s)

    def went_away(self, node: str, now_s: float) -> None:
        self._away.say(node, now_s + AWAY_S)

    def came_back(self, node: str) -> None:
        """It may be tried again; what it may receive is said by its settings, not by events."""
        self._away.unsay(node)
        for key in [key for key in self._failed if key[0] == node]:
            del self._failed[key]
        for word in [word for word in self._closed.valid(0.0) if word[0] == node]:
            self._closed.unsay(word)

    def way_failed(self, node: str, data_type: str, transport: str, now_s: float) -> str:
        """Note a way that stalled; return the next to try. Empty: all failed, and the type is closed."""
        failed = self._failed.setdefault((node, data_type), [])
        if transport not in failed:
            failed.append(transport)
        left = [each for each in TRANSPORTS if each not in failed]
        if left:
            return left[0]
        del self._failed[node, data_type]
        self._closed.say((node, data_type), now_s + CLOSED_S)
        return ""

    def failed_ways(self, node: str, data_type: str) -> list[str]:
        return list(self._failed.get((node, data_type), ()))

    def try_all_again(self) -> None:
        """Forget failures. Nodes that settings or people closed stay closed: that is not kept here."""
        self._failed.clear()
        self._closed.clear()


def get_news_desk() -> NewsDesk:
    return process_scope().get(NewsDesk, NewsDesk)
