# The program alone: no shell, no user but `nonroot`, nothing to write to but the volume. Its context holds a folder for each
# architecture with what `.ci/package` put into an archive.
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
