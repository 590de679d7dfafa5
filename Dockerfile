# Both commands of the README, in a container:
#
#     docker build -t flashgpt . && docker run --rm flashgpt                                  # on the CPU
#     docker build -t flashgpt --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 . && docker run --rm --gpus all flashgpt
#
# Programs are compiled when the container runs, for the processor and the GPU that it runs on. Without a network at that
# time, give the text: docker run --rm --network none -v /folder/with/input.txt:/text:ro -e DATA_MIRROR=/text flashgpt
ARG BASE=debian:12-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates gcc g++ libc6-dev make python3 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home flashgpt
COPY --chown=flashgpt . /home/flashgpt/flashgpt
USER flashgpt
WORKDIR /home/flashgpt/flashgpt
CMD ["sh", "-c", "./scripts/quickstart.sh && make test"]
