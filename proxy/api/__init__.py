"""What a request asks of providers, in the terms of their APIs: above HTTP. Of us: `proxy/gateway/identify.py`."""
