# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
WORKDIR /app
COPY requirements-image.lock pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r requirements-image.lock
COPY policies policies
COPY proxy proxy
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12-slim
LABEL org.opencontainers.image.title="Concertina" \
      org.opencontainers.image.description="A reverse proxy for OpenAI's and Anthropic's APIs that keeps long conversations inside the model's context window" \
      org.opencontainers.image.licenses="MIT"
# Any other user of group 0 may run it too, as OpenShift has it: all that is written lies in /data and /tmp.
RUN useradd --system --uid 10001 --gid 0 --no-create-home --home-dir /data concertina \
 && install -d -o 10001 -g 0 -m 0770 /data
COPY --from=build /opt/venv /opt/venv
COPY config.yaml /etc/concertina/config.yaml
# Front ends look at /readyz for CONCERTINA_DRAIN_DELAY before no connection is accepted any more.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CONCERTINA_CONFIG=/etc/concertina/config.yaml \
    CONCERTINA_DRAIN_DELAY=5s
# The default store is a file below the working directory.
WORKDIR /data
USER 10001
EXPOSE 8795
HEALTHCHECK --interval=10s --timeout=4s --start-period=10s CMD ["concertina", "healthcheck"]
STOPSIGNAL SIGTERM
# No tini: as the first process it takes signals by itself, waits for the workers that it forks, and starts nothing else.
ENTRYPOINT ["concertina"]
CMD ["serve", "--host", "0.0.0.0"]
