#!/usr/bin/env bash
# Kimi-K2.5 without a draft.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../../eagle3_jax.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../eagle3_jax.sh"

run_job none
