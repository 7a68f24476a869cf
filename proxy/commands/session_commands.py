"""`concertina sessions`: its commands."""

import asyncio
import sys
from typing import Annotated

from cyclopts import App, Parameter

from proxy.commands.common import caller_of, err, fail, output
from proxy.commands.common import load_config as loaded_config
from proxy.commands.parameters import AsJson, ConfigPath, Flag
from proxy.config.settings import DEFAULT
from proxy.server.addresses import of_proxy

sessions = App(name="sessions", help="Conversations of which something is stored.")


@sessions.command(name="ls", help_epilogue="Example: concertina sessions ls --tenant acme")
def list_sessions(
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's conversations of which something is stored, the last used first.

    :param tenant: Tenant whose conversations to list.
    :param as_json: Print them as JSON.
    """
    from proxy.commands.sessions import NothingStoredError, list_sessions, other_tenants, show
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        found = asyncio.run(list_sessions(loaded, caller))
        if not found and (others := asyncio.run(other_tenants(loaded, caller))):
            err(f"tenant {tenant} has no sessions; --tenant names one that has: {', '.join(others)}")
    except NothingStoredError as nothing:
        err(str(nothing))
        found = []
    except StoreError as error:
        fail(str(error))
    output(found, show, as_json=as_json)


@sessions.command(name="show", help_epilogue="Example: concertina sessions show deploy --record")
def show_session(
    name: str,
    /,
    *,
    record: Flag = False,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Tell what the store has of a conversation: its records, why each was made, and what it cost. No proxy is asked.

    :param name: Its label, or its id or how that begins, or ID:LABEL.
    :param record: Print too what the newest record says.
    :param tenant: Tenant whose conversation it is.
    :param as_json: Print it as JSON.
    """
    from proxy.commands.session_details import details, exported_from, show
    from proxy.commands.sessions import one_of
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        session = asyncio.run(one_of(loaded, caller, name))
        (found,) = asyncio.run(exported_from(loaded, caller, [session]))
    except StoreError as error:
        fail(str(error))
    output(details(found, with_text=record), show, as_json=as_json, indent=2)


@sessions.command(name="export", help_epilogue="Example: concertina sessions export deploy > deploy.jsonl")
def export_sessions(names: tuple[str, ...] = (), /, *, tenant: str = DEFAULT, config: ConfigPath = None) -> None:
    """Print all that the store has of conversations, with what their records say, as a line of JSON each.

    :param names: Labels, or ids or how they begin; without any, all of the tenant.
    :param tenant: Tenant whose conversations these are.
    """
    from msgspec import json

    from proxy.commands.session_details import exported_from
    from proxy.commands.sessions import sessions_called
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        wanted = asyncio.run(sessions_called(loaded, caller, names))
        for one in asyncio.run(exported_from(loaded, caller, wanted)):
            sys.stdout.write(json.encode(one).decode() + "\n")
    except StoreError as error:
        fail(str(error))


@sessions.command(name="rm", help_epilogue="Example: concertina sessions rm deploy")
def erase_sessions(
    names: tuple[str, ...] = (),
    /,
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
) -> None:
    """Erase what is stored of conversations, for all replicas; conversations may go on and are summarized anew.

    :param names: Labels, or ids or their first eight digits or more.
    :param tenant: Tenant whose conversations these are.
    :param every: Erase all of the tenant.
    """
    from proxy.commands.running import NotDoneError, as_running
    from proxy.commands.sessions import erase
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    url = of_proxy(as_running(loaded)) or "port 0"
    if every == bool(names):
        fail("name the sessions to erase, or say --all; `concertina sessions ls` lists them")
    caller = caller_of(loaded, tenant)
    try:
        erased = erase(loaded, caller, names)
    except NotDoneError as error:
        fail(str(error))
    except StoreError as error:
        fail(f"no proxy answers at {url}, and {error}")
    if not erased.by_proxy:
        err(f"no proxy answers at {url}; erased in the store alone")
    for name in erased.unknown:
        err(f"tenant {tenant} has no such session: {name}; `concertina sessions ls` lists them")
    sys.stdout.write(f"erased {len(erased.ids)} of tenant {tenant}\n")
    sys.exit(1 if erased.unknown else 0)
