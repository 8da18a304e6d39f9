# Only the program: no shell, no user except `nonroot`, and only the volume is writable. The build context has a folder for
# each architecture with the contents of its `linux-musl` archive; completions and man pages have no use here.
#
#   docker run --rm --read-only --volume greenroom:/data ghcr.io/OWNER/greenroom run /scenarios/prisoners-dilemma.yaml --out /data/run
FROM gcr.io/distroless/static-debian12:nonroot
ARG TARGETARCH
COPY ${TARGETARCH}/greenroom /usr/local/bin/greenroom
COPY ${TARGETARCH}/scenarios /scenarios
ENV XDG_CACHE_HOME=/data/cache
VOLUME /data
WORKDIR /data
ENTRYPOINT ["/usr/local/bin/greenroom"]
