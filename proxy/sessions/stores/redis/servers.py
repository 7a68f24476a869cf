"""The servers of the Redis store: one server, a master named by Sentinels, or a cluster, used with raw commands.

redis-py manages connections and speaks the protocol. Server discovery is here, because redis-py's Sentinel and cluster
clients ask one server after the other. A single frozen server uses up an operation's whole time. Its cluster client
also waits 0.25 s when the cluster is down, fails instead of waiting when all connections are in use (redis-py#3135),
asks for COMMAND, and forgets the configured nodes (redis-py#2472, #3221).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, RedisError

from proxy.runtime.deadlines import within
from proxy.sessions.stores.redis.node import OUTAGE, Node, Words, connection_options
from proxy.sessions.stores.redis.url import Address, RedisUrl

T = TypeVar("T")

# For a slot that moves during a command: MOVED, or ASK, and once more.
MAX_REDIRECTS = 3
# After a planned failover the old master accepts writes, which are all lost, until its Sentinels demote it some 8 s
# later.
LOOK_AGAIN_SECONDS = 2.0


class ServerNotFoundError(RedisError):
    """No server or Sentinel could name the server to use."""


@dataclass(frozen=True, slots=True)
class KeyedCommand:
    """A command and its key. All keys of a command are in one slot."""

    key: str
    words: Words


class Servers(Protocol):
    """The servers of a store. Errors are redis-py's, and those in `OUTAGE`."""

    def together(self, keys: Sequence[str]) -> list[list[str]]:
        """Return the keys in groups that one command may name."""

    async def run(self, commands: Sequence[KeyedCommand]) -> list[object]:
        """Return the raw replies or errors in order. One round trip per server."""

    async def reset(self) -> None:
        """Forget discovered servers after an outage, and drop idle connections, which may be dead too."""

    async def close(self) -> None:
        """Close all connections."""


def servers_of(url: RedisUrl, timeout: float) -> Servers:
    """Return the servers of a URL without connecting. Raises OSError or ValueError for invalid TLS files."""
    options = connection_options(url, timeout)
    match url.kind:
        case "server":
            return OneServer(Node(url.addresses[0], options))
        case "sentinel":
            return Sentinels(url, options, timeout / 2)
        case "cluster":
            return Cluster(url.addresses, options)


class OneServer:
    """A server at a fixed address, apart from DNS."""

    def __init__(self, node: Node) -> None:
        """Create servers over this one."""
        self._node = node

    def together(self, keys: Sequence[str]) -> list[list[str]]:
        """Return all keys as one group."""
        return [list(keys)]

    async def run(self, commands: Sequence[KeyedCommand]) -> list[object]:
        """Send the commands in one round trip."""
        return await self._node.run(command.words for command in commands)

    async def reset(self) -> None:
        """Drop idle connections."""
        await self._node.drop_idle()

    async def close(self) -> None:
        """Close all connections."""
        await self._node.close()


class Sentinels:
    """The master with a name, from the first Sentinel that knows it. All are asked concurrently."""

    def __init__(self, url: RedisUrl, options: Mapping[str, Any], timeout: float) -> None:
        """Create the servers. `timeout` is for a check if the master has changed, in seconds."""
        self._name = url.master
        sentinel_options = {**options, "db": 0, "username": url.sentinel_username, "password": url.sentinel_password}
        self._sentinels = [Node(address, sentinel_options) for address in url.addresses]
        self._nodes = _Nodes(options)
        self._master: Node | None = None
        self._finding = asyncio.Lock()
        self._look_again = 0.0
        self._timeout = timeout

    def together(self, keys: Sequence[str]) -> list[list[str]]:
        """Return all keys as one group."""
        return [list(keys)]

    async def run(self, commands: Sequence[KeyedCommand]) -> list[object]:
        """Send the commands to the master."""
        overdue = asyncio.get_running_loop().time() >= self._look_again
        if self._master is not None and overdue and not self._finding.locked():
            await self._look()
        master = self._master or await self._find()
        return await master.run(command.words for command in commands)

    async def reset(self) -> None:
        """Forget the master, and drop idle connections."""
        self._master = None
        await self._nodes.drop_idle()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(self._nodes.close(), *(sentinel.close() for sentinel in self._sentinels))

    async def _find(self) -> Node:
        async with self._finding:
            if self._master is None:
                self._master = await self._ask_for_master()
            return self._master

    async def _look(self) -> None:
        """Check if the master has changed. Without a response in time it has not."""
        async with self._finding:
            with suppress(*OUTAGE):
                async with within(self._timeout):
                    self._master = await self._ask_for_master()

    async def _ask_for_master(self) -> Node:
        self._look_again = asyncio.get_running_loop().time() + LOOK_AGAIN_SECONDS
        return self._nodes.at(await _first([self._named_by(sentinel) for sentinel in self._sentinels]))

    async def _named_by(self, sentinel: Node) -> Address:
        reply = await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        match reply:
            case [bytes(host), bytes(port)]:
                return host.decode(), int(port)
            case _:
                raise ServerNotFoundError(f"no Sentinel knows a master {self._name!r}")


