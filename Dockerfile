# CPU:  docker build -t reservoir --build-arg PIP_EXTRA_INDEX_URL=URL .   (URL: where the CPU builds of torch are)
# CUDA: docker build -t reservoir-cuda --build-arg BASE=pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime .
# Run:  docker run --rm -v "$PWD:/work" -v reservoir-cache:/cache reservoir extract digits      (CUDA: add --gpus all)
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG PIP_EXTRA_INDEX_URL
COPY . /src
RUN pip install --no-cache-dir /src && rm -r /src
ENV RESERVOIR_CACHE=/cache
WORKDIR /work
ENTRYPOINT ["reservoir"]
