# What workers run in: torch, CUDA's libraries, and airflow-elastic with its runtime. Never Airflow. Yours goes on top:
#
#     FROM airflow-elastic-trainer:0.1.0
#     COPY train.py /app/
#
# `make image-trainer` builds it; docs/how-to/build-images.md has the rest.

# Any Debian or Ubuntu. torch brings CUDA's libraries itself; what this one adds is the check of the node's driver.
ARG BASE=nvidia/cuda:13.2.1-base-ubuntu24.04
FROM ${BASE}

# The interpreter, 3.11 to 3.14, which is installed where the base has none, and what else is to be installed:
# "libibverbs1" for RDMA, "gcc libc6-dev python3-dev" for torch.compile.
ARG PYTHON=python3
ARG PACKAGES=""
USER root
RUN set -e; \
    packages="$("${PYTHON}" -c 'import ensurepip' 2>/dev/null || echo "${PYTHON}" "${PYTHON}-venv") ${PACKAGES}"; \
    if [ "$packages" != " " ]; then \
        apt-get update; \
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $packages; \
        rm -rf /var/lib/apt/lists/*; \
    fi

# What pip is to install, with hashes. A file of your own beside it may have another torch, and your packages.
ARG REQUIREMENTS=requirements/runtime.txt
ENV PATH=/opt/venv/bin:$PATH
RUN --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    "${PYTHON}" -m venv /opt/venv \
    && pip install --no-cache-dir -r "/${REQUIREMENTS}"
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl

# A number, as `runAsNonRoot` wants to see one.
ARG USER_ID=10001
RUN useradd --no-log-init --non-unique --uid "${USER_ID}" --create-home trainer
USER ${USER_ID}
WORKDIR /home/trainer

# Which GPUs is the cluster's to say; without this, a base that is not CUDA's would get none of the driver's libraries.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.title="airflow-elastic trainer" \
      org.opencontainers.image.description="PyTorch training that survives lost workers, driven by airflow-elastic" \
      org.opencontainers.image.licenses="Apache-2.0"
CMD ["python"]