class Cluster:
    """A Redis Cluster. All known nodes are asked for the owners of slots, and redirections correct them."""

    def __init__(self, seeds: Sequence[Address], options: Mapping[str, Any]) -> None:
        """Create a cluster with these known nodes."""
        self._seeds = seeds
        self._nodes = _Nodes(options)
        self._owners: list[Address | None] = []
        self._finding = asyncio.Lock()

    def together(self, keys: Sequence[str]) -> list[list[str]]:
        """Return the keys grouped by slot."""
        slots: dict[int, list[str]] = {}
        for key in keys:
            slots.setdefault(_slot(key), []).append(key)
        return list(slots.values())

    async def run(self, commands: Sequence[KeyedCommand]) -> list[object]:
        """Send each command to its node, and follow redirections."""
        owners = self._owners or await self._find()
        replies: list[object] = [None] * len(commands)
        errands = [_Errand(i, c.words, _owner(owners, _slot(c.key))) for i, c in enumerate(commands)]
        for _ in range(MAX_REDIRECTS + 1):
            if not errands:
                break
            for errand, reply in await self._execute(errands):
                replies[errand.index] = reply
            errands = [
                redirected for e in errands if (redirected := self._redirection_of(e, replies[e.index])) is not None
            ]
        return replies

    async def reset(self) -> None:
        """Forget the owners of slots, and drop idle connections."""
        self._owners = []
        await self._nodes.drop_idle()

    async def close(self) -> None:
        """Close all connections."""
        await self._nodes.close()

    async def _execute(self, errands: Sequence[_Errand]) -> list[tuple[_Errand, object]]:
        by_node: dict[Address, list[_Errand]] = {}
        for errand in errands:
            by_node.setdefault(errand.to, []).append(errand)
        outcomes = await asyncio.gather(
            *(_at_node(self._nodes.at(address), node_errands) for address, node_errands in by_node.items()),
            return_exceptions=True,
        )
        done: list[tuple[_Errand, object]] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            done += outcome
        return done

    def _redirection_of(self, errand: _Errand, reply: object) -> _Errand | None:
        """Return the command for the node that a redirection names; None without one. Only MOVED is remembered."""
        match reply:
            case MovedError():
                to = (reply.host or errand.to[0], reply.port)
                if self._owners:
                    self._owners[reply.slot_id] = to
                return _Errand(errand.index, errand.words, to)
            case AskError():
                return _Errand(errand.index, errand.words, (reply.host or errand.to[0], reply.port), asking=True)
            case _:
                return None

    async def _find(self) -> list[Address | None]:
        async with self._finding:
            if not self._owners:
                self._owners = await _first([self._described_by(self._nodes.at(seed)) for seed in self._known_nodes()])
            return self._owners

    def _known_nodes(self) -> list[Address]:
        """Return the configured and the discovered nodes, so that the configured ones may disappear."""
        return list(dict.fromkeys([*self._seeds, *self._nodes.addresses()]))

    async def _described_by(self, node: Node) -> list[Address | None]:
        return _owners(await node.ask("CLUSTER", "SLOTS"), node.address[0])


@dataclass(frozen=True, slots=True)
class _Errand:
    """A command in flight: its index among the commands, and its node."""

    index: int
    words: Words
    to: Address
    asking: bool = False


class _Nodes:
    """The discovered servers. An address that is gone costs an empty pool."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._nodes: dict[Address, Node] = {}

    def at(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = Node(address, self._options)
        return self._nodes[address]

    def addresses(self) -> list[Address]:
        return list(self._nodes)

    async def drop_idle(self) -> None:
        await asyncio.gather(*(node.drop_idle() for node in self._nodes.values()))

    async def close(self) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


async def _first(asks: Sequence[Awaitable[T]]) -> T:
    """Return the first successful result, or raise the last error. All run concurrently, since any may be frozen."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    failure: BaseException | None = None
    try:
        for task in asyncio.as_completed(tasks):
            try:
                return await task
            except OUTAGE as error:
                failure = error
        raise ServerNotFoundError(str(failure)) from failure
    finally:
        for pending in tasks:
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _at_node(node: Node, errands: Sequence[_Errand]) -> list[tuple[_Errand, object]]:
    words: list[Words] = []
    for errand in errands:
        if errand.asking:
            words.append(("ASKING",))
        words.append(errand.words)
    replies = iter(await node.run(words))
    done: list[tuple[_Errand, object]] = []
    for errand in errands:
        if errand.asking:
            next(replies)
        done.append((errand, next(replies)))
    return done


def _slot(key: str) -> int:
    slot: int = key_slot(key.encode())
    return slot


def _owner(owners: Sequence[Address | None], slot: int) -> Address:
    address = owners[slot]
    if address is None:
        raise ServerNotFoundError(f"no node of the cluster serves slot {slot}")
    return address


def _owners(reply: object, used_host: str) -> list[Address | None]:
    """Return the owner of each slot from the reply to CLUSTER SLOTS.

    A node that does not know its name has the address that was used.
    """
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for part in reply if isinstance(reply, list) else [None]:
        match part:
            case [int(first_slot), int(last_slot), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first_slot <= last_slot < len(owners)
            ):
                name = host.decode() if host and host != b"?" else used_host
                owners[first_slot : last_slot + 1] = [(name, port)] * (last_slot + 1 - first_slot)
            case _:
                raise ServerNotFoundError("the server is not a node of a cluster")
    return owners
