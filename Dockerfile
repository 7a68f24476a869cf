# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
WORKDIR /app
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r requirements.lock
COPY policies policies
COPY proxy proxy
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /data concertina
COPY --from=build /opt/venv /opt/venv
COPY config.yaml /etc/concertina/config.yaml
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
# The default store is a file below the working directory.
WORKDIR /data
USER 10001
EXPOSE 8795
HEALTHCHECK --interval=10s --timeout=4s --start-period=10s CMD ["concertina", "healthcheck", "--config", "/etc/concertina/config.yaml"]
STOPSIGNAL SIGTERM
# Front ends look at /readyz that long before no connection is accepted any more.
ENV CONCERTINA_DRAIN_DELAY=5s
CMD ["concertina", "serve", "/etc/concertina/config.yaml", "--host", "0.0.0.0"]
