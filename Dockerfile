# One image for each cloud: docker build --build-arg FEATURES=openstack -t cloud-controller-manager:v0.1.0-openstack .
ARG RUST=1.95
FROM rust:${RUST}-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends cmake g++ make
WORKDIR /source
COPY . .
ARG FEATURES=all-providers
# The linker's short form of relocations (glibc 2.36 or newer) is half a megabyte less to read at the start.
RUN cargo rustc --release --locked --features "${FEATURES}" --bin cloud-controller-manager \
    -- -C link-arg=-Wl,-z,pack-relative-relocs \
 && cp target/release/cloud-controller-manager /

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /cloud-controller-manager /bin/cloud-controller-manager
# A provider that the linker left out would be missed at the first start only.
RUN test -n "$(/bin/cloud-controller-manager --list-providers)"
# What a burst of large answers took is given back when it is over: in a cluster of thousands of nodes this is half of the memory.
ENV MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072
USER 65532:65532
ENTRYPOINT ["/bin/cloud-controller-manager"]
