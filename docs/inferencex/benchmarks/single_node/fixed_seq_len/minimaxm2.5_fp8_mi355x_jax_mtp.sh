#!/usr/bin/env bash
# MiniMax-M2.5 with an EAGLE-3 draft in BF16.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../../eagle3_jax.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../eagle3_jax.sh"

run_job "${DRAFT:-thoughtworks/MiniMax-M2.5-Eagle3}"
