"""llama.cpp (xllamacpp) behind one line of JSON each way; runs in an environment of its own.

stdin: {"ids": [...], "n_predict": n, "cache": bool} or {"prompts": [[...], ...], "n_predict": n}
stdout: {"prompt_per_second": x, "predicted_per_second": y} or {"aggregate": tokens per second}
"""

import concurrent.futures
import itertools
import json
import os
import sys
import time

import xllamacpp


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints on stdout
    model, threads, context, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup = context, slots, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(json.dumps({"ready": True}), file=out, flush=True)

    def complete(ids: list[int], n_predict: int, cache: bool) -> dict[str, float]:
        request = {
            "prompt": ids,
            "n_predict": n_predict,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": cache,
        }
        answer = server.handle_completions(request)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        return answer["timings"]

    for line in sys.stdin:
        ask = json.loads(line)
        if "prompts" in ask:
            begun = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(len(ask["prompts"])) as pool:
                timings = list(
                    pool.map(
                        complete, ask["prompts"], itertools.repeat(ask["n_predict"]), itertools.repeat(True)
                    )
                )
            rates = [t["predicted_per_second"] for t in timings]
            reply = {"aggregate": sum(rates), "seconds": time.perf_counter() - begun}
        else:
            timings = complete(ask["ids"], ask["n_predict"], ask["cache"])
            reply = {key: timings[key] for key in ("prompt_n", "prompt_per_second", "predicted_per_second")}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
