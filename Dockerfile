# One image for each cloud:
#   docker build --build-arg FEATURES=openstack --build-arg COMMIT=$(git rev-parse --short=12 HEAD) \
#     --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) -t cloud-controller-manager:v0.1.0-openstack .
# `cargo xtask image` builds the same without Docker: it runs deploy/image/root.sh and uses the last stage of this file.
ARG RUST=1.95
FROM rust:${RUST}-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates cmake g++ make
RUN cargo install --locked cargo-auditable@0.7.7 auditable2cdx@0.1.0
WORKDIR /source
COPY . .
ARG FEATURES=all-providers
ARG COMMIT=unknown
ARG SOURCE_DATE_EPOCH=0
RUN CCM_COMMIT=${COMMIT} deploy/image/root.sh "${FEATURES}" "$(dpkg --print-architecture)" /root-file-system
# Without this check, a provider that the linker left out would be noticed at the first start only.
RUN test -n "$(/root-file-system/bin/cloud-controller-manager --list-providers)"

FROM scratch
COPY --from=build /root-file-system/ /
# Memory of a burst of large answers is returned to the system afterwards. In a cluster of thousands of nodes this is half of the memory.
ENV MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072
USER 65532:65532
ENTRYPOINT ["/bin/cloud-controller-manager"]
ARG FEATURES=all-providers
ARG COMMIT=unknown
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cloud-controller-manager" \
      org.opencontainers.image.description="Connects a Kubernetes cluster to its cloud (${FEATURES})" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="v${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
