# The operator, and what it runs in pods: `holdfast bench`, `tune` (with numba, or its twin would take hours), `activate`
# and `emulate`. docker build -t REGISTRY/holdfast:0.1.0 .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md constraints.txt ./
COPY operator operator
RUN python -m venv /opt/holdfast \
 && /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[tune]' \
 && /opt/holdfast/bin/pip uninstall --yes pip setuptools

FROM python:3.11-slim
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["holdfast"]
