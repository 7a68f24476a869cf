"""`concertina sessions`: its commands."""

import asyncio
import sys
from typing import Annotated

from cyclopts import App, Parameter

from proxy.commands.common import caller_of, err, fail, output
from proxy.commands.common import loaded as loaded_config
from proxy.commands.parameters import AsJson, ConfigPath
from proxy.config.settings import DEFAULT
from proxy.server.addresses import of_proxy

sessions = App(name="sessions", help="Conversations of which something is stored.")


@sessions.command(name="ls")
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
    from proxy.commands.sessions import NothingStoredError, listed, show
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        found = asyncio.run(listed(loaded, caller))
    except NothingStoredError as nothing:
        err(str(nothing))
        found = []
    except StoreError as error:
        fail(str(error))
    output(found, show, as_json=as_json)


@sessions.command(name="rm")
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
    from proxy.commands.running import NotDoneError
    from proxy.commands.sessions import erase
    from proxy.stores import StoreError

    loaded = loaded_config(config)
    if every == bool(names):
        fail("name the sessions to erase, or say --all; `concertina sessions ls` lists them")
    caller = caller_of(loaded, tenant)
    try:
        erased = erase(loaded, caller, names)
    except NotDoneError as error:
        fail(str(error))
    except StoreError as error:
        fail(f"no proxy answers at {of_proxy(loaded) or 'port 0'}, and {error}")
    if not erased.by_proxy:
        err(f"no proxy answers at {of_proxy(loaded) or 'port 0'}; erased in the store alone")
    for name in erased.unknown:
        err(f"tenant {tenant} has no such session: {name}; `concertina sessions ls` lists them")
    sys.stdout.write(f"erased {len(erased.ids)} of tenant {tenant}\n")
    sys.exit(1 if erased.unknown else 0)
