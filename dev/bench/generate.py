#!/usr/bin/env python3
"""Speed of generation beside transformers' generate: greedy, bf16, random weights, on the GPU of this machine.

    make build/generate_speed && python dev/bench/generate.py [--output dev/bench/<gpu>/generate.csv] [--only-ours]

Cost: 3 minutes, most of them torch.compile's; 8 GB of GPU memory. Needs PyTorch with CUDA and transformers; without
them, or with --only-ours, the rows of flashgpt alone. Rows: who, model, batch, tokens of the prompt, new tokens,
tokens/s of the median and of the best round, milliseconds to the first token, microseconds a step.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import time

SIZES = {"d12": (12, 12, 768), "d48": (48, 25, 1600)}
CASES = [("d12", 1), ("d12", 64), ("d48", 1)]
FIELDS = "who,model,batch,prompt,new,tokens_per_s,best_tokens_per_s,first_token_ms,step_us"


def say(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def machine():
    query = say(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines()[0]
    name, driver = [x.strip() for x in query.split(",")]
    release = say([os.environ.get("NVCC", "nvcc"), "--version"]).split("release ")[1].split(",")[0]
    commit = say(["git", "describe", "--always", "--dirty"])
    return {"gpu": name, "driver": driver, "cuda": release, "date": str(datetime.date.today()), "commit": commit}


def timed(generate, prompt, new, rounds):
    """Seconds of generating `new` tokens, one number a round."""
    import torch

    seconds = []
    for i in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = generate(prompt, new)
        torch.cuda.synchronize()
        if i > 0:
            seconds.append(time.perf_counter() - start)
        assert out.shape[1] == prompt.shape[1] + new
    return seconds


def transformers_rows(model_name, batch, prompt_tokens, new, rounds):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, channels = SIZES[model_name]
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(0, config.vocab_size, (batch, prompt_tokens), device="cuda")
    for who in ("transformers", "transformers compiled"):
        settings = {"cache_implementation": "static"} if who != "transformers" else {}
        if settings:
            model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

        def generate(ids, count, settings=settings):
            with torch.inference_mode():
                return model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=count,
                    min_new_tokens=count,
                    do_sample=False,
                    pad_token_id=0,
                    **settings,
                )

        whole, first = timed(generate, prompt, new, rounds), timed(generate, prompt, 1, rounds)
        seconds, begin, tokens = statistics.median(whole), statistics.median(first), batch * new
        yield (
            f"{who},{model_name},{batch},{prompt_tokens},{new},{tokens / seconds:.1f},{tokens / min(whole):.1f},"
            f"{1e3 * begin:.3f},{1e6 * (seconds - begin) / (new - 1):.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="the CSV; default: dev/bench/<gpu>/generate.csv")
    parser.add_argument("--program", default="build/generate_speed")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-ours", action="store_true")
    args = parser.parse_args()
    if not os.path.exists(args.program):
        sys.exit(f"error: no {args.program}; run make {args.program}")
    about = machine()
    rows = []
    for model, batch in CASES:
        command = [args.program, model, str(batch), str(args.prompt), str(args.new), str(args.rounds)]
        rows.append(say(command))
        print(rows[-1], flush=True)
        if args.only_ours:
            continue
        try:
            for row in transformers_rows(model, batch, args.prompt, args.new, args.rounds):
                rows.append(row)
                print(row, flush=True)
        except ImportError as error:
            print(f"transformers: skipped, {error}", file=sys.stderr)
    output = args.output or f"dev/bench/{about['gpu'].lower().replace(' ', '-')}/generate.csv"
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    with open(output, "w", encoding="utf-8") as file:
        file.write(FIELDS + "," + ",".join(about) + "\n")
        for row in rows:
            file.write(row + "," + ",".join(about.values()) + "\n")
    print(f"written: {output}")


if __name__ == "__main__":
    main()
