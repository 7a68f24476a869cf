"""Pages, as stores and sessions yield them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Sequence

T = TypeVar("T")


async def page_of(*items: T) -> AsyncIterator[list[T]]:
    """Yield one page."""
    yield [*items]


async def items_of(pages: AsyncIterable[Sequence[T]]) -> list[T]:
    """Return the items of all pages."""
    return [item async for page in pages for item in page]
