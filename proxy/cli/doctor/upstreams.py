"""Checks of upstreams: connection, key, summarizer models and clock."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from policies.record.prompting import Prompt
from proxy.callers.api_headers import credential
from proxy.callers.api_paths import is_deployment, resource_url
from proxy.cli.doctor.finding import Finding, ok, warning, wrong
from proxy.config.settings import DEFAULT, Config, Upstream
from proxy.dialects import table
from proxy.errors import ProxyError
from proxy.runtime.deadlines import within
from proxy.server.headers import HOP, Headers
from proxy.upstreams.http import TruncatedError, UpstreamClient, UpstreamResponse

_SECONDS = 15.0
_MOST_BYTES = 8 * 1024 * 1024
# Clocks that differ by more are wrong. Network latency does not explain it.
_MOST_APART = 60.0
_HEADERS: Headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), (HOP, b"1")]
_PROMPT = Prompt("Answer with one word.", "Hello.")


class _ListedModel(msgspec.Struct):
    id: str = ""


class _ModelList(msgspec.Struct):
    data: list[_ListedModel] = []


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    """The result of asking an upstream for its models.

    models: that it lists; None if it lists none. apart: seconds that its clock is ahead of this one; None if unknown.
    egress: the finding for the proxy to it; None if there is nothing to report.
    """

    finding: Finding
    models: frozenset[str] | None = None
    apart: float | None = None
    egress: Finding | None = None

    @property
    def findings(self) -> list[Finding]:
        """Return the finding for the proxy, if any, and the upstream's."""
        return [self.finding] if self.egress is None else [self.egress, self.finding]

    @property
    def is_wrong(self) -> bool:
        """Return True if the upstream cannot be used."""
        return self.finding.state == "wrong"


@dataclass(frozen=True, slots=True)
class _ModelsResponse:
    status: int
    body: bytes
    seconds: float
    apart: float | None


async def check_upstreams(config: Config) -> dict[str, UpstreamCheck]:
    """Check all upstreams concurrently, and return the results by name."""
    async with UpstreamClient(env=os.environ) as client:
        results = await asyncio.gather(
            *(_look(client, name, each, _key(config, each)) for name, each in config.upstreams.items())
        )
    return dict(zip(config.upstreams, results, strict=True))


async def _look(client: UpstreamClient, name: str, upstream: Upstream, key: str) -> UpstreamCheck:
    about = f"upstreams.{name}"
    # litellm sends its own requests. Any response proves that the upstream is reachable.
    plain = upstream.model_copy(update={"provider": "openai"})
    try:
        response = await _ask_upstream(client, plain, "GET", resource_url(upstream.base_url, ("models",)), key, None)
    except _NoResponseError as error:
        egress = _egress(f"{about}.proxy", upstream, error)
        if error.is_of_proxy:
            return UpstreamCheck(
                wrong(about, f"{upstream.base_url} is unreachable", f"see {about}.proxy"), egress=egress
            )
        return UpstreamCheck(wrong(about, f"{upstream.base_url}: {error.problem}", error.way_out), egress=egress)
    models = _model_names(response.body) if response.status == 200 else None
    judged = _finding_of_response(about, upstream, response, models, has_key=bool(key))
    return UpstreamCheck(judged, models, response.apart, _egress(f"{about}.proxy", upstream, None))


def _egress(about: str, upstream: Upstream, error: "_NoResponseError | None") -> Finding | None:
    """Return a finding for the proxy to an upstream: the setting that chose it, and if it answers.

    error: of the request through the proxy; None if it succeeded.
    """
    egress = upstream.egress(os.environ)
    if egress.proxy is None:
        return ok(about, f"none ({egress.source})") if egress.source else None
    proxy_text = f"{egress.proxy.without_credentials} ({egress.source})"
    if error is None:
        return ok(about, f"{proxy_text} answers")
    if error.is_of_proxy:
        return wrong(about, f"{proxy_text}: {error.problem}", error.way_out)
    return warning(about, f"{proxy_text} led to no response", f"see {about.removesuffix('.proxy')}")


def _finding_of_response(
    about: str, upstream: Upstream, response: _ModelsResponse, models: frozenset[str] | None, *, has_key: bool
) -> Finding:
    status, text = response.status, f"{upstream.base_url} answers in {response.seconds:.2f} s"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED:
        return wrong(about, f"{text} with {status}", "check the server itself; the connection works")
    if upstream.provider == "litellm":
        return ok(about, f"{text}; litellm's own requests were not tried")
    if status in (401, 403) and has_key:
        return wrong(about, f"{text} and refuses its key ({status})", f"set {about}.api_key to a valid key")
    if status in (401, 403):
        return ok(about, f"{text} and requires a key, which clients must send")
    if status == 404 and is_deployment(upstream.base_url):
        return ok(about, f"{text}; its deployment was not requested")
    if status == 200 and models is not None:
        return ok(about, f"{text} and lists {len(models)} models")
    return warning(
        about, f"{text} but lists no models ({status})", "its base_url must end before /models, usually with /v1"
    )


