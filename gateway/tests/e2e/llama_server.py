#!/usr/bin/env python3
"""A real llama.cpp server from the xllamacpp wheel, with the flags that a test needs, named as llama-server names them.

The wheel carries llama-server's own HTTP code but no command. One server per process: the library is not made for more. The port opens
after the model is loaded, so a connection that is accepted is a server that is ready. `-t 1`: on two busy cores two threads are slower.
"""
import argparse
import signal
import threading

import xllamacpp as x


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-m", required=True, help="GGUF file")
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("-a", default="model", help="alias: the model's name in answers")
    ap.add_argument("--api-key", action="append", default=[])
    ap.add_argument("-c", type=int, default=4096, help="context of all slots together, tokens")
    ap.add_argument("-np", type=int, default=2, help="slots")
    ap.add_argument("-t", type=int, default=1, help="threads")
    ap.add_argument("-b", type=int, default=2048, help="prefill batch, tokens")
    ap.add_argument("-ub", type=int, default=512, help="physical batch, tokens")
    ap.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings too")
    return ap.parse_args()


def parameters(a):
    p = x.CommonParams()
    p.model.path, p.model_alias = a.m, {a.a}
    p.hostnames, p.port, p.api_keys = ["127.0.0.1"], a.port, a.api_key
    p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = a.c, a.np, a.b, a.ub
    p.warmup = False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = a.t
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    if a.embeddings:
        p.embedding, p.pooling_type = True, x.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return p


def main():
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = x.Server(parameters(arguments()))
    print("ready", server.listening_address, flush=True)
    stop.wait()


if __name__ == "__main__":
    main()
