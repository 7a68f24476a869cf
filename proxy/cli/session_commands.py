"""The commands of `concertina sessions`."""

import sys
from typing import Annotated

from cyclopts import App, Parameter

from proxy.cli.common import caller_of, err, fail, output
from proxy.cli.common import load_config as loaded_config
from proxy.cli.parameters import AsJson, ConfigPath, Flag
from proxy.config.settings import DEFAULT
from proxy.server.addresses import of_proxy

sessions = App(name="sessions", help="Stored conversations.")


@sessions.command(name="ls", help_epilogue="Example: concertina sessions ls --tenant acme")
def list_sessions(
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """List the stored conversations of a tenant, the last used first.

    :param tenant: Tenant whose conversations to list.
    :param as_json: Print them as JSON.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.sessions import list_sessions, no_sessions, other_tenants, show
    from proxy.cli.stored import NothingStoredError
    from proxy.sessions.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        with open_client(loaded, caller) as client:
            listed = list_sessions(client)
            if not listed:
                err(no_sessions(tenant, other_tenants(client, loaded.tenants)))
    except NothingStoredError as nothing:
        err(str(nothing))
        listed = []
    except (AdminError, StoreError) as error:
        fail(str(error))
    output(listed, show, as_json=as_json)


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
    """Show a stored conversation: its records, why each was made, and what it cost.

    :param name: Its label, its id, the beginning of its id, or ID:LABEL.
    :param record: Also print the text of the newest record.
    :param tenant: Tenant whose conversation it is.
    :param as_json: Print it as JSON.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.session_details import details, show
    from proxy.cli.sessions import find_session
    from proxy.sessions.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        with open_client(loaded, caller, reads_content=record) as client:
            shown = details(client, find_session(client, name), with_text=record)
    except (AdminError, StoreError) as error:
        fail(str(error))
    output(shown, show, as_json=as_json, indent=2)


@sessions.command(name="export", help_epilogue="Example: concertina sessions export deploy > deploy.jsonl")
def export_sessions(names: tuple[str, ...] = (), /, *, tenant: str = DEFAULT, config: ConfigPath = None) -> None:
    """Print everything that is stored of conversations, including record texts, as a line of JSON each.

    :param names: Labels, ids or beginnings of ids; default: all of the tenant.
    :param tenant: Tenant whose conversations these are.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.session_details import export
    from proxy.cli.sessions import find_sessions
    from proxy.sessions.stores import StoreError

    loaded = loaded_config(config)
    caller = caller_of(loaded, tenant)
    try:
        with open_client(loaded, caller, reads_content=True) as client:
            for session in find_sessions(client, names):
                sys.stdout.write(export(client, session).decode() + "\n")
    except (AdminError, StoreError) as error:
        fail(str(error))


@sessions.command(name="undo", help_epilogue="Example: concertina sessions undo deploy")
def undo_record(name: str, /, *, tenant: str = DEFAULT, config: ConfigPath = None) -> None:
    """Undo the newest record of a conversation for all replicas. Its next request uses the previous record.

    :param name: Its label, its id, the beginning of its id, or ID:LABEL.
    :param tenant: Tenant whose conversation it is.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.sessions import SHOWN, find_session, undo
    from proxy.sessions.stores import StoreError

    loaded = loaded_config(config)
    try:
        with open_client(loaded, caller_of(loaded, tenant), changes="undo") as client:
            undone = undo(client, find_session(client, name))
    except (AdminError, StoreError) as error:
        fail(str(error))
    following = f"record {undone.in_use[:SHOWN]}" if undone.in_use else "the whole history"
    sys.stdout.write(f"undid record {undone.undone[:SHOWN]}; the next request uses {following}\n")


@sessions.command(name="rm", help_epilogue="Example: concertina sessions rm deploy")
def erase_sessions(
    names: tuple[str, ...] = (),
    /,
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
) -> None:
    """Erase stored conversations for all replicas. They may continue, and are then summarized anew.

    :param names: Labels, ids, or at least the first eight digits of ids.
    :param tenant: Tenant whose conversations these are.
    :param every: Erase all of the tenant.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.running import as_running
    from proxy.cli.sessions import erase, erase_all
    from proxy.sessions.stores import StoreError

    loaded = loaded_config(config)
    url = of_proxy(as_running(loaded)) or "port 0"
    if every == bool(names):
        fail("name the sessions to erase, or use --all; `concertina sessions ls` lists them")
    caller = caller_of(loaded, tenant)
    try:
        with open_client(loaded, caller, changes="erase") as client:
            erased = {name: erase(client, name) for name in names} if names else {"": erase_all(client)}
    except AdminError as error:
        fail(str(error))
    except StoreError as error:
        fail(f"no proxy answers at {url}, and {error}")
    if client.url is None:
        err(f"no proxy answers at {url}; erased only in the store")
    unknown = [name for name in names if not erased[name]]
    for name in unknown:
        err(f"tenant {tenant} has no such session: {name}; `concertina sessions ls` lists them")
    ids = {id_ for erased_ids in erased.values() for id_ in erased_ids}
    sys.stdout.write(f"erased sessions of tenant {tenant}: {len(ids)}\n")
    sys.exit(1 if unknown else 0)
