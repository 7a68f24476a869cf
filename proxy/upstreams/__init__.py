"""Where requests go: routes, the HTTP client, calls to summarizers, questions for models' windows."""
