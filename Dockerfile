# One image for every role: `octavo bookie …`, `octavo broker …`. docker-compose.yml shows both.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY bookie bookie
COPY client client
COPY metadata metadata
COPY proto proto
COPY serving serving
COPY spark spark
# The links of src/octavo point at the folders above; chaos is not shipped.
RUN mkdir chaos && touch chaos/__init__.py \
 && pip wheel --no-cache-dir --wheel-dir /wheels ".[server,otel-broker]"

FROM python:3.11-slim
# The container's own folder is never an import path (see docs/adr/0001).
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "octavo[server,otel-broker]" \
 && useradd --system --create-home octavo \
 && mkdir /data && chown octavo /data
USER octavo
VOLUME /data
ENTRYPOINT ["octavo"]
CMD ["--help"]
