"""HTTP/1.1 to upstreams, on asyncio's transports and httptools' parser: header blocks, responses, connection pools."""
