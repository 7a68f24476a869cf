"""Upstreams looked at: whether they are reached, take their key, know the models that summarize, and share our time."""

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
# Clocks that are further apart are wrong, and not only far away.
_MOST_APART = 60.0
_HEADERS: Headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), (HOP, b"1")]
_PROMPT = Prompt("Answer with one word.", "Hello.")


class _ListedModel(msgspec.Struct):
    id: str = ""


class _ModelList(msgspec.Struct):
    data: list[_ListedModel] = []


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of asking an upstream for its models.

    models: that it lists; None where it lists none. apart: seconds that its clock is ahead of ours; None if unknown.
    egress: what is to be said of the proxy before it; None where there is nothing.
    """

    finding: Finding
    models: frozenset[str] | None = None
    apart: float | None = None
    egress: Finding | None = None

    @property
    def findings(self) -> list[Finding]:
        return [self.finding] if self.egress is None else [self.egress, self.finding]

    @property
    def is_wrong(self) -> bool:
        return self.finding.state == "wrong"


@dataclass(frozen=True, slots=True)
class _ModelsAnswer:
    status: int
    body: bytes
    seconds: float
    apart: float | None


async def looked_at(config: Config) -> dict[str, Looked]:
    """Each upstream by its name, all asked at once."""
    async with UpstreamClient(env=os.environ) as client:
        found = await asyncio.gather(
            *(_look(client, name, each, _key(config, each)) for name, each in config.upstreams.items())
        )
    return dict(zip(config.upstreams, found, strict=True))


async def _look(client: UpstreamClient, name: str, upstream: Upstream, key: str) -> Looked:
    about = f"upstreams.{name}"
    # What litellm asks for is its own affair; that somebody answers can be seen without it.
    plain = upstream.model_copy(update={"provider": "openai"})
    try:
        answer = await _ask_upstream(client, plain, "GET", resource_url(upstream.base_url, ("models",)), key, None)
    except _NoAnswerError as error:
        egress = _egress(f"{about}.proxy", upstream, error)
        if error.is_of_proxy:
            return Looked(wrong(about, f"{upstream.base_url} is not reached", f"see {about}.proxy"), egress=egress)
        return Looked(wrong(about, f"{upstream.base_url}: {error.problem}", error.way_out), egress=egress)
    models = _model_names(answer.body) if answer.status == 200 else None
    judged = _finding_of_answer(about, upstream, answer, models, has_key=bool(key))
    return Looked(judged, models, answer.apart, _egress(f"{about}.proxy", upstream, None))


def _egress(about: str, upstream: Upstream, error: "_NoAnswerError | None") -> Finding | None:
    """Which proxy is used, who says so, and whether it answers: what it was asked for failed with this, or not."""
    egress = upstream.egress(os.environ)
    if egress.proxy is None:
        return ok(about, f"none ({egress.source})") if egress.source else None
    told = f"{egress.proxy.without_credentials} ({egress.source})"
    if error is None:
        return ok(about, f"{told} answers")
    if error.is_of_proxy:
        return wrong(about, f"{told}: {error.problem}", error.way_out)
    return warning(about, f"{told} led to no answer", f"see what is said of {about.removesuffix('.proxy')}")


def _finding_of_answer(
    about: str, upstream: Upstream, answer: _ModelsAnswer, models: frozenset[str] | None, *, has_key: bool
) -> Finding:
    status, told = answer.status, f"{upstream.base_url} answers in {answer.seconds:.2f} s"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED:
        return wrong(about, f"{told} with {status}", "look at the server itself; it was reached")
    if upstream.provider == "litellm":
        return ok(about, f"{told}; what litellm asks it for was not tried")
    if status in (401, 403) and has_key:
        return wrong(about, f"{told} and refuses its key ({status})", f"set {about}.api_key to one that it knows")
    if status in (401, 403):
        return ok(about, f"{told} and wants a key, which clients have to send")
    if status == 404 and is_deployment(upstream.base_url):
        return ok(about, f"{told}; what is deployed there was not asked for")
    if status == 200 and models is not None:
        return ok(about, f"{told} and lists {len(models)} models")
    return warning(
        about, f"{told} but lists no models ({status})", "its base_url has to end before /models, mostly with /v1"
    )


def clock(looked: Mapping[str, Looked]) -> Iterator[Finding]:
    """Our clock against the one that is nearest; nothing where no upstream has told its time."""
    told = [(abs(each.apart), name) for name, each in looked.items() if each.apart is not None]
    if not told:
        return
    apart, name = min(told)
    if apart > _MOST_APART:
        yield warning("clock", f"{apart:.0f} s from that of {name}", "set it, as by NTP: what is stored expires by it")
    else:
        yield ok("clock", f"agrees with that of {name}")


def summarizers(config: Config, looked: Mapping[str, Looked]) -> Iterator[Finding]:
    """Those of the policies that tenants use."""
    used = dict.fromkeys(name for tenant in config.tenants.values() for name in (tenant.policy, *tenant.policies))
    for name in used:
        about, settings = f"policies.{name}.summarizer", config.policies[name].summarizer
        model, upstream = settings.model, settings.upstream
        if model is None:
            yield ok(about, "the request's own model")
        elif upstream is None:
            yield ok(about, f"{model}, at the request's own upstream")
        elif looked[upstream].is_wrong:
            yield wrong(about, f"{model} cannot be asked at {upstream}", f"see upstreams.{upstream}")
        elif model not in (looked[upstream].models or {model}):
            yield warning(about, f"{upstream} does not list {model}", f"name one of its models in {about}.model")
        else:
            yield ok(about, f"{model} at {upstream}")


async def spent(config: Config, model: str) -> Finding:
    """One request for one token of this model."""
    about = "spend"
    found = next(filter(None, (config.speaker_for(DEFAULT, model, name) for name in table.names())), None)
    if found is None:
        return wrong(about, f"no upstream takes chats for {model}", "see upstreams.*.speaks")
    name, upstream = found
    key = _key(config, upstream)
    if not key or upstream.provider == "litellm":
        return wrong(about, f"{name} has no key of its own to ask with here", f"set upstreams.{name}.api_key")
    dialect = next(table.dialect_named(name) for name in table.names() if name in upstream.spoken)
    body = dialect.questions.ask(model, _PROMPT, (dialect.questions.OUTPUT_KEY, 1), None)
    url = resource_url(upstream.base_url, dialect.question_path(model))
    try:
        async with UpstreamClient(env=os.environ) as client:
            answer = await _ask_upstream(client, upstream, "POST", url, key, body)
    except _NoAnswerError as error:
        return wrong(about, f"{model} at {name}: {error.problem}", error.way_out)
    if answer.status == 200:
        return ok(about, f"{model} at {name} answered in {answer.seconds:.2f} s")
    return wrong(about, f"{name} answers {answer.status} for {model}", "look at its key, and at the model's name")


class _NoAnswerError(Exception):
    """There is no answer to a request of ours."""

    def __init__(self, problem: str, way_out: str, cause: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.way_out = way_out
        self.is_of_proxy = cause.startswith("proxy")


async def _ask_upstream(
    client: UpstreamClient, upstream: Upstream, method: str, url: str, key: str, body: bytes | None
) -> _ModelsAnswer:
    headers = [*([credential(key, upstream.auth)] if key else []), *_HEADERS, *_protocol_headers(upstream)]
    if body is not None:
        headers.append((b"content-type", b"application/json"))
    began = time.monotonic()
    try:
        async with within(_SECONDS):
            response = await client.send(upstream, method, url, headers, body)
            seconds, apart = time.monotonic() - began, _apart(response)
            try:
                return _ModelsAnswer(response.status, await response.read(_MOST_BYTES) or b"", seconds, apart)
            finally:
                response.close()
    except TimeoutError:
        raise _NoAnswerError(
            f"no answer within {_SECONDS:g} s", "look at the server, and at what lies between"
        ) from None
    except TruncatedError:
        raise _NoAnswerError("its answer broke off", "look at the server, and at what lies between") from None
    except ProxyError as error:
        problem, _, way_out = error.message.partition("; ")
        raise _NoAnswerError(
            problem, way_out or "look at its base_url, and at what lies between", error.cause or ""
        ) from None


def _protocol_headers(upstream: Upstream) -> Headers:
    """What requests need beside their key in any of its dialects; others do not mind."""
    return [header for name in upstream.spoken for header in table.dialect_named(name).questions.HEADERS]


def _key(config: Config, upstream: Upstream) -> str:
    return upstream.api_key.get_secret_value() or config.tenants[DEFAULT].api_key.get_secret_value()


def _apart(response: UpstreamResponse) -> float | None:
    told = response.header(b"date")
    try:
        return None if told is None else parsedate_to_datetime(told.decode("latin-1")).timestamp() - time.time()
    except ValueError:
        return None


def _model_names(body: bytes) -> frozenset[str] | None:
    try:
        return frozenset(model.id for model in msgspec.json.decode(body, type=_ModelList).data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
