#!/usr/bin/env bash
# Kimi-K2.5 with its EAGLE-3 draft in BF16.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../../eagle3_jax.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../eagle3_jax.sh"

run_job "${DRAFT:-lightseekorg/kimi-k2.5-eagle3}"
