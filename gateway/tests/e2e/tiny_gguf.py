#!/usr/bin/env python3
"""Make a tiny random-weight GGUF chat model that llama.cpp's server loads.

Standard library only; a file takes well under a second and about 1 MB.

    python3 tiny_gguf.py tiny.gguf                  # plain ChatML chat model
    python3 tiny_gguf.py think.gguf --think         # template that opens <think>
    python3 tiny_gguf.py slow.gguf --layers 8 --embd 512   # slower, 89 MB

What it is for: testing a gateway against the real engine. The text is
nonsense, but it is deterministic at temperature 0, depends on the whole prompt
(so that a lost or doubled token changes everything after it), is always valid
UTF-8, and does not end by itself unless --end is given: a request runs to its
max_tokens, which makes long streams easy to produce.

  --seed N     other weights: another "model"
  --name S     general.name, so that two files can be told apart
  --ctx N      training context written into the file (default 32768)
  --end P      let the model end its turn: larger P, earlier (2: after 5 to 40 words)
  --multi      let it say non-ASCII words too (characters of 2 to 4 bytes)
  --ragged     let it say words without the space before them, so that the text
               does not fall back into the tokens it was made of: the case where
               continuing from text is not exact and from token ids is
  --think      chat template in the style of thinking models: it opens <think>,
               and the model never closes it by itself, so send
               "reasoning_budget_tokens": N in the request, or give --close
  --close P    let it close its thinking: larger P, earlier (10: within a dozen words)
  --call P     let it open a <tool_call> (the engine's grammar then makes the
               call a valid one, when the request has tools): larger P, earlier (6)
  --no-tools   leave tool calls out of the chat template
  --decision   mark it as a decision model ("openjev" kind), so that the engine
               also answers POST /v1/systemone (llama.cpp builds that have it)
"""
import argparse
import array
import random
import struct

# ---- GGUF writing ---------------------------------------------------------
U32, I32, F32, BOOL, STR, ARR, U64 = 4, 5, 6, 7, 8, 9, 10


def s(x):
    b = x.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def value(t, v):
    if t == STR:
        return s(v)
    if t == BOOL:
        return struct.pack("<?", v)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", U64: "<Q"}[t], v)


def kv(key, t, v, of=None):
    if t == ARR:
        return s(key) + struct.pack("<IIQ", ARR, of, len(v)) + b"".join(value(of, x) for x in v)
    return s(key) + struct.pack("<I", t) + value(t, v)


def write_gguf(path, kvs, tensors):
    """tensors: list of (name, dims with the fastest first, array('f'))."""
    align = 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kvs)) + b"".join(kvs)
    off = 0
    for name, dims, data in tensors:
        head += s(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims)
        head += struct.pack("<IQ", 0, off)  # type 0: F32
        off += -(-len(data) * 4 // align) * align
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % align))
        for _, _, data in tensors:
            raw = data.tobytes()
            f.write(raw + b"\0" * (-len(raw) % align))


# ---- vocabulary: byte-level BPE as in GPT-2 --------------------------------
def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


WORDS = """the of and to in is you that it he was for on are as with his they at be this
have from or one had by word but not what all were we when your can said there use an each
which she do how their if will up other about out many then them these so some her would make
like him into time has look two more write go see number no way could people my than first
water been call who oil its now find long down day did get come made may part over new sound
take only little work know place year live me back give most very after thing our just name
good sentence man think say great where help through much before line right too mean old any
same tell boy follow came want show also around form three small set put end does another well
large must big even such because turn here why ask went men read need land different home us
move try kind hand picture again change off play spell air away animal house point page letter
mother answer found study still learn should world""".split()
MULTI = "über naïve café Привет мир 世界 こんにちは 한국 🙂 🚀 שלום".split()

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # written out, as Qwen does

CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
    "{{- '\\n</tools>\\nFor each call return <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}"
    "%(THINK_BACK)s"
    "{%- if m.content %}{{- m.content }}{%- endif %}"
    "{%- for c in m.tool_calls or [] %}{%- set f = c.function %}"
    "{{- '<tool_call>{\"name\": \"' + f.name + '\", \"arguments\": ' }}"
    "{%- if f.arguments is string %}{{- f.arguments }}{%- else %}{{- f.arguments | tojson }}{%- endif %}"
    "{{- '}</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n%(OPEN)s' }}"
    "%(OFF)s{%- endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


SYSTEMONE = (
    "{{- '<|im_start|>user\\n' }}{%- if state is string %}{{- state }}{%- else %}{{- state | tojson }}{%- endif %}"
    "{{- '\\n' + (instructions if instructions is string else instructions | tojson) }}"
    "{%- for o in options %}{{- '\\n' + 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'[loop.index0] + ') ' + o.key }}{%- endfor %}"
    "{{- '<|im_end|>\\n<|im_start|>assistant\\n' }}"
)


def chat_template(think, tools):
    if not think and not tools:
        return PLAIN
    back = ("{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
            if think else "")
    off = ("{%- if enable_thinking is defined and enable_thinking is false %}"
           "{{- '\\n</think>\\n\\n' }}{%- endif %}" if think else "")
    return (CHATML.replace("%(THINK_BACK)s", back)
            .replace("%(OPEN)s", "<think>\\n" if think else "").replace("%(OFF)s", off))


def vocabulary(multi, ragged):
    alpha = byte_alphabet()
    enc = lambda w: "".join(alpha[b] for b in w.encode("utf-8"))
    tokens = [alpha[b] for b in range(256)]
    have, merges = set(tokens), []
    bare, spaced = [], []
    for w in WORDS + (MULTI if multi else []):
        bare.append(enc(w))
        spaced.append(enc(" " + w))
    # Merges build each word from the left; the pre-tokenizer "llama-bpe" besides
    # takes a whole word that is in the vocabulary as that one token.
    for w in bare + spaced:
        left = w[0]
        for ch in w[1:]:
            both = left + ch
            if both not in have:
                have.add(both)
                tokens.append(both)
                merges.append(left + " " + ch)
            left = both
    kinds = [1] * len(tokens)            # normal
    say = set(spaced + bare if ragged else spaced)
    word_ids = [i for i, t in enumerate(tokens) if t in say]
    base = len(tokens)
    tokens += SPECIAL + MARKS
    kinds += [3] * len(SPECIAL) + [4] * len(MARKS)   # control; user-defined
    return tokens, kinds, merges, word_ids, base


def arguments(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--name", default="tiny-random")
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--embd", type=int, default=64)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--ctx", type=int, default=32768)
    ap.add_argument("--end", type=float, default=None)
    ap.add_argument("--close", type=float, default=None)
    ap.add_argument("--call", type=float, default=None)
    for flag in ("multi", "ragged", "think", "no-tools", "decision"):
        ap.add_argument("--" + flag, action="store_true")
    return ap.parse_args(argv)


