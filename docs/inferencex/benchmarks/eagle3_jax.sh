# shellcheck shell=bash
# Functions of the launchers in single_node/fixed_seq_len: InferenceX's benchmark of eagle3-serve.
# Copy this folder over an InferenceX checkout, which expects launchers at these paths, or set
# INFERENCEX to a checkout. The launchers use its benchmark_lib.sh and client.

INFERENCEX="${INFERENCEX:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
RESULT_DIR="${RESULT_DIR:-/workspace}"
export EVAL_ONLY="${EVAL_ONLY:-false}" RUN_EVAL="${RUN_EVAL:-false}"

# shellcheck source=/dev/null
source "$INFERENCEX/benchmarks/benchmark_lib.sh"

# Prints a checkpoint's directory, after downloading it if the argument is a hub id.
checkpoint() {
    if [[ -d "$1" ]]; then
        printf '%s\n' "$1"
    else
        hf download --quiet "$1"
    fi
}

# Prints the value of --speculative-config for a draft: k is NUM_SPECULATIVE_TOKENS, 3 by default.
# With SYNTHETIC_ACCEPTANCE_LENGTH a round accepts that many tokens, whatever the draft proposes.
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

# run_job DRAFT|none: serves MODEL, runs the job's benchmark, and evaluates MODEL if requested.
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
        # Drafts are trained on chats: without the template the text is unfamiliar to them.
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
