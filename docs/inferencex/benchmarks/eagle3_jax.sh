# shellcheck shell=bash
# What the launchers in single_node/fixed_seq_len share: eagle3-serve under InferenceX's own benchmark.
# They lie where InferenceX looks for them, so this folder can be copied over a checkout of it; from
# elsewhere INFERENCEX names the checkout, whose benchmark_lib.sh and client they use.

INFERENCEX="${INFERENCEX:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
RESULT_DIR="${RESULT_DIR:-/workspace}"
export EVAL_ONLY="${EVAL_ONLY:-false}" RUN_EVAL="${RUN_EVAL:-false}"

# shellcheck source=/dev/null
source "$INFERENCEX/benchmarks/benchmark_lib.sh"

# Prints the directory of a checkpoint: itself, or the one that a name of the hub is downloaded into.
checkpoint() {
    if [[ -d "$1" ]]; then
        printf '%s\n' "$1"
    else
        hf download --quiet "$1"
    fi
}

# Prints the value of --speculative-config for a draft: k is NUM_SPECULATIVE_TOKENS, 3 by default.
# With SYNTHETIC_ACCEPTANCE_LENGTH as many tokens a round are accepted whatever the draft says.
speculative_config() {
    local synthetic=""
    if [[ -n "${SYNTHETIC_ACCEPTANCE_LENGTH:-}" ]]; then
        if [[ "$RUN_EVAL" == true || "$EVAL_ONLY" == true ]]; then
            echo "Error: answers of synthetic acceptance are not the model's: no evaluation" >&2
            return 1
        fi
        synthetic=", \"rejection_sample_method\": \"synthetic\""
        synthetic+=", \"synthetic_acceptance_length\": $SYNTHETIC_ACCEPTANCE_LENGTH"
    fi
    printf '{"model": "%s", "method": "eagle3", "num_speculative_tokens": %s%s}\n' \
        "$1" "${NUM_SPECULATIVE_TOKENS:-3}" "$synthetic"
}

# run_job DRAFT|none: serves MODEL, measures it as the job says, and evaluates it when asked to.
run_job() {
    check_env_vars MODEL TP EP_SIZE CONC ISL OSL MAX_MODEL_LEN RANDOM_RANGE_RATIO RESULT_FILENAME
    local directory serve client=()
    directory=$(checkpoint "$MODEL")
    if [[ "$EVAL_ONLY" == true ]]; then
        setup_eval_context
        MAX_MODEL_LEN="$EVAL_MAX_MODEL_LEN"
    fi
    serve=(eagle3-serve "$directory" --served-model-name "$MODEL" --port "$PORT")
    serve+=(--tensor-parallel-size "$TP" --max-model-len "$MAX_MODEL_LEN")
    serve+=(--max-num-seqs "$CONC" --no-enable-prefix-caching)
    case "$EP_SIZE" in
        0 | 1) ;;
        "$TP") serve+=(--enable-expert-parallel) ;;
        *) echo "Error: whole experts lie on all devices: EP_SIZE must be 1 or TP=$TP" >&2; return 1 ;;
    esac
    if [[ "$1" != none ]]; then
        local draft config
        draft=$(checkpoint "$1")
        config=$(speculative_config "$draft")
        serve+=(--speculative-config "$config")
        # Drafts have seen chats only: without the template they are judged on text they don't know.
        client+=(--use-chat-template)
    fi

    mkdir -p "$RESULT_DIR"
    start_gpu_monitor
    "${serve[@]}" > "$RESULT_DIR/server.log" 2>&1 &
    SERVER_PID=$!
    trap 'kill "$SERVER_PID" 2> /dev/null || true' EXIT
    wait_for_server_ready --port "$PORT" --server-log "$RESULT_DIR/server.log" --server-pid "$SERVER_PID"

    run_benchmark_serving --model "$MODEL" --tokenizer "$directory" --port "$PORT" --backend vllm \
        --input-len "$ISL" --output-len "$OSL" --random-range-ratio "$RANDOM_RANGE_RATIO" \
        --num-prompts "$((CONC * 10))" --max-concurrency "$CONC" \
        --result-filename "$RESULT_FILENAME" --result-dir "$RESULT_DIR" \
        --bench-serving-dir "$INFERENCEX" "${client[@]}"
    if [[ "$RUN_EVAL" == true || "$EVAL_ONLY" == true ]]; then
        run_eval --framework lm-eval --port "$PORT"
        append_lm_eval_summary
    fi
    stop_gpu_monitor
}