class Gaussians:
    """Matrices of gaussian numbers.

    A big model takes its numbers from one block of them, at varying places, so that it is quick to make.
    """

    def __init__(self, seed, most):
        self.random = random.Random(seed)
        self.block = array.array("f", (self.random.gauss(0, 1) for _ in range(min(400000, most))))

    def matrix(self, cols, rows, scale, quiet_row0=False):
        need, data = cols * rows, array.array("f")
        while len(data) < need:
            at = self.random.randrange(len(self.block) // 2)
            data.extend(self.block[at:at + need - len(data)])
        data = array.array("f", (x * scale for x in data))
        if quiet_row0:           # nothing writes to dimension 0 of the stream
            data[0:cols] = array.array("f", bytes(4 * cols))
        return data


def tensors(a, n, word_ids, base):
    """The weights: `n` tokens, of which `word_ids` may be said; the special tokens begin at `base`."""
    d, ff = a.embd, 2 * a.embd
    rnd = Gaussians(a.seed, 3 * n * d + 40 * d * d)
    # Dimension 0 of every embedding is the same constant, so it is a bias that
    # the output matrix can use: words up, everything else far down.
    emb = rnd.matrix(d, n, 1.0)
    out = rnd.matrix(d, n, 1.0 / d ** 0.5 * 3)
    words = set(word_ids)
    for i in range(n):
        emb[i * d] = 4.0
        out[i * d] = 0.0 if i in words else -1000.0
    for at, p in ((base + 2, a.end), (base + 4, a.close), (base + 5, a.call)):
        if p is not None:
            out[at * d] = p
    ones = array.array("f", [1.0] * d)
    made = [("token_embd.weight", (d, n), emb), ("output_norm.weight", (d,), ones), ("output.weight", (d, n), out)]
    w = 1.0 / d ** 0.5
    for i in range(a.layers):
        p = "blk.%d." % i
        made += [
            (p + "attn_norm.weight", (d,), ones), (p + "ffn_norm.weight", (d,), ones),
            (p + "attn_q.weight", (d, d), rnd.matrix(d, d, 2 * w)), (p + "attn_k.weight", (d, d), rnd.matrix(d, d, 2 * w)),
            (p + "attn_v.weight", (d, d), rnd.matrix(d, d, 2 * w)),
            (p + "attn_output.weight", (d, d), rnd.matrix(d, d, 2 * w, True)),
            (p + "ffn_gate.weight", (d, ff), rnd.matrix(d, ff, 2 * w)), (p + "ffn_up.weight", (d, ff), rnd.matrix(d, ff, 2 * w)),
            (p + "ffn_down.weight", (ff, d), rnd.matrix(ff, d, 2 * w, True)),
        ]
    return made


def metadata(a, tokens, kinds, merges, base):
    d = a.embd
    kvs = [
        kv("general.architecture", STR, "llama"), kv("general.name", STR, a.name),
        kv("general.file_type", U32, 0),
        kv("llama.block_count", U32, a.layers), kv("llama.context_length", U32, a.ctx),
        kv("llama.embedding_length", U32, d), kv("llama.feed_forward_length", U32, 2 * d),
        kv("llama.attention.head_count", U32, a.heads), kv("llama.attention.head_count_kv", U32, a.heads),
        kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        kv("llama.rope.dimension_count", U32, d // a.heads), kv("llama.rope.freq_base", F32, 10000.0),
        kv("llama.vocab_size", U32, len(tokens)),
        kv("tokenizer.ggml.model", STR, "gpt2"), kv("tokenizer.ggml.pre", STR, "llama-bpe"),
        kv("tokenizer.ggml.tokens", ARR, tokens, STR), kv("tokenizer.ggml.token_type", ARR, kinds, I32),
        kv("tokenizer.ggml.merges", ARR, merges, STR),
        kv("tokenizer.ggml.bos_token_id", U32, base), kv("tokenizer.ggml.eos_token_id", U32, base + 2),
        kv("tokenizer.ggml.padding_token_id", U32, base), kv("tokenizer.ggml.add_bos_token", BOOL, False),
        kv("tokenizer.chat_template", STR, chat_template(a.think, not a.no_tools)),
    ]
    if a.decision:
        kvs += [kv("llama.decision.type", STR, "openjev"),
                kv("tokenizer.chat_templates", ARR, ["systemone"], STR),
                kv("tokenizer.chat_template.systemone", STR, SYSTEMONE)]
    return kvs


def main(argv=None):
    a = arguments(argv)
    tokens, kinds, merges, word_ids, base = vocabulary(a.multi, a.ragged)
    write_gguf(a.out, metadata(a, tokens, kinds, merges, base), tensors(a, len(tokens), word_ids, base))


if __name__ == "__main__":
    main()
