# What Airflow's scheduler, triggerer, workers and API server run in: Airflow, and airflow-elastic for Kubernetes and S3.
# `make image-airflow` builds it; docs/how-to/build-images.md has the rest.

# An image with Airflow 3.3 or later, which stays as it is; or one with merely Python 3.11 to 3.14 and its venv, which
# gets Airflow as requirements/airflow.txt has it, in the places where apache/airflow has its own.
ARG BASE=apache/airflow:3.3.2-python3.12
FROM ${BASE}

# The base's own, or the one to be made.
ARG USER_ID=50000
USER root
RUN command -v airflow || { \
        useradd --no-log-init --non-unique --uid "${USER_ID}" --gid 0 --create-home airflow \
        && install --directory --owner "${USER_ID}" --group 0 --mode 775 /opt/airflow; \
    }
USER ${USER_ID}
ENV AIRFLOW_HOME=/opt/airflow PATH=/home/airflow/.local/bin:$PATH
WORKDIR /opt/airflow
RUN --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    command -v airflow || { \
        python3 -m venv /home/airflow/.local \
        && pip install --no-cache-dir -r /requirements/airflow.txt; \
    }

# Airflow's own version is named, so that nothing can move it.
RUN --mount=type=bind,source=dist,target=/dist \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    airflow="$(python -c 'from importlib.metadata import version; print(version("apache-airflow"))')" \
    && pip install --no-cache-dir "apache-airflow==$airflow" "$(echo /dist/*.whl)[airflow,aws]"

LABEL org.opencontainers.image.title="airflow-elastic" \
      org.opencontainers.image.description="Apache Airflow with airflow-elastic" \
      org.opencontainers.image.licenses="Apache-2.0"
