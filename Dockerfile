# The centre or a site of a federation, from the wheel (docs/federation.md, "In a container"):
#   pip wheel --no-deps -w dist . && docker build -t fedstill .
FROM python:3.11-slim

# Where torch comes from: without a GPU the CPU's, which is a tenth as large.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --create-home --uid 10001 fedstill \
    && mkdir /work \
    && chown fedstill /work

COPY dist/fedstill-*.whl /tmp/dist/
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.6" \
    && pip install --no-cache-dir "$(echo /tmp/dist/fedstill-*.whl)[federation,privacy]" \
    && rm -r /tmp/dist

# Kits, rows and experiments are mounted at /work: nothing private is ever part of the image.
USER fedstill
WORKDIR /work
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["fedstill"]
CMD ["--help"]