def clock(checked: Mapping[str, UpstreamCheck]) -> Iterator[Finding]:
    """Compare the clock with the nearest upstream's. Yield nothing if no upstream sent its time."""
    clocks = [(abs(each.apart), name) for name, each in checked.items() if each.apart is not None]
    if not clocks:
        return
    apart, name = min(clocks)
    if apart > _MOST_APART:
        yield warning(
            "clock",
            f"{apart:.0f} s from that of {name}",
            "synchronize it, for example by NTP: stored values expire by it",
        )
    else:
        yield ok("clock", f"agrees with that of {name}")


def summarizers(config: Config, checked: Mapping[str, UpstreamCheck]) -> Iterator[Finding]:
    """Yield findings for the summarizers of the policies that tenants use."""
    used = dict.fromkeys(name for tenant in config.tenants.values() for name in (tenant.policy, *tenant.policies))
    for name in used:
        about, settings = f"policies.{name}.summarizer", config.policies[name].summarizer
        model, upstream = settings.model, settings.upstream
        if model is None:
            yield ok(about, "the request's own model")
        elif upstream is None:
            yield ok(about, f"{model}, at the request's own upstream")
        elif checked[upstream].is_wrong:
            yield wrong(about, f"{model} is unreachable at {upstream}", f"see upstreams.{upstream}")
        elif model not in (checked[upstream].models or {model}):
            yield warning(about, f"{upstream} does not list {model}", f"choose one of its models for {about}.model")
        else:
            yield ok(about, f"{model} at {upstream}")


async def spend_token(config: Config, model: str) -> Finding:
    """Send one request for one token of this model, and return a finding."""
    about = "spend"
    speaker = next(filter(None, (config.speaker_for(DEFAULT, model, name) for name in table.names())), None)
    if speaker is None:
        return wrong(about, f"no upstream accepts chats for {model}", "see upstreams.*.speaks")
    name, upstream = speaker
    key = _key(config, upstream)
    if not key or upstream.provider == "litellm":
        return wrong(about, f"{name} has no key in this config", f"set upstreams.{name}.api_key")
    dialect = next(table.dialect_named(name) for name in table.names() if name in upstream.spoken)
    body = dialect.questions.ask(model, _PROMPT, (dialect.questions.OUTPUT_KEY, 1), None)
    url = resource_url(upstream.base_url, dialect.question_path(model))
    try:
        async with UpstreamClient(env=os.environ) as client:
            response = await _ask_upstream(client, upstream, "POST", url, key, body)
    except _NoResponseError as error:
        return wrong(about, f"{model} at {name}: {error.problem}", error.way_out)
    if response.status == 200:
        return ok(about, f"{model} at {name} answered in {response.seconds:.2f} s")
    return wrong(about, f"{name} answers {response.status} for {model}", "check its key, and the model's name")


class _NoResponseError(Exception):
    """A request got no response."""

    def __init__(self, problem: str, way_out: str, cause: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.way_out = way_out
        self.is_of_proxy = cause.startswith("proxy")


async def _ask_upstream(
    client: UpstreamClient, upstream: Upstream, method: str, url: str, key: str, body: bytes | None
) -> _ModelsResponse:
    headers = [*([credential(key, upstream.auth)] if key else []), *_HEADERS, *_protocol_headers(upstream)]
    if body is not None:
        headers.append((b"content-type", b"application/json"))
    began = time.monotonic()
    try:
        async with within(_SECONDS):
            response = await client.send(upstream, method, url, headers, body)
            seconds, apart = time.monotonic() - began, _apart(response)
            try:
                return _ModelsResponse(response.status, await response.read(_MOST_BYTES) or b"", seconds, apart)
            finally:
                response.close()
    except TimeoutError:
        raise _NoResponseError(
            f"no response within {_SECONDS:g} s", "check the server, and the network to it"
        ) from None
    except TruncatedError:
        raise _NoResponseError("its response broke off", "check the server, and the network to it") from None
    except ProxyError as error:
        problem, _, way_out = error.message.partition("; ")
        raise _NoResponseError(
            problem, way_out or "check its base_url, and the network to it", error.cause or ""
        ) from None


def _protocol_headers(upstream: Upstream) -> Headers:
    """Return the headers that requests need for the upstream's dialects, besides the key. The others ignore them."""
    return [header for name in upstream.spoken for header in table.dialect_named(name).questions.HEADERS]


def _key(config: Config, upstream: Upstream) -> str:
    return upstream.api_key.get_secret_value() or config.tenants[DEFAULT].api_key.get_secret_value()


def _apart(response: UpstreamResponse) -> float | None:
    date = response.header(b"date")
    try:
        return None if date is None else parsedate_to_datetime(date.decode("latin-1")).timestamp() - time.time()
    except ValueError:
        return None


def _model_names(body: bytes) -> frozenset[str] | None:
    try:
        return frozenset(model.id for model in msgspec.json.decode(body, type=_ModelList).data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
